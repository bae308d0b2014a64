"""The pages of results show what the studies in docs/results measured."""

import json

import pytest

import kept
import redraw
from conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/results"


def studies():
    found = sorted(path.parent for path in FOLDER.glob("*/study.yaml"))
    assert found
    return found


def test_every_table_of_the_pages_is_the_one_that_the_script_writes():
    pages = [page.read_text(encoding="utf-8") for page in redraw.PAGES]
    assert [redraw.filled(page) for page in pages] == pages
    assert all(sum(page.count(f"<!-- table: {name} -->") for page in pages) == 1 for name in redraw.TABLES)


def test_every_kept_study_is_finished():
    for study in studies():
        if not (study / "times.json").is_file():
            results = json.loads((study / "results.json").read_text(encoding="utf-8"))
            assert results["lines"] and not results["missing"], study.name


def test_seeds_of_two_studies_become_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "HERE", tmp_path)
    first = {"label": "linear,stride=4", "seeds": [0], "miou": [0.5], "mean": 0.5, "boundary_iou": 0.2}
    first["classes"] = {"car": 0.2}
    second = {"label": "linear,stride=4", "seeds": [1, 2], "miou": [0.6, 0.7], "mean": 0.65, "boundary_iou": 0.5}
    second |= {"classes": {"car": 0.9}, "class_means": {"car": 0.8}}
    for name, line in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps({"study": "decoders", "lines": [line]}))

    [line] = kept.merged(["first", "second"])
    assert line["seeds"] == [0, 1, 2] and line["miou"] == [0.5, 0.6, 0.7]
    assert line["mean"] == pytest.approx(0.6) and line["spread"] == pytest.approx(0.1)
    assert line["boundary_iou"] == pytest.approx(0.4)
    assert line["class_means"] == {"car": pytest.approx(0.6)}
    with pytest.raises(ValueError, match="seeds \\[0\\] are in two"):
        kept.merged(["first", "first"])


def test_scores_of_a_single_seed_are_kept_once_and_paths_of_this_machine_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "HERE", tmp_path / "kept")
    (tmp_path / "runs/study").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "runs/study/study.yaml").write_text("root: /data/ADE20K\n")
    line = {"label": "linear", "seeds": [0], "miou": [0.5], "mean": 0.5, "classes": {"car": 0.5}}
    line["class_means"] = {"car": 0.5}
    results = {"study": "decoders", "lines": [line]}
    (tmp_path / "runs/study/results.json").write_text(json.dumps(results, indent=2))

    kept.take(tmp_path / "runs")
    assert (tmp_path / "kept/study/study.yaml").read_text() == "root: ADE20K\n"
    assert "class_means" not in (tmp_path / "kept/study/results.json").read_text()
    [merged] = kept.merged(["study"])
    assert merged["class_means"] == {"car": 0.5}


def test_only_small_files_of_known_names_are_kept_and_no_photograph():
    """Photographs of CamVid are PNGs too, so pictures are allowed by name, not by suffix."""
    allowed = {f"labels/{name}.png" for name in (*redraw.LABEL_ROWS, *redraw.STRIDE_ROWS)}
    allowed |= {"ablation/results.png", "less_data/results.png"} | {script.name for script in FOLDER.glob("*.py")}
    allowed |= {f"{study.name}/{name}" for study in studies() for name in kept.KEPT if (study / name).exists()}
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    found = {name for name in files if "__pycache__" not in name}
    assert found == allowed
    assert sum(files[name].stat().st_size for name in found) < 1 << 20
