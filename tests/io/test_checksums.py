"""Checksums differ when the content does, and only then."""

import hashlib

import numpy as np
import torch

from depict.io.checksums import checksum, file_checksum, tensors_checksum


def test_bytes_arrays_and_files_of_one_content_have_the_checksum_of_sha256sum(tmp_path):
    values = np.arange(1000, dtype=np.int32)
    (tmp_path / "file").write_bytes(values.tobytes())
    expected = hashlib.sha256(values.tobytes()).hexdigest()
    assert checksum(values.data) == checksum(values[:10].data, values[10:].tobytes()) == expected
    assert file_checksum(tmp_path / "file") == expected


def test_tensors_have_the_same_checksum_in_any_order_and_layout():
    a, b = torch.arange(6.0).view(2, 3), torch.tensor(3, dtype=torch.int64)
    assert tensors_checksum({"a": a, "b": b}) == tensors_checksum({"b": b, "a": a.t().contiguous().t()})


def test_every_value_name_type_and_shape_counts():
    a = torch.arange(6.0)
    changed = a.clone()
    changed.view(torch.int32)[3] ^= 1
    others = [
        {"b": a},
        {"a": changed},
        {"a": a.view(2, 3)},
        {"a": a.view(torch.int32)},
        {"a": a, "b": torch.empty(0)},
        {},
    ]
    checksums = [tensors_checksum({"a": a}), *map(tensors_checksum, others)]
    assert len(set(checksums)) == len(checksums)
    assert tensors_checksum({"a": a.bfloat16()}) != tensors_checksum({"a": a.half()})
