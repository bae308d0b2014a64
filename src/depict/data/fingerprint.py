"""What a model was trained on: classes, and files by their content. Compared before a training resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from depict.data.dataset import Dataset, unwrap
from depict.data.pairs import DataError, FileDataset
from depict.io.checksums import checksum, file_checksum
from depict.terminal import progress_bar

Fingerprint = dict[str, Any]
"""Plain values: `classes`, `mask_values` (how masks are read), and `training` and `validation`: path -> checksum."""
READERS = 8
"""Threads that read files."""


def fingerprint(training: Dataset, validation: Dataset) -> Fingerprint:
    """The fingerprint of the images to train and validate on; every file is read once.

    Paths are relative to the folder that all files have in common, so the data may be moved.
    Generated images are not read: they follow from the plain values that identify them.
    """
    parts = {"training": training, "validation": validation}
    paths = {name: _files(dataset) for name, dataset in parts.items()}
    files = sorted({path for found in paths.values() for path in found or ()})
    root = os.path.commonpath([path.parent for path in files]) if files else ""
    with ThreadPoolExecutor(READERS) as pool:
        checksums_of = pool.map(_file_checksum, files)
        read = progress_bar(checksums_of, "reading the data", total=len(files), unit="file", delay=2)
        checksums = dict(zip(files, read, strict=True))
    found: Fingerprint = {"classes": training.classes, "mask_values": _mask_values(training)}
    for name, dataset in parts.items():
        if (own := paths[name]) is None:
            found[name] = {f"generated {dataset.name}": checksum(repr(list(dataset.identity())).encode())}
        else:
            found[name] = {os.path.relpath(path, root): checksums[path] for path in own}
    return json.loads(json.dumps(found))  # as it will be when it is read again


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """What has changed between two fingerprints, each in a few words; an empty list if nothing has."""
    same_masks = before["mask_values"] == now["mask_values"]
    texts = list(_class_differences(before["classes"], now["classes"], same_masks))
    for part in ("training", "validation"):
        texts += _file_differences(part, before[part], now[part])
    return texts


def _files(dataset: Dataset) -> list[Path] | None:
    """The files of all samples; None if they are generated."""
    full, indices = unwrap(dataset)
    return [path for index in indices for path in full.files(index)] or None


def _mask_values(dataset: Dataset) -> list[object]:
    full, _ = unwrap(dataset)
    return full.label_rules() if isinstance(full, FileDataset) else []


def _file_checksum(path: Path) -> str:
    try:
        return file_checksum(path)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}.") from error


def _class_differences(before: list[str], now: list[str], same_masks: bool) -> Iterator[str]:
    if len(before) != len(now):
        yield f"{len(before)} classes, now {len(now)}"
    elif sorted(before) == sorted(now) and before != now:
        yield "the same classes, now in another order"
    elif before != now:
        changed = [f"'{old}', now '{new}'" for old, new in zip(before, now, strict=True) if old != new]
        yield "the class " + _some(changed)
    elif not same_masks:
        yield "the same classes, now with other mask values"


def _file_differences(part: str, before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    kinds = {
        "removed": [path for path in before if path not in now],
        "added": [path for path in now if path not in before],
        "changed": [path for path in before if path in now and before[path] != now[path]],
    }
    for kind, paths in kinds.items():
        if paths:
            quoted = [f"'{path}'" for path in paths]
            yield f"{len(paths)} {part} file{'s' * (len(paths) > 1)} {kind} ({_some(quoted)})"


def _some(texts: list[str]) -> str:
    return texts[0] + (f" and {len(texts) - 1} more" if len(texts) > 1 else "")
