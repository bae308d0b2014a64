"""Files that strangers might send: small ones that grow, and names that deceive."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import torch

NAMES = {
    "not UTF-8": os.fsdecode(b"caf\xe9"),
    "line break": "ready for training\ndepict",
    "escape sequence": "\x1b[2J\x1b]0;title\x07",
    "carriage return": "a\rdepict: all is well",
    "right to left": "gnp.\u202efdp",
    "C1 control": "\x9b31m",
    "delete": "a\x7f\x08\x08b",
    "quotes": "'\"`$(id)`",
    "markup": "<img src=x onerror=alert(1)>",
    "link": "[click](javascript:alert(1))",
    "dots": "...",
    "long": "n" * 200,
}
"""Names of files that could break a program, forge its output, or control a terminal."""


def is_clean(printed: bytes) -> bool:
    """Whether output is UTF-8, and free of control characters other than line ends, and the \\r of a progress bar."""
    text = printed.decode("utf-8")
    return all(character.isprintable() or character in "\n\r\u200c\u200d" or character.isspace() for character in text)


def write_compressed(path: Path, size: int) -> None:
    """A .pth of one tensor of `size` bytes, compressed to about a thousandth."""
    plain = path.with_suffix(".plain")
    torch.save({"a": torch.zeros(size // 4)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    plain.unlink()
