"""Parameter names of the official checkpoints (DEPICT, CBT and Segmenter), translated to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

_BLOCKS = r"blocks\.(\d+)\."

# (official, ours); the first pattern that matches the full name applies. Segmenter's block i is our sub-blocks 2i
# (attention) and 2i + 1 (feed-forward).
_RENAMES = [
    (r"cls_emb", lambda m: "class_embeddings"),
    (r"(?:net|snet)\.layers\.(\d+)\.norm\.(\w+)", lambda m: f"layers.{m[1]}.norm.{m[2]}"),
    (r"(?:net|snet)\.layers\.(\d+)\.fn\.proj", lambda m: f"layers.{m[1]}.operator.P"),
    (r"net\.layers\.(\d+)\.fn\.proj\.weight", lambda m: f"layers.{m[1]}.operator.P"),
    (r"net\.layers\.(\d+)\.fn\.(to_out\.\w+|step_x|step_rep)", lambda m: f"layers.{m[1]}.operator.{m[2]}"),
    (r"(?:net|snet)\.layers\.(\d+)\.fn\.step_size", lambda m: f"layers.{m[1]}.operator.step_size"),
    (r"cnet\.layers\.(\d+)\.norm\.(\w+)", lambda m: f"cross_layers.{m[1]}.norm.{m[2]}"),
    (r"cnet\.layers\.(\d+)\.fn\.proj", lambda m: f"cross_layers.{m[1]}.operator.P"),
    (r"cnet\.layers\.(\d+)\.fn\.step_size", lambda m: f"cross_layers.{m[1]}.operator.step_size"),
    (r"(?:decoder_norm|snorm)\.(\w+)", lambda m: f"norm.{m[1]}"),
    (r"cnorm\.(\w+)", lambda m: f"class_norm.{m[1]}"),
    (r"proj_dec\.(\w+)", lambda m: f"proj_in.{m[1]}"),
    (r"proj_patch", lambda m: "proj_patches"),
    (_BLOCKS + r"norm1\.(\w+)", lambda m: f"layers.{2 * int(m[1])}.norm.{m[2]}"),
    (_BLOCKS + r"attn\.(qkv|proj)\.(\w+)", lambda m: f"layers.{2 * int(m[1])}.{m[2]}.{m[3]}"),
    (_BLOCKS + r"norm2\.(\w+)", lambda m: f"layers.{2 * int(m[1]) + 1}.norm.{m[2]}"),
    (_BLOCKS + r"mlp\.(fc[12])\.(\w+)", lambda m: f"layers.{2 * int(m[1]) + 1}.{m[2]}.{m[3]}"),
]


def our_decoder_name(official: str) -> str:
    """Our name of a decoder parameter, given the authors' (without the `decoder.` prefix)."""
    for pattern, rename in _RENAMES:
        match = re.fullmatch(pattern, official)
        if match:
            return rename(match)
    return official


def our_decoder_state(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A decoder's state dict in our names and shapes: class embeddings (1, C, D) become (C, D)."""
    state = {our_decoder_name(name): tensor for name, tensor in official.items()}
    if "class_embeddings" in state:
        state["class_embeddings"] = state["class_embeddings"].squeeze(0)
    return state
