"""What the paper prints about the models of its tables. Free of torch.

The settings of a row are in its configuration (`configs/`, one YAML file per row); only the printed figures are here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

PATCH = 16
MASKFORMER = "ade20k/maskformer_swin_l"
BACKBONES: dict[str, tuple[str, int | tuple[int, ...]]] = {
    "vit_tiny_patch16_384": ("ViT-T", 192),
    "vit_small_patch16_384": ("ViT-S", 384),
    "vit_base_patch16_384": ("ViT-B", 768),
    "vit_large_patch16_384": ("ViT-L", 1024),
    "swin_large_patch4_window12_384": ("Swin-L", (192, 384, 768, 1536)),
}
"""timm's name of each encoder: the paper's name and the embedding dimension, or that of each level."""

_PRINTED = {  # table: label, configuration, parameters (M), FLOPs (G), mIoU (single-scale or single/multi-scale)
    "Table 1: ADE20K": [
        ("Segmenter", "ade20k/segmenter_vit_t", "1", "2.2", "38.1/38.8"),
        ("Segmenter", "ade20k/segmenter_vit_s", "4", "6.7", "45.3/46.9"),
        ("Segmenter", "ade20k/segmenter_vit_b", "16", "22.3", "48.5/50.0"),
        ("Segmenter", "ade20k/segmenter_vit_l", "28", "60.4", "51.8/53.6"),
        ("MaskFormer", MASKFORMER, "15", "47.7", "54.1/55.6"),
        ("DEPICT-CA", "ade20k/depict_ca_vit_t", "0.2", "1.4", "38.4/39.4"),
        ("DEPICT-CA", "ade20k/depict_ca_vit_s", "0.6", "3", "45.8/47.0"),
        ("DEPICT-CA", "ade20k/depict_ca_vit_b", "1", "4", "49.0/50.0"),
        ("DEPICT-CA", "ade20k/depict_ca_vit_l", "2.5", "16.5", "52.8/53.3"),
        ("DEPICT-SA", "ade20k/depict_sa_vit_t", "0.2", "2.9", "39.3/40.7"),
        ("DEPICT-SA", "ade20k/depict_sa_vit_s", "0.4", "3.4", "46.7/47.7"),
        ("DEPICT-SA", "ade20k/depict_sa_vit_b", "0.8", "4.2", "49.2/50.7"),
        ("DEPICT-SA", "ade20k/depict_sa_vit_l_512", "2", "9.5", "52.5/54.0"),
        ("DEPICT-SA", "ade20k/depict_sa_vit_l", "2", "17.8", "52.9/54.3"),
    ],
    "Table 2: Cityscapes and Pascal Context": [
        ("Cityscapes, Segmenter", "cityscapes/segmenter_vit_l", "15.8", "45.2", "79.1/81.3"),
        ("Cityscapes, DEPICT-SA", "cityscapes/depict_sa_vit_l", "0.1", "2.4", "78.8/81.0"),
        ("Pascal Context, Segmenter", "pascal_context/segmenter_vit_l", "28.4", "30.0", "58.1/59.0"),
        ("Pascal Context, DEPICT-SA", "pascal_context/depict_sa_vit_l", "1.6", "5.6", "57.9/58.6"),
    ],
    "Ablation, left: ADE20K": [
        ("MSSA + ISTA", "ade20k/ablation_mssa_ista", "0.47", "", "45.6"),
        ("heads = 1", "ade20k/ablation_heads_1", "0.47", "", "45.4"),
        ("heads = 5", "ade20k/ablation_heads_5", "0.47", "", "45.6"),
        ("layers = 1", "ade20k/ablation_layers_1", "0.27", "", "45.2"),
        ("layers = 3", "ade20k/ablation_layers_3", "0.68", "", "45.8"),
        ("dropout = 0.1", "ade20k/ablation_dropout", "0.47", "", "45.2"),
        ("MSSA only", "ade20k/ablation_mssa", "0.18", "", "45.4"),
        ("ISTA only", "ade20k/ablation_ista", "0.36", "", "44.9"),
        ("MSSA + MLP", "ade20k/ablation_mssa_mlp", "2.5", "", "46.2"),
        ("MHSA + ISTA", "ade20k/ablation_mhsa_ista", "1.5", "", "44.9"),
        ("MHSA + MLP (Segmenter)", "ade20k/ablation_mhsa_mlp", "4.1", "", "45.3"),
        ("DEPICT-SA", "ade20k/ablation_depict_sa", "0.41", "", "46.7"),
    ],
    "Ablation, right: heads x head dimension on ADE20K": [
        ("1 x 300", "ade20k/heads_1x300_vit_s", "", "", "45.0"),
        ("2 x 150", "ade20k/heads_2x150_vit_s", "", "", "45.7"),
        ("3 x 100", "ade20k/heads_3x100_vit_s", "", "", "46.7"),
        ("4 x 75", "ade20k/heads_4x75_vit_s", "", "", "46.3"),
        ("1 x 384", "ade20k/heads_1x384_vit_s", "", "", "46.2"),
        ("3 x 50", "ade20k/heads_3x50_vit_b", "", "", "48.8"),
        ("3 x 100", "ade20k/heads_3x100_vit_b", "", "", "49.3"),
        ("3 x 150", "ade20k/heads_3x150_vit_b", "", "", "49.4"),
        ("3 x 200", "ade20k/heads_3x200_vit_b", "", "", "49.4"),
        ("3 x 250", "ade20k/heads_3x250_vit_b", "", "", "49.5"),
    ],
    "CBT, the same authors' next decoder: ADE20K": [
        ("CBT", "ade20k/cbt_vit_t", "", "", "39.1"),
        ("CBT", "ade20k/cbt_vit_s", "", "", "45.8"),
        ("CBT", "ade20k/cbt_vit_b", "", "", "49.3"),
        ("CBT", "ade20k/cbt_vit_l", "", "", "53.3"),
    ],
}
_NOTES = {
    "cityscapes/depict_sa_vit_l": "0.1 M is the size of one layer; the printed FLOPs are those of two",
    MASKFORMER: "pixel decoder 6.246 M, transformer decoder 10.128 M, norms of the levels 0.006 M",
}


@dataclass(frozen=True)
class Row:
    """One row of a table: a model and the figures that the paper prints for it ('' where it prints none)."""

    table: str
    label: str
    parameters: str
    """Of the decoder, in millions."""
    flops: str
    """Of the decoder for one image, in billions of multiply-adds."""
    miou: str
    """Single-scale, or single-scale/multi-scale."""
    note: str
    backbone: str
    image_size: int
    """Side of the square input in pixels."""
    classes: int
    config: str
    """The configuration of the model."""
    decoder: str
    options: dict[str, Any]
    """Options of the decoder."""
    dim: int | tuple[int, ...]
    """Embedding dimension of the backbone, or of each of its levels."""
    stride: int
    """Cell of the decoder's grid in pixels."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size // self.stride, self.image_size // self.stride


