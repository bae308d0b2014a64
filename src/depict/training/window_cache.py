"""Validating with a frozen encoder: every window is encoded once, whatever decoder is validated.

The tokens of a window are kept on disk under a hash of its pixels, so no window can get those of
another. They are rounded to float16, as in the cache for training, also when they are new: a
validation does not depend on what was cached before. Each process appends records of one size (hash,
checksum, tokens) to a file of its own, the first that no other process has locked. It reads the files
of all processes, so trainings that run at the same time share their windows. A record that a crash has
cut is dropped, a damaged one is encoded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from depict.errors import UserError
from depict.inference.torch_backend import Network
from depict.io.files import need_space
from depict.training.feature_builder import MAKE_ROOM, default_folder, encoder_key
from depict.training.feature_cache import feature_grid, feature_shape

if TYPE_CHECKING:
    from depict.model import SegmentationModel

FORMAT = 1
"""Part of every file's name; raised when the content changes."""
HASH, CHECKSUM = 16, 4
"""Bytes of a window's hash and of a record's checksum."""
MOST_FILES = 100
"""Processes that can keep windows at the same time; further ones only read."""


class WindowCache:
    """The tokens of all windows that the encoder of `model` has seen, in files in `folder`.

    Use it in a `with` statement.
    """

    def __init__(self, model: SegmentationModel, folder: Path | None = None):
        self.window, self.grid = model.image_size, feature_grid(model)
        self.shape = feature_shape(model)
        self.record = HASH + CHECKSUM + 2 * math.prod(self.shape)
        self.folder = default_folder() if folder is None else Path(folder)
        self.key = hashlib.sha256(f"{FORMAT} {encoder_key(model)} {self.window}".encode()).hexdigest()[:32]
        self.places: dict[bytes, tuple[BinaryIO, int]] = {}
        """Where the record of a window begins: the file, and its byte."""
        self.files: dict[Path, tuple[BinaryIO, int]] = {}
        """The files of all processes, and how many of their records are in `places`."""
        self.output: BinaryIO | None = None

    def __enter__(self) -> WindowCache:
        self.stack = contextlib.ExitStack()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.output = self._own_file()
        except OSError as error:
            self.stack.close()
            raise UserError(
                f"cannot keep features in '{self.folder}': {error.strerror or error}: {MAKE_ROOM}."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.places, self.files, self.output = {}, {}, None
        with contextlib.suppress(OSError):  # a record that did not fit is still in the buffer of its file
            self.stack.close()

    def _own_file(self) -> BinaryIO | None:
        """The first file that no other process appends to, without a record that was cut; None if all are taken."""
        for number in range(MOST_FILES):
            path = self.folder / f"{self.key}.{number}.windows"
            with contextlib.suppress(Timeout):
                self.stack.enter_context(FileLock(path.with_suffix(".lock"), blocking=False))
                file = self.stack.enter_context(path.open("a+b"))
                file.truncate(file.seek(0, os.SEEK_END) // self.record * self.record)
                return file
        return None

    def _index(self) -> None:
        """Note where the record of each new window begins; one in the own file counts more than one elsewhere."""
        own = "" if self.output is None else self.output.name
        for path in sorted(self.folder.glob(f"{self.key}.*.windows"), key=lambda path: (str(path) == own, path)):
            with contextlib.suppress(OSError):  # another process may have deleted it
                file, known = self.files.get(path) or (self.stack.enter_context(path.open("rb")), 0)
                records = os.fstat(file.fileno()).st_size // self.record
                self.files[path] = (file, records)
                for number in range(known, records):
                    file.seek(number * self.record)
                    self.places[file.read(HASH)] = (file, number * self.record)

    def network(self, model: SegmentationModel) -> Network:
        """From normalized windows (B, 3, h, w) to the logits of `model`, whose encoder is that of the cache."""

        def masks(images: Tensor) -> Tensor:
            if tuple(images.shape[-2:]) != self.window:
                return model.masks(images)
            return model.head()(self._features(model, images), self.grid)

        return masks

    def _features(self, model: SegmentationModel, images: Tensor) -> Tensor:
        """Features (B, N, F) of windows (B, 3, h, w), rounded to float16, on their device."""
        keys = [hashlib.blake2b(image.numpy().data, digest_size=HASH).digest() for image in images.contiguous().cpu()]
        known = [self._read(key) for key in keys]
        if any(tokens is None for tokens in known):
            self._index()  # other processes may have added them
            known = [self._read(key) if tokens is None else tokens for key, tokens in zip(keys, known, strict=True)]
        new = [number for number, tokens in enumerate(known) if tokens is None]
        if new:
            for number, tokens in zip(new, model.features(images[new])[0].half().cpu(), strict=True):
                known[number] = tokens
                self._write(keys[number], tokens)
        return torch.stack([tokens for tokens in known if tokens is not None]).to(images.device).float()

    def _read(self, key: bytes) -> Tensor | None:
        """The tokens float16 (N, F) of a window, or None if they are not there, or damaged."""
        if key not in self.places:
            return None
        file, start = self.places[key]
        file.seek(start)
        # The hash again: since it was noted, the file may have been cut and continued by another process.
        head, values = file.read(HASH + CHECKSUM), bytearray(file.read(self.record - HASH - CHECKSUM))
        if head != key + _checksum(values) or len(values) != self.record - HASH - CHECKSUM:
            return None
        return torch.frombuffer(values, dtype=torch.float16).view(self.shape)

    def _write(self, key: bytes, tokens: Tensor) -> None:
        """Append the tokens of a window; if there is no room for them, keep none from here on."""
        if self.output is None:
            return
        values = tokens.numpy().tobytes()
        try:
            need_space(self.folder, self.record, "caching", MAKE_ROOM)
            end = self.output.seek(0, os.SEEK_END)
            self.output.write(key + _checksum(values) + values)
            self.output.flush()
            self.places[key] = (self.output, end)
        except (OSError, UserError):
            self.output = None


def _checksum(values: bytes | bytearray) -> bytes:
    return zlib.crc32(values).to_bytes(CHECKSUM, "big")
