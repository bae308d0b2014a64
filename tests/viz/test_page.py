"""Numbers for people, figures for light and dark pages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from depict.viz.dark import GRID, INK, PAPER, dark_copy, inverted
from depict.viz.page import embed_figure, embed_photo, format_number, write_page
from depict.viz.style import add_grid, figure_bytes


@pytest.mark.parametrize(
    ("value", "label", "text"),
    [
        (None, "", "–"),
        (math.nan, "", "–"),
        (0, "", "0"),
        (3.0, "points", "3"),
        (3.0, "mIoU (%)", "3.0"),
        (46.734, "mIoU (%)", "46.7"),
        (46.734, "angle (degrees)", "46.7"),
        (0.123456, "", "0.123"),
        (1.7, "", "1.70"),
        (12.345, "", "12.3"),
        (999.6, "", "1,000"),
        (12345.6, "", "12,346"),
        (0.000123, "", "0.00012"),
    ],
)
def test_numbers_have_as_many_digits_as_people_read(value, label, text):
    assert format_number(value, label) == text


def drawing() -> Figure:
    """A line, a heat map with 0 in white, and a photo, each with text on it."""
    figure = Figure(figsize=(6, 2), layout="constrained")
    lines, heat, photo = figure.subplots(1, 3)
    lines.plot([0, 1], [0, 1], color="#0072B2", mfc="white")
    lines.axhline(0.5, color="black")
    lines.set(xlabel="time", title="lines")
    add_grid(lines)
    figure.colorbar(heat.imshow(np.eye(3), cmap="RdBu_r", vmin=-1, vmax=1))
    heat.text(0, 0, "a", color="black")
    photo.imshow(np.zeros((4, 4, 3), np.uint8))
    photo.text(0, 0, "b", color="white")
    return figure


def test_a_dark_copy_has_light_text_on_dark_paper_and_keeps_photos():
    figure = drawing()
    dark = dark_copy(figure)
    lines, heat, photo, bar = dark.axes
    assert to_hex(dark.get_facecolor()) == PAPER
    assert to_hex(lines.get_facecolor()) == PAPER
    figure_bytes(dark, "svg")  # ticks are made when it is drawn
    assert {to_hex(label.get_color()) for label in lines.get_xticklabels()} == {INK}
    assert {to_hex(line.get_color()) for line in lines.get_xgridlines()} == {GRID}
    assert {to_hex(text.get_color()) for text in (lines.title, lines.xaxis.label)} == {INK}
    assert to_hex(lines.lines[1].get_color()) == INK
    assert to_hex(lines.lines[0].get_markerfacecolor()) == PAPER
    assert heat.images[0].cmap(0.5)[:3] == pytest.approx(to_rgb(PAPER), abs=0.01)
    (mesh,) = (part for part in bar.collections if part.get_array() is not None)
    assert mesh.cmap(0.5) == heat.images[0].cmap(0.5)
    assert to_hex(heat.texts[0].get_color()) == INK
    assert to_hex(photo.texts[0].get_color()) == "#ffffff"  # the photo below it is the same as before
    assert to_hex(figure.get_facecolor()) == "#ffffff"
    assert to_hex(figure.axes[0].xaxis.label.get_color()) == "#000000"


def test_colors_keep_their_hue_and_arrays_of_colors_their_shape():
    red, blue = to_rgb(inverted("#ff0000")), to_rgb(inverted("#0072B2"))
    assert red[0] > red[1]
    assert blue[2] > blue[1] > blue[0]
    assert min(blue) > 0  # lighter, to be seen on dark paper
    assert inverted("none") == "none"
    assert inverted(np.zeros((3, 4))).shape == (3, 4)
    assert inverted(np.zeros((0, 4))).shape == (0, 4)


def test_figures_are_embedded_for_light_and_dark_pages_and_photos_once():
    picture = embed_figure(drawing(), "three panels")
    assert (picture.width, picture.height) == (576, 192)
    assert picture.address.startswith("data:image/svg+xml;base64,")
    assert picture.dark != picture.address
    photo = embed_photo(np.zeros((10, 20, 3), np.uint8), "black")
    assert photo.address.startswith("data:image/jpeg")
    assert photo.dark is None
    assert embed_photo(np.zeros((10, 20, 3), np.uint8), "black", flat=True).address.startswith("data:image/png")


def test_a_name_with_broken_characters_is_written(tmp_path):
    stamp = {"command": "depict evaluate bad\udcffname"}
    values = {"runs": ["bad\udcff"], "facts": [], "analyses": [], "times": [], "stamp": stamp, "glossary": {}}
    write_page(tmp_path / "page.html", "analysis/report.html.jinja", **values)
    assert r"bad\udcffname" in (tmp_path / "page.html").read_text()
