"""Analyses of a decoder alone, on tokens that a test has planted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.decoders.base import Decoder
from depict.inference.sliding import Layout


def analyze_tokens(analysis: type[Analysis], decoder: Decoder, *images: Tensor, name: str = "depict_sa") -> Result:
    """The result on images of these patch tokens (N, D); the decoder is in evaluation mode."""
    classes = [f"class {index}" for index in range(decoder.num_classes)]
    config = SimpleNamespace(decoder=SimpleNamespace(name=name))
    model = SimpleNamespace(
        decoder=decoder.eval(),
        classes=classes,
        num_classes=len(classes),
        palette=[(0, 0, 0)] * len(classes),
        config=config,
        stride=(1, 1),
        layout=lambda height, width: Layout(*[(height, width)] * 4),
    )
    running = analysis(model)  # type: ignore[arg-type]
    for Z in images:
        with torch.no_grad():
            trace = decoder.unroll(Z[None], (1, len(Z)))
        running.update(Sample("image", np.zeros((1, len(Z), 3), np.uint8), None, trace, None))
    return running.compute()


def orthonormal(rows: int, dim: int, seed: int = 0) -> Tensor:
    """Random orthonormal rows (rows, dim) in float64."""
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=g, dtype=torch.float64)).Q[:rows]
