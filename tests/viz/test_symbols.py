"""The paper's symbols are found in plain text; other words are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser

from depict.viz.symbols import as_html, as_mathtext


@pytest.mark.parametrize(
    ("text", "mathtext", "html"),
    [
        ("Z0", "$Z_{0}$", "<var>Z</var><sub>0</sub>"),
        ("Z_L1", "$Z_{L_1}$", "<var>Z</var><sub><var>L</var><sub>1</sub></sub>"),
        ("Ortho(P'_h)", "Ortho($P'_{h}$)", "Ortho(<var>P</var>′<sub><var>h</var></sub>)"),
        ("P O_K", "$P$ $O_{K}$", "<var>P</var> <var>O</var><sub><var>K</var></sub>"),
        ("R(Pᵀ Z)", r"$R$($P^\top$ $Z$)", "<var>R</var>(<var>P</var><sup>⊤</sup> <var>Z</var>)"),
        ("R(Q̄) < 1", r"$R$($\bar{Q}$) < 1", "<var>R</var>(<var>Q̄</var>) &lt; 1"),
        ("the sign of P's step", "the sign of $P$'s step", "the sign of <var>P</var>&#39;s step"),
    ],
)
def test_symbols_are_typeset_in_figures_and_on_pages(text, mathtext, html):
    assert as_mathtext(text) == mathtext
    assert str(as_html(text)) == html


@pytest.mark.parametrize("text", ["PCA on ViT-L", "DEPICT-SA", "A class Q-like", "R² and Robust", "ZZ_top", "O"])
def test_other_words_are_left_alone(text):
    assert as_mathtext(text) == text
    assert str(as_html(text)) == text


def test_matplotlib_reads_all_formulas():
    parser = MathTextParser("path")
    for text in ("Z0", "Z_L1", "P'_hᵀ", "P'ᵀ", "Q̄", "R(Z)", "O_M"):
        parser.parse(as_mathtext(text))
    Figure().text(0, 0, as_mathtext("R(Z) ≥ R(Q̄)"))


@given(st.text())
def test_any_text_is_escaped(text):
    plain = str(as_html(text))
    for tag in ("var", "sub", "sup"):
        plain = plain.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    assert "<" not in plain
    assert ">" not in plain
