"""The cells of a study follow from its settings; wrong settings are refused before anything is written."""

import dataclasses

import pytest

from depict.config.paper import paper_rows
from depict.config.schema import DecoderConfig
from depict.errors import UserError
from depict.io.yaml import to_dict, write_yaml
from depict.studies.collect import paper_miou
from depict.studies.plan import FILE, Study, distinct_cells, open_study, plan, variant

IMAGES = 8


def test_the_ablation_has_every_line_of_both_tables_and_trains_a_shared_one_once(settings):
    study = Study("ablation", (0,), (), (), IMAGES, settings())
    cells = plan(study)
    rows = [row for row in paper_rows() if row.table.startswith("Ablation")]
    assert {(cell.label, cell.config.decoder.name) for cell in cells} == {(row.label, row.decoder) for row in rows}
    for row in rows:
        cell = next(cell for cell in cells if cell.label == row.label and cell.config.decoder.name == row.decoder)
        assert cell.config.decoder.options() == row.options
        assert cell.config.encoder == study.settings.encoder
    assert len(cells) == 12 + 9
    assert len(distinct_cells(study)) == 12 + 9 - 1


def test_the_ablation_takes_its_initial_values_from_the_settings(settings):
    decoder = DecoderConfig("depict_sa", logit_gain=4.0, step_size=0.1)
    cells = plan(Study("ablation", (0,), (), (), IMAGES, dataclasses.replace(settings(), decoder=decoder)))
    assert {cell.config.decoder.logit_gain for cell in cells} == {4.0}
    steps = {cell.label: cell.config.decoder.step_size for cell in cells}
    assert (steps["3 x 100"], steps["MSSA + MLP"], steps["MHSA + MLP (Segmenter)"]) == (0.1, 0.1, None)
    assert {cell.label: paper_miou(cell) for cell in cells}["MSSA only"] == "45.4 ViT-S"


def test_lines_that_the_paper_has_come_with_its_figures(settings):
    printed = {cell.label: paper_miou(cell) for cell in plan(Study("ablation", (0,), (), (), IMAGES, settings()))}
    assert printed["MSSA only"] == "45.4 ViT-S"
    assert printed["3 x 100"] == "46.7 ViT-S, 49.3 ViT-B"
    decoders = Study("decoders", (0,), ("linear", "depict_ca"), (), IMAGES, settings())
    assert [paper_miou(cell) for cell in plan(decoders)] == ["", "45.8 ViT-S, 49.0 ViT-B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depict_saa", "unknown decoder 'depict_saa'. Did you mean 'depict_sa'?"),
        ("depict_sa,lrr=1", "Did you mean 'lr'?"),
        ("depict_sa,lr", "'lr' is not SETTING=VALUE"),
        ("depict_sa,lr=[", "is not SETTING=VALUE"),
        ("depict_sa,lr=fast", "fast"),
        ("linear,decoder.layers=2", "unknown option for the decoder 'linear': 'layers'"),
        ("linear,precision=bf16", "same for the whole study: give it as --precision"),
    ],
)
def test_a_wrong_decoder_is_refused_in_one_line(settings, tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        open_study(tmp_path / "out", "decoders", settings(), decoders=("linear", text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_decoder_have_the_names_of_the_command_line(settings):
    config = variant(settings(), "depict_sa,decoder.head-dim=16,warmup=3,encoder.freeze=true")
    assert (config.decoder.head_dim, config.decoder.heads, config.train.warmup) == (16, 1, 3)
    assert config.encoder.freeze
    config = variant(settings(), "linear,stride=4,image-size=64,neck.dim=32")
    assert (config.stride, config.image_size, config.neck.dim) == (4, 64, 32)


def test_a_decoder_with_a_limit_counts_only_its_own_images(settings):
    study = Study("decoders", (0,), ("linear", "linear,data.limit=3", "linear,data.limit=99"), (), IMAGES, settings())
    assert [cell.images for cell in plan(study)] == [IMAGES, 3, IMAGES]


@pytest.mark.parametrize("size", ["0", "-1/2", "9", "half", "1/0", "1/1000"])
def test_a_wrong_size_is_refused(settings, tmp_path, size):
    with pytest.raises(UserError, match=f"--sizes: '{size}' is neither a fraction such as 1/4 nor a count up to the 8"):
        open_study(tmp_path, "subset", settings(), sizes=(size,))


def test_a_list_that_a_study_does_not_have_is_refused(settings, tmp_path):
    with pytest.raises(UserError, match="the study 'ablation' has no --decoders"):
        open_study(tmp_path, "ablation", settings(), decoders=("linear",))
    with pytest.raises(UserError, match="the study 'decoders' has no --sizes"):
        open_study(tmp_path, "decoders", settings(), sizes=("1/2",))


def test_other_settings_another_study_and_other_files_are_refused(settings, tmp_path):
    study = open_study(tmp_path / "study", "decoders", settings(), decoders=("linear",))
    write_yaml(tmp_path / "study" / FILE, to_dict(study))
    with pytest.raises(UserError, match=r"was trained with train.batch = 4, not 2: give the same settings"):
        open_study(tmp_path / "study", "decoders", settings(batch=2))
    with pytest.raises(UserError, match="holds the study 'decoders', not 'subset'"):
        open_study(tmp_path / "study", "subset", settings())
    with pytest.raises(UserError, match="holds other files and no study"):
        open_study(tmp_path, "decoders", settings())
