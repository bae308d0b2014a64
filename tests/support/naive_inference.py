"""Sliding-window inference as plain loops over whole tensors: slow and memory-hungry, but easy to check."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional


def upsampled(network, patch):
    """The network followed by upsampling and cropping to the size of its input."""

    def logits(images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        padded = (-(-height // patch[0]) * patch[0], -(-width // patch[1]) * patch[1])
        return F.interpolate(network(images), size=padded, mode="bilinear")[..., :height, :width]

    return logits


def naive_probabilities(
    network, image: Tensor, *, window, stride, short_edge, max_aspect, scales, flip, mean, std, patch_size, batch=8
) -> Tensor:
    """Probabilities (C, H, W) of an image uint8 (3, H, W); square window and stride."""
    network = upsampled(network, patch_size)
    height, width = image.shape[1:]
    total = None
    count = 0
    for scale in scales:
        if short_edge is None:
            size = [max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))]
        else:
            long, short = int(max_aspect * short_edge * scale), int(short_edge * scale)
            factor = min(long / max(height, width), short / min(height, width))
            size = [max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))]
        resized = functional.resize(image, size, functional.InterpolationMode.BILINEAR, antialias=False)
        for flipped in (False, True) if flip else (False,):
            x = (resized.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
            x = (x.flip(2) if flipped else x)[None]
            h, w = x.shape[2:]
            if min(h, w) < window:
                h, w = (window, int(w / h * window)) if h <= w else (int(h / w * window), window)
                x = F.interpolate(x, size=(h, w), mode="bilinear")
            tops = [*range(0, h - window, stride), h - window]
            lefts = [*range(0, w - window, stride), w - window]
            corners = [(top, left) for top in tops for left in lefts]
            crops = [x[0, :, top : top + window, left : left + window] for top, left in corners]
            outputs = [o for i in range(0, len(crops), batch) for o in network(torch.stack(crops[i : i + batch]))]
            logits = torch.zeros(outputs[0].shape[0], h, w)
            seen = torch.zeros(h, w)
            for (top, left), output in zip(corners, outputs, strict=True):
                logits[:, top : top + window, left : left + window] += output
                seen[top : top + window, left : left + window] += 1
            logits = F.interpolate((logits / seen)[None], size=(height, width), mode="bilinear")[0]
            probabilities = (logits.flip(2) if flipped else logits).softmax(0)
            total = probabilities if total is None else total + probabilities
            count += 1
    assert total is not None
    return total / count
