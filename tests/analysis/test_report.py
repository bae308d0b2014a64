"""The files of a report, and its page in a real browser: phone and desktop, light and dark."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import depict
from depict.analysis.base import Result
from depict.analysis.report import (
    RunReport,
    Section,
    describe,
    plain,
    present,
    read_miou,
    write_report,
    write_sections,
)
from depict.analysis.runner import Outcome, Pictures, choose_analyses, run_analyses
from depict.analysis.verdict import Verdict
from depict.costs import parameters
from depict.data import create_dataset
from depict.segment.inputs import find_inputs
from depict.viz import page as viz_page
from support.browser import CONTRAST
from support.tiny_model import tiny_model, tiny_neck_model

EVIL = "<script>alert(1)</script> & \"quotes\" 'apostrophes'"
RUNS = ("depict_sa_seed0", "a run's name, with_a_very_long_and_unbroken_word_in_it <b>", "segmenter")


def figure(points: int = 2) -> Figure:
    drawing = Figure(figsize=(6, 3), layout="constrained")
    axes = drawing.subplots()
    axes.plot(np.linspace(0, 1, points), np.sin(np.arange(points)), "o-")
    axes.set(xlabel="time (s)", ylabel="height (m)")
    return drawing


def slope(rise: float) -> Section:
    return Section(
        "slope",
        "Does it rise?",
        "A line is drawn, and the report says whether it rises.",
        Result(
            numbers={"rise (m/s)": rise, "points": 2, "undefined": None, "a label that is long enough to wrap": 0.5},
            data={"rise": rise, "values": np.array([1.0, math.nan]), "tensor": torch.tensor(3), 7: (1, 2)},
            tables={"points": [{"t": 0, "h": 0.5}, {"t": 1, "h": math.inf, "note": "a, b"}]},
        ),
        verdict=Verdict("holds", f"by {rise} m/s in Z_L1"),
        findings=[f"It rises by {rise} m/s.", "The theory says the same."],
        figures={"line": figure()},
        captions={"line": f"Height over time; it rises by {rise}."},
        pictures={"day/one image": b"bytes of a PNG"},
        seconds=1.5,
    )


def untrusted(index: int) -> Section:
    result = Result(numbers={EVIL: 1e-7} if index else {})
    about = f"Untrusted text such as {EVIL} is shown as text. " * 6
    verdict, figures = Verdict("does not hold", EVIL), {"large": figure(1_000)}
    return Section("words", f"What does {EVIL} do?", about, result, verdict, [EVIL * 5], figures)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report of three analyses of three runs."""
    out = tmp_path_factory.mktemp("report")
    model, runs = tiny_model(), []
    for index, name in enumerate(RUNS):
        failed = Section("failed", "Is there a result?", "There is none for any run.", error=f"not for '{name}'.")
        sections = [slope(index + 0.25), untrusted(index), failed]
        write_sections(out / name, {"run": f"runs/{name}"}, sections)
        facts = describe(model, f"runs/{name}", None, "3 of 100, scenes (val)")
        runs.append(RunReport(name, facts, sections, 3, 12.25))
    stamp = {"depict": "0.1.0", "commit": None, "command": "depict analyze " + "runs/a_long_path/" * 20 + EVIL}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(viz_page, "LARGEST_SVG", 50_000)
        assert write_report(out, runs, stamp) == out / "report.html"
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two pictures without ground truth."""
    folder = tmp_path_factory.mktemp("pictures")
    for index in range(2):
        Image.linear_gradient("L").resize((60, 44)).rotate(90 * index).save(folder / f"{index}.png")
    return Pictures(find_inputs([str(folder)], folder / "out")[0])


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("decoder", ["depict_sa", "depict_ca", "depict_us", "cbt", "segmenter", "linear"])
def test_every_analysis_of_every_decoder_has_findings_and_captioned_figures(pictures, decoder, labeled):
    images = create_dataset("scenes", split="val") if labeled else pictures
    done = run_analyses(tiny_model(decoder), images, [0, 1], choose_analyses(None))
    for section in map(present, done.outcomes):
        assert section.error is None
        assert section.title
        assert len(section.about) > 80
        assert section.findings
        assert all(section.findings)
        assert section.verdict.answer in ("holds", "partly", "does not hold", "does not apply")
        assert bool(section.verdict.number) >= bool(section.result.numbers)
        assert section.captions.keys() == section.figures.keys()
        assert bool(section.figures) >= bool(section.result.numbers)
        assert all(figure.get_figwidth() <= 7 for figure in section.figures.values())


@pytest.mark.parametrize("decoder", ["depict_us", "depict_sa", "cbt"])
def test_every_analysis_takes_the_tokens_behind_a_neck(decoder):
    model = tiny_neck_model(decoder)
    done = run_analyses(model, create_dataset("scenes", split="val"), [0], choose_analyses(None))
    sections = {section.name: section for section in map(present, done.outcomes)}
    assert all(section.error is None and section.findings for section in sections.values())
    applied = {name for name, section in sections.items() if section.verdict.answer != "does not apply"}
    assert {"principal", "orthogonality", "perturbation", "levels"} <= applied


def test_a_skipped_analysis_says_why_and_a_failed_one_has_no_findings():
    skipped = present(Outcome("low_rank", Result(skipped="It has no class embeddings."), seconds=2.0))
    assert skipped.findings == ["It has no class embeddings."]
    assert skipped.verdict == Verdict("does not apply")
    assert not skipped.figures
    failed = present(Outcome("low_rank", error="no image was usable."))
    assert (failed.error, failed.findings, failed.title) == ("no image was usable.", [], skipped.title)
    assert failed.verdict.answer == "failed"
    assert skipped.seconds >= 2.0


def test_json_holds_what_was_measured_as_plain_values(folder):
    found = json.loads((folder / RUNS[0] / "slope.json").read_text(), parse_constant=pytest.fail)
    assert found["run"] == "runs/depict_sa_seed0"
    assert found["question"] == "Does it rise?"
    assert (found["answer"], found["because"]) == ("holds", "by 0.25 m/s in Z_L1")
    assert found["numbers"]["rise (m/s)"] == 0.25
    assert found["data"] == {"rise": 0.25, "values": [1.0, None], "tensor": 3, "7": [1, 2]}
    assert json.loads((folder / RUNS[0] / "failed.json").read_text())["error"] == "not for 'depict_sa_seed0'."


def test_tables_have_every_column_of_any_row(folder):
    with (folder / RUNS[1] / "slope_points.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["t", "h", "note"], ["0", "0.5", ""], ["1", "", "a, b"]]


def test_figures_are_files_and_the_same_result_gives_the_same_bytes(folder, tmp_path):
    write_sections(tmp_path, {"run": "runs/depict_sa_seed0"}, [slope(0.25)])
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert path.read_bytes() == (folder / RUNS[0] / path.relative_to(tmp_path)).read_bytes()
    assert (tmp_path / "slope" / "day" / "one image.png").read_bytes() == b"bytes of a PNG"
    with Image.open(tmp_path / "slope_line.png") as picture:
        assert picture.size == (900, 450)
    assert b"<svg" in (tmp_path / "slope_line.svg").read_bytes()


def test_no_temporary_file_is_left(folder):
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds == {".json", ".csv", ".png", ".svg", ".html"}


def test_the_page_embeds_all_it_shows_and_has_no_external_address(folder):
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 6  # light and dark
    assert page.count("data:image/png;base64,") == 6  # their SVG files are too large to embed here
    assert not re.findall(r"(?:https?:)?//[a-z]", re.sub(r"base64,[^\"]*", "", page))
    assert "<script" not in page
    assert EVIL not in page
    assert "commit" not in page


def test_links_lead_to_the_files(folder):
    from urllib.parse import unquote

    page = (folder / "report.html").read_text()
    links = re.findall(r'<a href="([^"#]+)"', page)
    files = {path for path in folder.rglob("*") if path.is_file()} - {folder / "report.html"}
    assert {folder / unquote(link) for link in links} == files


def test_plain_values_are_unchanged():
    assert plain({"a": [True, None, "text", 3, np.float32(0.5)]}) == {"a": [True, None, "text", 3, 0.5]}


def test_the_facts_describe_a_run_and_its_evaluation(tmp_path):
    model = tiny_model()
    assert read_miou(tmp_path / "evaluation.json") == "not evaluated"
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"miou": 0.4567, "data": "camvid", "split": "val", "images": [{}, {}]})
    )
    facts = describe(model, "runs/tiny", tmp_path, "2 of 100, scenes (val)")
    assert facts["mIoU (depict evaluate)"] == "45.67 % (2 images of camvid, val)"
    assert facts["decoder parameters"] == f"{parameters(model.decoder):,}"
    assert facts["decoder"].startswith("depict_sa (layers 1, heads 3, head dim 100")
    assert facts["encoder"] == "vit_tiny_patch16_384 (dim 64, depth 1)"
    (tmp_path / "evaluation.json").write_text('{"miou": 0.4567, "data": "camvid", "split": "val", "images": 2}')
    assert read_miou(tmp_path / "evaluation.json") == "45.67 % (2 images of camvid, val)"
    (tmp_path / "evaluation.json").write_text("{")
    assert read_miou(tmp_path / "evaluation.json") == "not evaluated"


def test_the_facts_describe_the_neck_of_a_run_that_has_one():
    options = {"num_classes": 2, "image_size": 64, "neck_dim": 8}
    model = depict.create_model("linear", "test_efficientnet", stride=16, **options)
    facts = describe(model, "runs/neck", None, "2 pictures")
    assert facts["neck"] == "stride 16, stride 32 to tokens of 8 dimensions at stride 16"
    assert facts["neck parameters"] == f"{parameters(model.neck):,}"
    with_stem = depict.create_model("linear", "test_vit", stem=True, **options)
    facts = describe(with_stem, "runs/stem", None, "2 pictures")
    assert facts["neck"] == "stem, stride 16 to tokens of 8 dimensions at stride 4"
    assert facts["neck parameters"] == f"{parameters(with_stem.neck) + parameters(with_stem.stem):,}"
    assert "neck" not in describe(tiny_model(), "runs/tiny", None, "2 pictures")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window_and_can_be_read(folder, browser, width, scheme):
    messages, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((folder / "report.html").as_uri())
    for details in page.locator("details").all():
        details.evaluate("node => node.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    images = page.locator("img").all()
    assert len(images) == 6
    for image in images:
        box = image.bounding_box()
        assert image.evaluate("node => node.complete && node.naturalWidth > 0")
        assert len(image.get_attribute("alt")) > 20
        assert box["width"] > 300
        assert box["x"] + box["width"] <= width
        shown = image.evaluate("node => node.currentSrc")
        assert (shown == image.get_attribute("src")) == (scheme == "light")
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 50
    assert min(contrasts)[0] >= 4.5, min(contrasts)
    page.close()


@pytest.mark.slow
def test_figures_are_side_by_side_on_a_desktop_and_stacked_on_a_phone(folder, browser):
    tops = {}
    for width in (390, 1280):
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.goto((folder / "report.html").as_uri())
        tops[width] = [round(image.bounding_box()["y"]) for image in page.locator("#slope img").all()]
        page.close()
    assert tops[1280][0] == tops[1280][1]
    assert len(set(tops[390])) == 3


@pytest.mark.slow
def test_a_tap_enlarges_a_figure_and_another_one_closes_it(folder, browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((folder / "report.html").as_uri())
    image = page.locator("#slope img").first
    image.scroll_into_view_if_needed()
    small, place = image.bounding_box()["width"], page.locator("#words").bounding_box()["y"]
    image.click()
    large = image.bounding_box()["width"]
    assert small <= 390
    assert large >= 570  # its size in CSS pixels: the text is as large as that of the page
    image.click()
    assert image.bounding_box()["width"] == small
    assert page.locator("#words").bounding_box()["y"] == place
    page.close()


@pytest.mark.slow
def test_answers_come_first_and_lead_to_the_analyses_and_failures_are_shown(folder, browser):
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    first = page.locator("nav tbody tr").first.locator("th, td").all_inner_texts()
    assert first == ["Does it rise?", *(f"holds by {rise} m/s in ZL1" for rise in (0.25, 1.25, 2.25))]
    assert page.locator("nav").bounding_box()["y"] < page.locator("#runs").bounding_box()["y"]
    page.locator("nav a").nth(2).click()
    assert page.url.endswith("#failed")
    assert page.locator("#failed .failed").all_inner_texts() == [
        f"This analysis failed: not for '{name}'." for name in RUNS
    ]
    cells = page.locator("#slope table tbody tr").first.locator("th, td").all_inner_texts()
    assert cells == ["rise (m/s)", "0.250", "1.25", "2.25"]
    assert page.locator("#glossary dt").count() > 10
    page.close()


def test_a_page_of_one_run_has_no_columns_and_puts_findings_before_the_method(tmp_path):
    section = slope(1.5)
    write_sections(tmp_path / "alone", {}, [section])
    write_report(tmp_path, [RunReport("alone", {"run": "alone"}, [section], 1, 0.1)], {})
    page = (tmp_path / "report.html").read_text()
    assert "<title>Inside alone</title>" in page
    assert "<h3>alone</h3>" not in page
    assert "Height over time; it rises by 1.5." in page
    assert page.index("by 1.5 m/s") < page.index(section.findings[0]) < page.index(section.about)
    assert "in <var>Z</var><sub><var>L</var><sub>1</sub></sub>" in page
