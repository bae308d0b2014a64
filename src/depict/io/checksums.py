"""Checksums of what is written, to be compared when it is read back.

SHA-256: with the processor's own instructions it takes a second for 1.5 GB, more than disks deliver.
A checksum finds damage and confusion, not forgery: who can change a file can change its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def checksum(*parts: bytes | memoryview) -> str:
    """The checksum of bytes, or of the memory of contiguous arrays (`array.data`), one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """The checksum of a file's content, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """The checksum of tensors with their names, types and shapes, in any order and on any device."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
