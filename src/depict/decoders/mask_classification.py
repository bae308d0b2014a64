"""Mask classification: K queries per image, each with a mask and a class, as in MaskFormer (Cheng et al. 2021).

The semantic result is made of all of them: a class scores sum_k p_k(c) sigmoid(m_k) at a patch, where p_k are the class
probabilities of query k and m_k its mask. Decoders return its logarithm, so that it goes through sliding windows and
softmax like the logits of any other decoder.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from depict.decoders.base import Decoder
from depict.decoders.matching import SEGMENTS, TERMS, Queries, matching_loss
from depict.errors import unknown

RANGE = 1e-6
"""Scores below this share of a patch's largest count as this share: their logarithms would drown the others when masks
are enlarged."""
SMALLEST_SCORE = 1e-30
"""Scores below it count as this, so that their logarithm exists."""


class MaskClassifier(Decoder):
    """A decoder with queries. In training mode it returns `Queries`, which `loss` compares with the labels.

    `segments`: what a query learns, see `matching.SEGMENTS`. `matching`: the loss, one of `matching.TERMS`.
    `deep_supervision`: apply the loss to the masks and classes of every earlier step as well.
    """

    owns_loss = True
    num_queries: int
    """K."""

    def __init__(self, dim: Any, num_classes: int, segments: str, matching: str, deep_supervision: bool):
        super().__init__(dim, num_classes)
        for name, value, known in (("segments", segments, SEGMENTS), ("matching", matching, TERMS)):
            if value not in known:
                raise unknown(name, value, known)
        self.segments, self.terms, self.deep_supervision = segments, TERMS[matching], deep_supervision

    def loss(self, outputs: Queries, labels: Tensor, multiple: tuple[int, int]) -> Tensor:
        """The matching loss of what `forward` returns in training mode, the mean over the images."""
        return matching_loss(outputs, labels, multiple, self.terms, self.segments)


def semantic_scores(masks: Tensor, classes: Tensor) -> Tensor:
    """log sum_k p_k(c) sigmoid(m_k) of masks (B, K, h, w) and class logits (B, K, C + 1): (B, C, h, w)."""
    probabilities = classes.float().softmax(-1)[..., :-1]  # "no object" is not a class
    scores = (probabilities.mT @ masks.float().sigmoid().flatten(2)).unflatten(-1, masks.shape[-2:])
    logs = scores.clamp(min=SMALLEST_SCORE).log()
    return logs.maximum(logs.amax(1, keepdim=True) + math.log(RANGE))
