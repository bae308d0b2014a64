"""Draw docs/images/architecture_{light,dark}.svg: the path of an image and where its code is.

python docs/images/architecture.py
"""

from __future__ import annotations

from pathlib import Path

THEMES = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#8c959f",
        "box": "#f6f8fa",
        "white_box": "#ddf4ff",
        "edge": "#0969da",
    },
    "dark": {
        "ink": "#e6edf3",
        "soft": "#9198a1",
        "line": "#656c76",
        "box": "#161b22",
        "white_box": "#0c2d6b",
        "edge": "#4493f8",
    },
}
WIDTH, HEIGHT = 1010, 392
# x, y, width, title, what happens, where the code is; the decoder is drawn larger.
TOP = [
    (10, 44, 126, "image", "any size", "data/ io/"),
    (186, 44, 150, "encoder", "any timm model", "encoders/ neck.py"),
    (694, 44, 126, "masks", "Z · Qᵀ per class", "model.py"),
    (870, 44, 130, "labels", "a class per pixel", "inference/"),
]
BOTTOM = [
    (386, 292, 168, "unroll → analysis", "what each step did", "analysis/ viz/"),
    (614, 292, 168, "training", "loss, resume, cache", "training/ config/"),
    (826, 292, 174, "use", "score, label maps, ONNX", "evaluation.py segment/"),
]


def box(x: int, y: int, width: int, title: str, what: str, where: str, height: int = 84) -> str:
    """A box with its title, what happens there, and where the code is."""
    middle = x + width / 2
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="title" x="{middle}" y="{y + 26}">{title}</text>'
        f'<text class="what" x="{middle}" y="{y + 47}">{what}</text>'
        f'<text class="where" x="{middle}" y="{y + 69}">{where}</text>'
    )


def decoder() -> str:
    """The large box of the decoder, with its two steps."""
    steps = [
        (112, "Z ← Z + step · MSSA(Z)", "compress or expand along bases P"),
        (170, "Q ← Q + step · MSCA(Q, Z)", "one direction per class"),
    ]
    parts = [
        '<rect class="white" x="386" y="10" width="258" height="232" rx="10"/>',
        '<text class="title" x="515" y="36">white-box decoder</text>',
        '<text class="what" x="515" y="57">steps on the coding rate R(PᵀZ)</text>',
        '<text class="where" x="515" y="79">decoders/ operators.py</text>',
    ]
    for y, formula, meaning in steps:
        parts.append(f'<rect class="step" x="400" y="{y - 20}" width="230" height="50" rx="6"/>')
        parts.append(f'<text class="formula" x="515" y="{y}">{formula}</text>')
        parts.append(f'<text class="small" x="515" y="{y + 19}">{meaning}</text>')
    parts.append('<text class="small" x="515" y="222">each layer: one matrix P, one step size</text>')
    return "".join(parts)


def arrow(points: str, label: str = "", x: float = 0, y: float = 0) -> str:
    """An arrow along `points`, with a label."""
    text = f'<text class="small" x="{x}" y="{y}">{label}</text>' if label else ""
    return f'<polyline class="arrow" points="{points}" marker-end="url(#head)"/>{text}'


def drawing(theme: dict[str, str]) -> str:
    """The whole picture in the colors of a theme."""
    ink, soft, line, fill, white_box, edge = theme.values()
    style = (
        "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;text-anchor:middle;"
        f"fill:{ink}}}.title{{font-size:16px;font-weight:600}}.what,.formula{{font-size:13px}}"
        f".small{{font-size:11.5px;fill:{soft}}}"
        f".where{{font-size:12px;fill:{edge};font-family:ui-monospace,SFMono-Regular,Menlo,monospace}}"
        f".box{{fill:{fill};stroke:{line}}}.white{{fill:{white_box};stroke:{edge};stroke-width:1.5}}"
        f".step{{fill:{fill};stroke:{edge}}}.arrow{{fill:none;stroke:{line};stroke-width:1.6}}.head{{fill:{line}}}"
    )
    arrows = [
        arrow("136,86 182,86"),
        arrow("336,86 382,86", "Z₀", 359, 78),
        arrow("644,86 690,86", "Z, Q", 667, 78),
        arrow("820,86 866,86"),
        arrow("470,242 470,288", "Z, Q, P of every step", 540, 270),
        arrow("757,128 757,210 698,210 698,288", "logits", 728, 203),
        arrow("935,128 935,288", "labels", 913, 203),
    ]
    parts = [*arrows, *(box(*item) for item in TOP + BOTTOM), decoder()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="An image becomes tokens, a white-box decoder refines them step by step, masks and labels follow">'
        f"<style>{style}</style>"
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>' + "".join(parts) + "</svg>\n"
    )


def main() -> None:
    """Write both themes."""
    for name, theme in THEMES.items():
        Path(__file__).with_name(f"architecture_{name}.svg").write_text(drawing(theme), encoding="utf-8")


if __name__ == "__main__":
    main()