@functools.cache
def paper_rows() -> tuple[Row, ...]:
    """Every row of the paper's tables, in the paper's order."""
    return tuple(_row(table, *printed) for table, lines in _PRINTED.items() for printed in lines)


def _row(table: str, label: str, config: str, parameters: str, flops: str, miou: str) -> Row:
    from depict.config.presets import load_config
    from depict.data import dataset_class

    printed = (table, label, parameters, flops, miou, _NOTES.get(config, ""))
    settings = load_config(config)
    backbone, dim = BACKBONES[settings.encoder.name]
    assert isinstance(settings.image_size, int) and settings.data.name is not None
    return Row(
        *printed,
        backbone=backbone,
        image_size=settings.image_size,
        classes=len(dataset_class(settings.data.name).classes),
        config=config,
        decoder=settings.decoder.name,
        options=settings.decoder.options(),
        dim=dim,
        stride=settings.stride or PATCH,
    )


MASKFORMER_COSTS = (16_380_183, 41_137_100_800)
"""Parameters and multiply-adds of MaskFormer's heads, for a machine without transformers, which they are built from."""
FOOTNOTES = [
    "The appendix gives the 3x50 exception of DEPICT-CA to ViT-S; its numbers are those of ViT-T.",
    "The appendix gives 4 layers to Pascal Context; its numbers are those of 6.",
    "Cityscapes, DEPICT-SA: 0.1 M is one layer while 2.4 G is two.",
    "ViT-B with 3x100 is 49.2 in Table 1 and 49.3 in the ablation.",
    "CBT's authors print 1.5, 2.3, 7.8 and 22.3 GFLOPs: 2 per multiply-add, of the attention layers alone. They state "
    "no settings; 3, 3, 6 and 9 layers of 3x100 give these figures, the last at 640 pixels.",
    "MaskFormer's heads are 16.374 M; the norms of the levels, which its authors count to the Swin, are the rest. A "
    "result needs the masks of the last layer; with those of all six, as in training, the heads take 44.1 G.",
]
"""Where the paper's figures contradict each other or are not computed here."""
SUBSET = {
    "segmenter": {4000: "38.31", 8000: "41.87", 12000: "43.42", 16000: "44.61", 20000: "45.37"},
    "depict_sa": {4000: "36.42", 8000: "41.75", 12000: "43.34", 16000: "45.12", 20000: "46.72"},
    "depict_ca": {4000: "35.68", 8000: "41.11", 12000: "42.33", 16000: "44.61", 20000: "45.76"},
}
"""mIoU by number of training images: ADE20K, ViT-S, single-scale."""
PERTURBATION = {
    "ViT-S": {"P O_K": ("42.4", "14.6"), "P'_h O_M": ("46.7", "45.3"), "Ortho(P'_h)": ("42.6", "15.0")},
    "ViT-B": {"P O_K": ("47.3", "1.2"), "P'_h O_M": ("49.2", "48.5"), "Ortho(P'_h)": ("45.7", "1.2")},
    "ViT-L": {"P O_K": ("52.0", "0.6"), "P'_h O_M": ("52.9", "51.8"), "Ortho(P'_h)": ("51.8", "0.6")},
}
"""Single-scale mIoU of DEPICT-SA and Segmenter on ADE20K, perturbed; Segmenter's follows from the printed gains."""
