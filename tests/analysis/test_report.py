"""The files of a report, and its page as a person meets it: in a real browser, on phone and desk, light and dark."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from depict.analysis import report
from depict.analysis.base import Result, Analysis
from depict.analysis.report import Subject, describe, evaluated, number, plain, write_answers, write_report
from depict.analysis.runner import Finding, Pass
from depict.costs import parameters
from support.tiny_model import tiny_model

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
EVIL = "<script>alert(1)</script> & \"quotes\" 'apostrophes'"
RUNS = ("depict_sa_seed0", "a run's name, with_a_very_long_and_unbroken_word_in_it <b>", "segmenter")


class Slope(Analysis):
    name, title, about = "slope", "Does it rise?", "A line is drawn, and whether it rises is told."


class Words(Analysis):
    name, title, about = "words", f"What does {EVIL} do?", f"Text of a stranger, such as {EVIL}, is shown as text. " * 6


class Refused(Analysis):
    name, title, about = "refused", "Is there an answer?", "There is none for any run."


def figure(points: int = 2) -> Figure:
    drawing = Figure(figsize=(6, 3), layout="constrained")
    axes = drawing.subplots()
    axes.plot(np.linspace(0, 1, points), np.sin(np.arange(points)), "o-")
    axes.set(xlabel="time (s)", ylabel="height (m)")
    return drawing


def slope(rise: float) -> Result:
    return Result(
        numbers={
            "rise (m/s)": rise,
            "points": 2,
            "not defined": None,
            "steps of a label that is long enough to wrap": 0.5,
        },
        data={"rise": rise, "values": np.array([1.0, math.nan]), "tensor": torch.tensor(3), 7: (1, 2)},
        tables={"points": [{"t": 0, "h": 0.5}, {"t": 1, "h": math.inf, "note": "a, b"}]},
        figures={"line": figure()},
        pictures={"day/one image": b"bytes of a PNG"},
        captions={"line": f"Height over time; it rises by {rise}."},
        text=[f"It rises by {rise} m/s.", "As the theory says."],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report of three questions to three runs."""
    out = tmp_path_factory.mktemp("report")
    subjects = []
    for index, name in enumerate(RUNS):
        words = Result(numbers={EVIL: 1e-7} if index else {}, figures={"large": figure(1_000)}, text=[EVIL * 5])
        findings = [
            Finding(Slope, slope(index + 0.25), seconds=1.5),
            Finding(Words, words),
            Finding(Refused, error=f"not for '{name}'."),
        ]
        write_answers(out / name, {"run": f"runs/{name}"}, findings)
        facts = describe(tiny_model(), f"runs/{name}", None, "3 of 100, scenes (val)")
        subjects.append(Subject(name, facts, Pass(findings, 3, 12.25)))
    stamp = {"depict": "0.1.0", "commit": None, "command": "depict analyze " + "runs/a_long_path/" * 20 + EVIL}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "LARGEST_SVG", 50_000)
        assert write_report(out, subjects, stamp) == out / "report.html"
    return out


def test_json_holds_what_was_measured_as_plain_values(folder):
    found = json.loads((folder / RUNS[0] / "slope.json").read_text(), parse_constant=pytest.fail)
    assert found["run"] == "runs/depict_sa_seed0"
    assert found["question"] == "Does it rise?"
    assert found["numbers"]["rise (m/s)"] == 0.25
    assert found["data"] == {"rise": 0.25, "values": [1.0, None], "tensor": 3, "7": [1, 2]}
    assert json.loads((folder / RUNS[0] / "refused.json").read_text())["error"] == "not for 'depict_sa_seed0'."


def test_tables_have_every_column_of_any_row(folder):
    with (folder / RUNS[1] / "slope_points.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["t", "h", "note"], ["0", "0.5", ""], ["1", "", "a, b"]]


def test_figures_are_files_and_the_same_findings_give_the_same_bytes(folder, tmp_path):
    findings = [Finding(Slope, slope(0.25))]
    write_answers(tmp_path, {"run": "runs/depict_sa_seed0"}, findings)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert path.read_bytes() == (folder / RUNS[0] / path.relative_to(tmp_path)).read_bytes()
    assert (tmp_path / "slope" / "day" / "one image.png").read_bytes() == b"bytes of a PNG"
    with Image.open(tmp_path / "slope_line.png") as picture:
        assert picture.size == (900, 450)
    assert b"<svg" in (tmp_path / "slope_line.svg").read_bytes()


def test_nothing_unfinished_is_left(folder):
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds == {".json", ".csv", ".png", ".svg", ".html"}


def test_the_page_holds_all_it_shows_and_no_address_outside(folder):
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert page.count("data:image/png;base64,") == 3  # a thousand points are more than a drawing may have here
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


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "–"), (math.nan, "–"), (0, "0"), (3.0, "3"), (0.123456, "0.1235"), (12345.6, "12,346"), (46.73, "46.73")],
)
def test_numbers_are_told_with_the_digits_that_matter(value, told):
    assert number(value) == told


