"""The released decoders, written out from their equations: no fused attention, no torch.nn, one head at a time.

Shares no code with depict. Tensors carry the authors' names, without the `decoder.` prefix; the dtype is the tensors'.
Agrees with the authors' own vectors (tests/decoders/test_reference.py) and runs where those are not present.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass
class Decoded:
    masks: Tensor
    """(B, N, C)"""
    Z: list[Tensor] = field(default_factory=list)
    """Patch embeddings after each step, (B, N, D)."""
    Q: list[Tensor] = field(default_factory=list)
    """Class embeddings after each step, (B, C, D)."""


def linear_decoder(s: State, Z: Tensor) -> Decoded:
    return Decoded(Z @ s["head.weight"].T + s["head.bias"])


def depict_sa(s: State, Z: Tensor, heads: int) -> Decoded:
    """MSSA on [patches, classes], then one LayerNorm for both."""
    N, steps = Z.shape[1], []
    X = torch.cat([Z, s["cls_emb"].expand(len(Z), -1, -1)], 1)
    for layer in layers(s, "net.layers"):
        X = X + subspace_step(s, layer, layer_norm(s, f"{layer}.norm", X), None, heads)
        steps.append(X)
    X = layer_norm(s, "decoder_norm", X)
    return Decoded(cosine_masks(s, X[:, :N], X[:, N:]), [Y[:, :N] for Y in steps], [Y[:, N:] for Y in steps])


def depict_ca(s: State, Z: Tensor, heads: int, cross_heads: int) -> Decoded:
    """MSSA on the patches, a LayerNorm, then MSCA of the classes against the fixed patches."""
    Q, Z_steps, Q_steps = s["cls_emb"].expand(len(Z), -1, -1), [], []
    for layer in layers(s, "snet.layers"):
        Z = Z + subspace_step(s, layer, layer_norm(s, f"{layer}.norm", Z), None, heads)
        Z_steps.append(Z)
        Q_steps.append(Q)
    Z = layer_norm(s, "snorm", Z)
    for layer in layers(s, "cnet.layers"):
        Q = Q + subspace_step(s, layer, layer_norm(s, f"{layer}.norm", Z), Q, cross_heads)
        Z_steps.append(Z)
        Q_steps.append(Q)
    return Decoded(cosine_masks(s, Z, layer_norm(s, "cnorm", Q)), Z_steps, Q_steps)


def cbt(s: State, Z: Tensor, heads: int, grid: tuple[int, int]) -> Decoded:
    """DEPICT-SA's frame with contract-and-broadcast attention, 10 x 10 representatives."""
    N, steps = Z.shape[1], []
    X = torch.cat([Z, s["cls_emb"].expand(len(Z), -1, -1)], 1)
    for layer in layers(s, "net.layers"):
        X = X + contract_and_broadcast(s, layer, layer_norm(s, f"{layer}.norm", X), heads, grid)
        steps.append(X)
    X = layer_norm(s, "decoder_norm", X)
    return Decoded(cosine_masks(s, X[:, :N], X[:, N:]), [Y[:, :N] for Y in steps], [Y[:, N:] for Y in steps])


def contract_and_broadcast(s: State, layer: str, Y: Tensor, heads: int, grid: tuple[int, int]) -> Tensor:
    P = s[f"{layer}.fn.proj.weight"]
    size = len(P) // heads
    updates = []
    for h in range(heads):
        W = Y @ P[h * size : (h + 1) * size].T
        R = cell_means(W[:, : grid[0] * grid[1]], grid)
        contract = softmax(R @ W.transpose(1, 2) / math.sqrt(size))
        R = R + s[f"{layer}.fn.step_rep"][h] * (contract @ W)
        mixed = softmax(R @ R.transpose(1, 2) / math.sqrt(size)) @ R
        updates.append(s[f"{layer}.fn.step_x"][h] * (contract.transpose(1, 2) @ mixed))
    return affine(s, f"{layer}.fn.to_out", torch.cat(updates, -1))


def cell_means(W: Tensor, grid: tuple[int, int], side: int = 10) -> Tensor:
    """Means of W (B, h * w, M) in side x side cells that cover the grid and may overlap: (B, side^2, M)."""
    maps = W.reshape(len(W), *grid, -1)
    means = []
    for i in range(side):
        for j in range(side):
            rows, columns = (
                slice(math.floor(k * length / side), math.ceil((k + 1) * length / side))
                for k, length in zip((i, j), grid, strict=True)
            )
            means.append(maps[:, rows, columns].flatten(1, 2).mean(1))
    return torch.stack(means, 1)


