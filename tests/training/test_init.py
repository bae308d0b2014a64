"""Starting from another run: its weights, and the rows of the classes that both know."""

import shutil

import pytest
import torch

from depict import UserError, create_model
from depict.cli import main
from depict.runs import load, save
from depict.training.feature_builder import encoder_sketch, same_encoder
from depict.training.init import init_from
from support.trainings import small_command

ENCODER = {"encoder": "vit_tiny_patch16_224", "image_size": 32}


def model(classes, decoder="depict_sa", seed=0, **options):
    torch.manual_seed(seed)
    return create_model(decoder, classes=classes, **ENCODER, **options)


def neck_model(encoder, decoder="depict_us", seed=0, **options):
    torch.manual_seed(seed)
    return create_model(decoder, encoder, classes=["tree", "road"], image_size=32, neck_dim=8, **options)


@pytest.fixture
def run(tmp_path):
    save(model(["tree", "road", "sky"]), tmp_path / "run")
    return str(tmp_path / "run")


def test_all_weights_are_copied_and_classes_by_their_names(run):
    new, source = model(["sky", "wall", "tree", "car"], seed=1), load(run)
    start = new.decoder.class_embeddings.detach().clone()
    text = init_from(new, run)
    assert text == f"starting from '{run}': it knows 2 of the 4 classes by name."
    expected = source.state_dict()
    by_class = {name for name, tensor in new.state_dict().items() if tensor.shape != expected[name].shape}
    assert "decoder.class_embeddings" in by_class
    for name, tensor in new.state_dict().items():
        if name not in by_class:
            assert torch.equal(tensor, expected[name]), name
    embeddings = new.decoder.class_embeddings
    assert torch.equal(embeddings[0], source.decoder.class_embeddings[2])
    assert torch.equal(embeddings[2], source.decoder.class_embeddings[0])
    assert torch.equal(embeddings[[1, 3]], start[[1, 3]])


def test_as_many_classes_with_other_names_are_still_other_classes(run):
    new = model(["a", "b", "road"], seed=1)
    start = new.decoder.class_embeddings.detach().clone()
    init_from(new, run)
    assert torch.equal(new.decoder.class_embeddings[:2], start[:2])
    assert torch.equal(new.decoder.class_embeddings[2], load(run).decoder.class_embeddings[1])


@pytest.mark.parametrize("decoder", ["linear", "depict_us", "segmenter", "depict_ca"])
def test_every_decoder_can_start_from_one_of_its_kind(tmp_path, decoder):
    save(model(["tree", "road"], decoder), tmp_path / "run")
    new = model(["road", "car", "tree"], decoder, seed=1)
    assert "knows 2 of the 3" in init_from(new, str(tmp_path / "run"))


@pytest.mark.parametrize("option", [{"dropout": 0.1}, {"logit_gain": 4.0}, {"step_size": 0.1}])
def test_options_that_matter_in_training_only_do_not_make_another_decoder(run, option):
    new = model(["tree", "road", "sky"], seed=1, **option)
    assert "knows 3 of the 3" in init_from(new, run)
    assert torch.equal(new.decoder.class_embeddings, load(run).decoder.class_embeddings)


def test_another_decoder_keeps_its_random_start(run):
    new = model(["tree", "road"], "linear", seed=1)
    start = new.decoder.head.weight.detach().clone() if hasattr(new.decoder.head, "weight") else None
    assert init_from(new, run) == f"starting from '{run}': its encoder, with a new decoder."
    assert torch.equal(new.encoder.vit.norm.weight, load(run).encoder.vit.norm.weight)
    assert start is None or torch.equal(new.decoder.head.weight, start)


@pytest.mark.parametrize("image_size", [64, (48, 80)])
def test_positions_are_resized_to_another_image_size(run, image_size):
    torch.manual_seed(1)
    new = create_model("depict_sa", encoder="vit_tiny_patch16_224", classes=["tree"], image_size=image_size)
    init_from(new, run)
    source, grid = load(run).encoder.vit, new.encoder.vit.patch_embed.grid_size
    images = torch.rand(1, 3, grid[0] * 16, grid[1] * 16)
    expected = load(run).encoder(images)  # which resizes its positions for the image
    assert torch.allclose(new.encoder.eval()(images)[0], expected[0], atol=1e-5)
    assert torch.equal(new.encoder.vit.pos_embed[:, :1], source.pos_embed[:, :1])


def test_another_encoder_is_refused_in_one_line(run):
    other = create_model("depict_sa", encoder="vit_small_patch16_224", classes=["tree"], image_size=32)
    with pytest.raises(UserError, match="does not fit the model at 'encoder.vit.cls_token': leave its encoder"):
        init_from(other, run)


def test_the_neck_is_copied_with_the_encoder(tmp_path):
    save(neck_model("test_efficientnet", stride=4), tmp_path / "run")
    new, source = neck_model("test_efficientnet", "linear", seed=1, stride=4), load(tmp_path / "run")
    assert init_from(new, str(tmp_path / "run")).endswith("its encoder and neck, with a new decoder.")
    assert all(map(torch.equal, new.neck.state_dict().values(), source.neck.state_dict().values()))


@pytest.mark.parametrize(
    ("encoder", "theirs", "ours", "message"),
    [
        ("test_efficientnet", {"stride": 8}, {"stride": 16}, r"\(stride 8, stride 16, stride 32\) .*leave .* --stride"),
        # Both have as many levels of the same dimension, so that the weights would fit.
        (
            "test_vit",
            {"blocks": (0, 3)},
            {"blocks": (1, 3)},
            r"\(block 0, block 3\) than the model \(block 1, block 3\)",
        ),
    ],
)
def test_a_neck_for_other_levels_is_refused_in_one_line(tmp_path, encoder, theirs, ours, message):
    save(neck_model(encoder, **theirs), tmp_path / "run")
    with pytest.raises(UserError, match=message) as caught:
        init_from(neck_model(encoder, **ours), str(tmp_path / "run"))
    assert "\n" not in str(caught.value)


