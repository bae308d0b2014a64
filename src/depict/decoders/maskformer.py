"""MaskFormer (Cheng et al. 2021), the real implementation of `transformers`, on the levels of any encoder.

A feature pyramid (the pixel decoder) brings the levels to features on the finest grid; a transformer decoder fits K
queries to the coarsest level; each query has a class, and a mask by its dot product with the features. Only these
heads are taken from `transformers`: the encoder is timm's, the loss is `matching.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.decoders.base import Grid, LevelDecoder
from depict.decoders.mask_classification import MaskClassifier, semantic_scores
from depict.decoders.matching import Queries
from depict.errors import UserError
from depict.operators import check_dropout, check_sizes

FEEDFORWARD = 2048
"""Hidden dimension of the transformer's MLPs."""
GROUPS = 32
"""Of the group norms in the pixel decoder: the width must be a multiple of it."""


class MaskFormer(MaskClassifier, LevelDecoder):
    """Levels (B, h, w, D), from the finest to the coarsest -> semantic scores (B, C, h, w) on the finest grid.

    `layers`, `heads` and `width` are those of the transformer decoder; the pixel decoder has the same width. The norms
    of the levels belong to the Swin encoder in the original.
    """

    def __init__(
        self,
        dims: Sequence[int],
        num_classes: int,
        layers: int = 6,
        heads: int = 8,
        queries: int = 100,
        width: int = 256,
        dropout: float = 0.1,
        deep_supervision: bool = True,
        segments: str = "classes",
        matching: str = "maskformer",
    ):
        check_sizes(layers=layers, heads=heads, queries=queries, width=width)
        check_dropout(dropout)
        if width % GROUPS or width % heads:
            raise UserError(f"the width {width} of maskformer must be a multiple of {GROUPS} and of its {heads} heads.")
        if len(dims) < 2:
            raise UserError(
                "maskformer needs an encoder with several levels: a hierarchical one, or a plain ViT with "
                "--encoder.blocks, such as 2 5 8 11."
            )
        super().__init__(dims, num_classes, segments, matching, deep_supervision)
        self.num_queries = queries
        parts = _transformers()
        self.norms = nn.ModuleList(nn.LayerNorm(each) for each in dims)
        self.pixel_decoder = parts.MaskFormerPixelDecoder(
            in_features=dims[-1], lateral_widths=list(dims[:-1]), feature_size=width, mask_feature_size=width
        )
        decoder = {
            "model_type": "detr",
            "d_model": width,
            "decoder_layers": layers,
            "decoder_attention_heads": heads,
            "decoder_ffn_dim": FEEDFORWARD,
            "num_queries": queries,
            "dropout": dropout,
        }
        config = parts.MaskFormerConfig(decoder_config=decoder)
        self.transformer = parts.MaskFormerTransformerModule(dims[-1], config)
        self.class_predictor = nn.Linear(width, num_classes + 1)
        self.mask_embedder = parts.MaskformerMLPPredictionHead(width, width, width)
        # As in the original, queries start from N(0, 1) and both heads with PyTorch's defaults: mask logits have a
        # standard deviation of about 1 at the start. With Xavier weights it would be about 5.
        for part in (self.pixel_decoder, self.transformer):
            for name, parameter in part.named_parameters():
                if parameter.ndim > 1 and "queries" not in name:
                    nn.init.xavier_uniform_(parameter)

    def forward(self, levels: Sequence[Tensor], grid: Grid) -> Tensor | Queries:  # type: ignore[override]
        """Semantic scores (B, C, h, w) of the levels; in training mode, `Queries`."""
        levels = [norm(level).permute(0, 3, 1, 2) for norm, level in zip(self.norms, levels, strict=True)]
        if self.training:  # on a CPU, the backward pass of 3 x 3 convolutions is slower in channels_last
            levels = [level.contiguous() for level in levels]
        pixels = self.pixel_decoder(levels).last_hidden_state  # (B, width, h, w)
        states = self.states(levels[-1], self.training and self.deep_supervision)  # (S, B, K, width)
        classes, embeddings = self.class_predictor(states), self.mask_embedder(states)
        # All steps in one product: broadcasting would copy the pixels for each.
        masks = embeddings.transpose(0, 1).flatten(1, 2) @ pixels.flatten(2)  # (B, S K, h w)
        masks = masks.unflatten(1, (len(states), -1)).transpose(0, 1).unflatten(-1, pixels.shape[-2:])
        if pixels.shape[-2:] != torch.Size(grid):  # an encoder whose finest level is coarser than the stride
            masks = F.interpolate(masks.flatten(0, 1), size=grid, mode="bilinear").unflatten(0, masks.shape[:2])
        if self.training:
            return Queries(masks, classes)
        return semantic_scores(masks[-1], classes[-1])

    def states(self, features: Tensor, every_layer: bool) -> Tensor:
        """Queries after the last layer of the transformer, or after each of them: (S, B, K, width)."""
        if not every_layer:
            return self.transformer(features).last_hidden_state[None]
        seen: list[Tensor] = []
        decoder = self.transformer.decoder
        hooks = [layer.register_forward_hook(lambda *call: seen.append(call[-1])) for layer in decoder.layers]
        try:
            self.transformer(features)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([decoder.layernorm(state) for state in seen])


def _transformers() -> Any:
    """The module of `transformers` that MaskFormer's parts are in; it is imported only here."""
    try:
        from transformers.models.maskformer import modeling_maskformer
    except ImportError as error:
        raise UserError("the decoder 'maskformer' needs transformers: pip install transformers.") from error
    return modeling_maskformer
