"""What the paper prints: the decoders of its tables, with their sizes and costs. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DIMS = {"ViT-T": 192, "ViT-S": 384, "ViT-B": 768, "ViT-L": 1024}

PARAMETERS_SLIP = "0.1 M is the size of one layer; the printed FLOPs are those of two"
NOT_COMPUTED = "not computed here: pixel decoder 6.246 M + transformer predictor 10.128 M, heads with auxiliary masks"


@dataclass(frozen=True)
class Row:
    """One row of a table: a decoder on a backbone, and the figures printed for it ('' where none is)."""

    table: str
    label: str
    backbone: str
    side: int
    """Side of the square input in pixels; patches are 16 x 16."""
    classes: int
    decoder: str
    options: dict[str, Any] = field(default_factory=dict)
    parameters: str = ""
    """As printed, in millions."""
    flops: str = ""
    """As printed, in billions of multiply-adds."""
    miou: str = ""
    """As printed, single-scale or single-scale / multi-scale."""
    note: str = ""


def _sa(layers: int, heads: int, head_dim: int) -> dict[str, Any]:
    return {"layers": layers, "heads": heads, "head_dim": head_dim}


def _ca(layers: int, head_dim: int) -> dict[str, Any]:
    return _sa(layers, 3, head_dim) | {"cross_layers": 3, "cross_heads": 3, "cross_head_dim": 50}


_TABLE_1 = "Table 1: ADE20K"
_TABLE_2 = "Table 2: Cityscapes and Pascal Context"
_ABLATION_LEFT = "Ablation, left: ADE20K"
_ABLATION_RIGHT = "Ablation, right: heads x head dimension on ADE20K"
_SEGMENTER_1 = {"layers": 1}
_SEGMENTER_2 = {"layers": 2}

ROWS = [
    Row(_TABLE_1, "Segmenter", "ViT-T", 512, 150, "segmenter", _SEGMENTER_2, "1", "2.2", "38.1/38.8"),
    Row(_TABLE_1, "Segmenter", "ViT-S", 512, 150, "segmenter", _SEGMENTER_2, "4", "6.7", "45.3/46.9"),
    Row(_TABLE_1, "Segmenter", "ViT-B", 512, 150, "segmenter", _SEGMENTER_2, "16", "22.3", "48.5/50.0"),
    Row(_TABLE_1, "Segmenter", "ViT-L", 640, 150, "segmenter", _SEGMENTER_2, "28", "60.4", "51.8/53.6"),
    Row(_TABLE_1, "MaskFormer", "Swin-L", 640, 150, "", {}, "15", "47.7", "54.1/55.6", NOT_COMPUTED),
    Row(_TABLE_1, "DEPICT-CA", "ViT-T", 512, 150, "depict_ca", _ca(3, 50), "0.2", "1.4", "38.4/39.4"),
    Row(_TABLE_1, "DEPICT-CA", "ViT-S", 512, 150, "depict_ca", _ca(3, 100), "0.6", "3", "45.8/47.0"),
    Row(_TABLE_1, "DEPICT-CA", "ViT-B", 512, 150, "depict_ca", _ca(3, 100), "1", "4", "49.0/50.0"),
    Row(_TABLE_1, "DEPICT-CA", "ViT-L", 640, 150, "depict_ca", _ca(6, 100), "2.5", "16.5", "52.8/53.3"),
    Row(_TABLE_1, "DEPICT-SA", "ViT-T", 512, 150, "depict_sa", _sa(3, 3, 100), "0.2", "2.9", "39.3/40.7"),
    Row(_TABLE_1, "DEPICT-SA", "ViT-S", 512, 150, "depict_sa", _sa(3, 3, 100), "0.4", "3.4", "46.7/47.7"),
    Row(_TABLE_1, "DEPICT-SA", "ViT-B", 512, 150, "depict_sa", _sa(3, 3, 100), "0.8", "4.2", "49.2/50.7"),
    Row(_TABLE_1, "DEPICT-SA", "ViT-L", 512, 150, "depict_sa", _sa(6, 3, 100), "2", "9.5", "52.5/54.0"),
    Row(_TABLE_1, "DEPICT-SA", "ViT-L", 640, 150, "depict_sa", _sa(6, 3, 100), "2", "17.8", "52.9/54.3"),
    Row(_TABLE_2, "Cityscapes, Segmenter", "ViT-L", 768, 19, "segmenter", _SEGMENTER_1, "15.8", "45.2", "79.1/81.3"),
    Row(
        _TABLE_2,
        "Cityscapes, DEPICT-SA",
        "ViT-L",
        768,
        19,
        "depict_sa",
        _sa(2, 4, 19),
        "0.1",
        "2.4",
        "78.8/81.0",
        PARAMETERS_SLIP,
    ),
    Row(
        _TABLE_2, "Pascal Context, Segmenter", "ViT-L", 480, 60, "segmenter", _SEGMENTER_2, "28.4", "30.0", "58.1/59.0"
    ),
    Row(_TABLE_2, "Pascal Context, DEPICT-SA", "ViT-L", 480, 60, "depict_sa", _sa(6, 4, 60), "1.6", "5.6", "57.9/58.6"),
]


def _mixture(label: str, parameters: str, miou: str, **options: Any) -> Row:
    return Row(_ABLATION_LEFT, label, "ViT-S", 512, 150, "ablation", options, parameters, miou=miou)


ROWS += [
    _mixture("MSSA + ISTA", "0.47", "45.6"),
    _mixture("heads = 1", "0.47", "45.4", heads=1, head_dim=150),
    _mixture("heads = 5", "0.47", "45.6", heads=5, head_dim=30),
    _mixture("layers = 1", "0.27", "45.2", layers=1),
    _mixture("layers = 3", "0.68", "45.8", layers=3),
    _mixture("dropout = 0.1", "0.47", "45.2", dropout=0.1),
    _mixture("MSSA only", "0.18", "45.4", feedforward="none"),
    _mixture("ISTA only", "0.36", "44.9", attention="none"),
    _mixture("MSSA + MLP", "2.5", "46.2", feedforward="mlp"),
    _mixture("MHSA + ISTA", "1.5", "44.9", attention="mhsa"),
    Row(_ABLATION_LEFT, "MHSA + MLP (Segmenter)", "ViT-S", 512, 150, "segmenter", _SEGMENTER_2, "4.1", miou="45.3"),
    Row(_ABLATION_LEFT, "DEPICT-SA", "ViT-S", 512, 150, "depict_sa", _sa(3, 3, 100), "0.41", miou="46.7"),
]

_HEADS = [
    ("ViT-S", [(1, 300, "45.0"), (2, 150, "45.7"), (3, 100, "46.7"), (4, 75, "46.3"), (1, 384, "46.2")]),
    ("ViT-B", [(3, 50, "48.8"), (3, 100, "49.3"), (3, 150, "49.4"), (3, 200, "49.4"), (3, 250, "49.5")]),
]
ROWS += [
    Row(_ABLATION_RIGHT, f"{heads} x {dim}", backbone, 512, 150, "depict_sa", _sa(3, heads, dim), miou=miou)
    for backbone, sizes in _HEADS
    for heads, dim, miou in sizes
]

SUBSET = {
    "segmenter": {4000: "38.31", 8000: "41.87", 12000: "43.42", 16000: "44.61", 20000: "45.37"},
    "depict_sa": {4000: "36.42", 8000: "41.75", 12000: "43.34", 16000: "45.12", 20000: "46.72"},
    "depict_ca": {4000: "35.68", 8000: "41.11", 12000: "42.33", 16000: "44.61", 20000: "45.76"},
}
"""mIoU by number of training images: ADE20K, ViT-S, single-scale."""

FOOTNOTES = [
    "The appendix gives the 3x50 exception of DEPICT-CA to ViT-S; its numbers are those of ViT-T.",
    "The appendix gives 4 layers to Pascal Context; its numbers are those of 6.",
    "Cityscapes, DEPICT-SA: 0.1 M is one layer while 2.4 G is two.",
    "ViT-B with 3x100 is 49.2 in Table 1 and 49.3 in the ablation.",
    "MaskFormer is shown from measurements elsewhere (16.374 M, 44.2 G), not computed here.",
]
MASKFORMER = (16_374_000, 44_200_000_000)
"""Parameters and multiply-adds of MaskFormer's heads on Swin-L at 640, measured elsewhere."""
PERTURBATION = {
    "ViT-S": {"P O_K": ("42.4", "14.6"), "P'_h O_M": ("46.7", "45.3"), "Ortho(P'_h)": ("42.6", "15.0")},
    "ViT-B": {"P O_K": ("47.3", "1.2"), "P'_h O_M": ("49.2", "48.5"), "Ortho(P'_h)": ("45.7", "1.2")},
    "ViT-L": {"P O_K": ("52.0", "0.6"), "P'_h O_M": ("52.9", "51.8"), "Ortho(P'_h)": ("51.8", "0.6")},
}
"""mIoU of perturbed DEPICT-SA and Segmenter on ADE20K, single-scale; Segmenter's by subtracting the printed gain."""