def mask_transformer(s: State, Z: Tensor, heads: int) -> Decoded:
    """Segmenter: pre-norm transformer blocks on [patches, classes]; a step is one attention or feed-forward."""
    N, steps = Z.shape[1], []
    Z = Z @ s["proj_dec.weight"].T + s["proj_dec.bias"]
    X = torch.cat([Z, s["cls_emb"].expand(len(Z), -1, -1)], 1)
    for block in layers(s, "blocks"):
        for half in transformer_block(s, block, X, heads):
            X = half
            steps.append(X)
    X = layer_norm(s, "decoder_norm", X)
    masks = cosine_masks(s, X[:, :N] @ s["proj_patch"], X[:, N:] @ s["proj_classes"])
    return Decoded(masks, [Y[:, :N] for Y in steps], [Y[:, N:] for Y in steps])


def subspace_step(s: State, layer: str, Y: Tensor, Q: Tensor | None, heads: int) -> Tensor:
    """The update of MSSA (Q is None: queries are the tokens Y) or MSCA (queries Q, keys and values Y)."""
    P = s[f"{layer}.fn.proj"]
    size = len(P) // heads
    update = 0
    for h in range(heads):
        basis = P[h * size : (h + 1) * size]
        keys = Y @ basis.T
        queries = keys if Q is None else Q @ basis.T
        update = update + attend(queries, keys, keys) @ basis
    return s[f"{layer}.fn.step_size"] * update


def transformer_block(s: State, block: str, X: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """X after the attention and after the feed-forward of a pre-norm block."""
    D = X.shape[-1]
    size = D // heads
    qkv = affine(s, f"{block}.attn.qkv", layer_norm(s, f"{block}.norm1", X))
    mixed = []
    for h in range(heads):
        queries, keys, values = (qkv[..., i * D + h * size : i * D + (h + 1) * size] for i in range(3))
        mixed.append(attend(queries, keys, values))
    X = X + affine(s, f"{block}.attn.proj", torch.cat(mixed, -1))
    hidden = affine(s, f"{block}.mlp.fc1", layer_norm(s, f"{block}.norm2", X))
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return X, X + affine(s, f"{block}.mlp.fc2", hidden)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return softmax(queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[-1])) @ values


def softmax(scores: Tensor) -> Tensor:
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    return weights / weights.sum(-1, keepdim=True)


def cosine_masks(s: State, Z: Tensor, Q: Tensor) -> Tensor:
    Z = Z / (Z * Z).sum(-1, keepdim=True).sqrt()
    Q = Q / (Q * Q).sum(-1, keepdim=True).sqrt()
    return layer_norm(s, "mask_norm", Z @ Q.transpose(1, 2))


def layer_norm(s: State, name: str, X: Tensor) -> Tensor:
    centered = X - X.mean(-1, keepdim=True)
    variance = (centered * centered).mean(-1, keepdim=True)
    return centered / (variance + 1e-5).sqrt() * s[f"{name}.weight"] + s[f"{name}.bias"]


def affine(s: State, name: str, X: Tensor) -> Tensor:
    return X @ s[f"{name}.weight"].T + s[f"{name}.bias"]


def layers(s: State, prefix: str) -> list[str]:
    """The names of the layers under a prefix, in order."""
    count = 1 + max(int(name.split(".")[prefix.count(".") + 1]) for name in s if name.startswith(f"{prefix}."))
    return [f"{prefix}.{index}" for index in range(count)]


def decode(
    s: State, Z: Tensor, heads: int = 1, cross_heads: int | None = None, grid: tuple[int, int] | None = None
) -> Decoded:
    """Run the decoder that the tensor names belong to on Z (B, N, D); only CBT needs the grid."""
    if "head.weight" in s:
        return linear_decoder(s, Z)
    if "proj_dec.weight" in s:
        return mask_transformer(s, Z, heads)
    if "snorm.weight" in s:
        return depict_ca(s, Z, heads, cross_heads or heads)
    if "net.layers.0.fn.to_out.weight" in s:
        assert grid is not None
        return cbt(s, Z, heads, grid)
    return depict_sa(s, Z, heads)