def test_a_training_starts_from_a_run_with_its_encoder_decoder_and_size(tmp_path, pictures, capfd):
    assert main(small_command(pictures, tmp_path / "first")) == 0
    words = f"""train --out {tmp_path / "second"} --data folder --root {pictures} --data.workers 0 --epochs 1
        --batch 4 --device cpu --init {tmp_path / "first"} --lr 1e-12 --optimizer sgd""".split()
    assert main(words) == 0
    assert "it knows 3 of the 3 classes by name" in capfd.readouterr().err
    first, second = load(tmp_path / "first"), load(tmp_path / "second")
    assert (second.config.encoder, second.config.decoder) == (first.config.encoder, first.config.decoder)
    for name, tensor in second.state_dict().items():
        torch.testing.assert_close(tensor, first.state_dict()[name], rtol=1e-4, atol=1e-4)
    assert main(words) == 0
    assert "is finished" in capfd.readouterr().err


def test_a_start_that_is_no_run_is_one_line(tmp_path, pictures, capsys):
    words = f"train --out {tmp_path / 'run'} --data folder --root {pictures} --init {tmp_path}".split()
    assert main(words) == 2
    assert "is not a run folder: there is no config.yaml in it" in capsys.readouterr().err


def second_command(tmp_path, pictures, *more):
    words = f"""train --out {tmp_path / "second"} --data folder --root {pictures} --data.workers 0 --batch 4
        --init {tmp_path / "first"} --data.short-edge 40 --data.max-aspect 2 --device cpu"""
    return [*words.split(), *more]


def test_a_training_that_has_begun_resumes_without_the_run_it_started_from(tmp_path, pictures, capfd):
    assert main(small_command(pictures, tmp_path / "first")) == 0
    assert main(second_command(tmp_path, pictures, "--epochs", "1")) == 0
    shutil.rmtree(tmp_path / "first")
    capfd.readouterr()
    assert main(second_command(tmp_path, pictures, "--epochs", "1")) == 0
    assert "is finished" in capfd.readouterr().err
    assert main(second_command(tmp_path, pictures, "--epochs", "2")) == 0
    printed = capfd.readouterr().err
    assert "from 1 to 2 epochs" in printed
    assert "starting from" not in printed


def test_features_of_another_encoder_than_before_are_refused(tmp_path, pictures, capfd, monkeypatch):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    cached = ("--freeze-encoder", "--cache-features", "--data.no-flip", "--epochs")
    assert main(small_command(pictures, tmp_path / "first")) == 0
    assert main(second_command(tmp_path, pictures, *cached, "1")) == 0
    shutil.rmtree(tmp_path / "cache")
    assert main(second_command(tmp_path, pictures, *cached, "1")) == 0
    assert not (tmp_path / "cache").exists()  # a finished run needs no features

    source = load(tmp_path / "first")
    torch.nn.init.zeros_(source.encoder.vit.norm.weight)
    save(source, tmp_path / "first")
    capfd.readouterr()
    assert main(second_command(tmp_path, pictures, *cached, "2")) == 2
    printed = capfd.readouterr().err
    assert "was trained on the features of another encoder: restore the weights of" in printed.splitlines()[-1]
    assert not (tmp_path / "cache").exists()  # refused before any features are computed


def test_an_encoder_that_another_cpu_rounded_is_the_same_encoder():
    net = model(["a", "b"])
    before = encoder_sketch(net)
    with torch.no_grad():
        for parameter in net.encoder.parameters():
            parameter *= 1 + 1e-7
    assert same_encoder(before, encoder_sketch(net))
    with torch.no_grad():
        net.encoder.vit.blocks[0].attn.qkv.weight[0] *= 1.01
    assert not same_encoder(before, encoder_sketch(net))


def from_yaml(tmp_path, pictures, *more):
    """The second command with the run to start from in a YAML file."""
    (tmp_path / "s.yaml").write_text(f"train: {{init: '{tmp_path / 'first'}'}}\n")
    words = second_command(tmp_path, pictures, *more)
    at = words.index("--init")
    return [*words[:at], "--config", str(tmp_path / "s.yaml"), *words[at + 2 :]]


def test_a_start_named_in_a_yaml_file_is_not_needed_to_resume(tmp_path, pictures, capfd):
    assert main(small_command(pictures, tmp_path / "first")) == 0
    assert main(from_yaml(tmp_path, pictures, "--epochs", "1")) == 0
    shutil.rmtree(tmp_path / "first")
    assert main(from_yaml(tmp_path, pictures, "--epochs", "2")) == 0
    capfd.readouterr()
    assert main([*from_yaml(tmp_path, pictures), "--out", str(tmp_path / "third")]) == 2
    assert "is not a run folder" in capfd.readouterr().err


def test_a_start_named_in_a_yaml_file_is_cleared_by_none(tmp_path, pictures, capfd):
    small = small_command(pictures, tmp_path / "second", "--config", str(tmp_path / "s.yaml"), "--init", "None")
    (tmp_path / "s.yaml").write_text("train: {init: nowhere}\n")
    assert main(small) == 0
    assert "starting from" not in capfd.readouterr().err


def test_a_start_without_an_encoder_section_is_no_traceback(tmp_path, pictures, capfd):
    (tmp_path / "first").mkdir()
    (tmp_path / "first/config.yaml").write_text("format: 3\nclasses: {a: [0, 0, 0]}\n")
    assert main(from_yaml(tmp_path, pictures)) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