def test_plain_values_stay_as_they_are():
    assert plain({"a": [True, None, "text", 3, np.float32(0.5)]}) == {"a": [True, None, "text", 3, 0.5]}


def test_the_top_tells_what_a_run_is_and_how_good(tmp_path):
    model = tiny_model()
    assert evaluated(tmp_path / "evaluation.json") == "not evaluated"
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"miou": 0.4567, "data": "camvid", "split": "val", "images": [{}, {}]})
    )
    facts = describe(model, "runs/tiny", tmp_path, "2 of 100, scenes (val)")
    assert facts["mIoU (depict evaluate)"] == "45.67 % (2 images of camvid, val)"
    assert facts["decoder's parameters"] == f"{parameters(model.decoder):,}"
    assert facts["decoder"].startswith("depict_sa (layers 1, heads 3, head dim 100")
    assert facts["encoder"] == "vit_tiny_patch16_384 (dim 64, depth 1)"
    (tmp_path / "evaluation.json").write_text("{")
    assert evaluated(tmp_path / "evaluation.json") == "not evaluated"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium to open the page in")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--no-first-run"])
        yield opened
        opened.close()


CONTRAST = """() => {
    const channels = color => color.match(/[\\d.]+/g).map(Number);
    const light = color => {
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = channels(color).map(v => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = node => {
        for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if ((channels(color)[3] ?? 1) > 0) return color;
        }
    };
    const words = [...document.querySelectorAll('body *')].filter(
        node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()));
    return words.map(node => {
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), node.textContent.trim().slice(0, 40)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window_and_can_be_read(folder, browser, width, scheme):
    told, asked = [], []
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / "report.html").as_uri())
    for details in page.locator("details").all():
        details.evaluate("node => node.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert told == []
    assert [url for url in asked if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    images = page.locator("img").all()
    assert len(images) == 6
    for image in images:
        box = image.bounding_box()
        assert image.evaluate("node => node.complete && node.naturalWidth > 0")
        assert len(image.get_attribute("alt")) > 20
        assert box["width"] > 300
        assert box["x"] + box["width"] <= width
        assert image.evaluate("node => getComputedStyle(node).backgroundColor") == "rgb(255, 255, 255)"
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 50
    assert min(contrasts)[0] >= 4.5, min(contrasts)
    page.close()


def test_figures_stand_side_by_side_on_a_desk_and_below_each_other_on_a_phone(folder, browser):
    tops = {}
    for width in (390, 1280):
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.goto((folder / "report.html").as_uri())
        tops[width] = [round(image.bounding_box()["y"]) for image in page.locator("#slope img").all()]
        page.close()
    assert tops[1280][0] == tops[1280][1]
    assert len(set(tops[390])) == 3


def test_questions_are_reached_from_the_list_and_told_where_they_failed(folder, browser):
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    assert page.locator("nav li").all_inner_texts() == [Slope.title, Words.title, Refused.title]
    page.locator("nav a").nth(2).click()
    assert page.url.endswith("#refused")
    assert page.locator("#refused .failed").all_inner_texts() == [
        f"This question was not answered: not for '{name}'." for name in RUNS
    ]
    cells = page.locator("#slope table tbody tr").first.locator("th, td").all_inner_texts()
    assert cells == ["rise (m/s)", "0.25", "1.25", "2.25"]
    page.close()


def test_one_run_needs_no_columns_and_a_failed_one_no_figures(tmp_path):
    findings = [Finding(Slope, slope(1.5))]
    write_answers(tmp_path / "alone", {}, findings)
    write_report(tmp_path, [Subject("alone", {"run": "alone"}, Pass(findings, 1, 0.1))], {})
    page = (tmp_path / "report.html").read_text()
    assert "<title>Inside alone</title>" in page
    assert "<h3>" not in page
    assert "Height over time; it rises by 1.5." in page
