"""Untrusted files: deceptive names, code in weights, decompression bombs, damaged content."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from support.official_model import official_state

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


class RunsCode:
    """Pickled, it creates the file `marker` when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.system, (f"touch '{self.marker}'",)


def damaged(content: bytes, random: np.random.Generator, count: int) -> Iterator[bytes]:
    """The content cut, with flipped bits, and with a part overwritten by noise, in turn."""
    for number in range(count):
        at = int(random.integers(len(content)))
        if number % 3 == 0:
            yield content[:at]
        elif number % 3 == 1:
            changed = bytearray(content)
            changed[at] ^= 1 << int(random.integers(8))
            yield bytes(changed)
        else:
            yield content[:at] + random.bytes(64) + content[at + 64 :]


def checkpoints(folder: Path, marker: Path, random: np.random.Generator, count: int) -> Iterator[Path]:
    """Weight files that run code, that are far larger than they look, and `count` damaged ones."""
    state = official_state("depict_sa")
    attack = RunsCode(marker)
    sparse = torch.sparse_coo_tensor(size=(1, 10**6, 10**6), check_invariants=True)
    values = {
        "module": attack,
        "tensor by code": {"model": state | {"encoder.cls_token": attack}},
        "key by code": {"model": {**state, "x": {"y": [attack]}}},
        "numbers as names": dict(enumerate(state.values())),
        "no name": {"model": state | {None: torch.ones(1)}},
        "list": list(state.values()),
        "number": 7,
        "many classes": {"model": state | {"decoder.cls_emb": torch.zeros(1, 1, 1).expand(1, 10**7, 64)}},
        "many positions": {"model": state | {"encoder.pos_embed": torch.zeros(1, 1, 1).expand(1, 10**9, 64)}},
        "wide": {"model": state | {"encoder.patch_embed.proj.weight": torch.zeros(1, 1, 1, 1).expand(10**6, 3, 9, 9)}},
        "deep": {"model": state | {f"encoder.blocks.{index}.x": torch.ones(1) for index in range(2000)}},
        "sparse": {"model": state | {"decoder.cls_emb": sparse}},
        "nan": {"model": {name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}},
        "integers": {"model": {name: tensor.long() for name, tensor in state.items()}},
        "without dimensions": {"model": {name: torch.ones(()) for name in state}},
        "empty tensors": {"model": {name: torch.ones(0) for name in state}},
    }
    for name, value in values.items():
        torch.save(value, folder / f"{name}.pth")
        yield folder / f"{name}.pth"
    for protocol in range(6):
        (folder / f"pickle {protocol}.pth").write_bytes(pickle.dumps(attack, protocol))
        yield folder / f"pickle {protocol}.pth"
    write_compressed(folder / "compressed.pth", 1 << 30)
    yield folder / "compressed.pth"
    torch.save({"model": state}, folder / "good.pth")
    save_file(state, folder / "good.safetensors")
    for good in (folder / "good.pth", folder / "good.safetensors"):
        for number, content in enumerate(damaged(good.read_bytes(), random, count // 2)):
            path = folder / f"damaged {number}{good.suffix}"
            path.write_bytes(content)
            yield path
    for number, header in enumerate(
        (b"", b"\xff" * 8, b"\x02" + b"\x00" * 7 + b"{}", b"\x05" + b"\x00" * 7 + b"[[[[[")
    ):
        (folder / f"header {number}.safetensors").write_bytes(header)
        yield folder / f"header {number}.safetensors"


WRONG_JSON = ("1e999", "-1e999", "NaN", "[]", "[[]]", "{}", '"x"', "null", "", "[" * 10_000, "9" * 5000)
UNSAFE_NAMES = ("../evil", "top/../../evil", "/evil", "top\\..\\evil", "C:evil", "top/\x1b[2J", "top/\nx")


def onnx_files(folder: Path, random: np.random.Generator, count: int) -> Iterator[Path]:
    """Graphs with metadata of every wrong kind, and `count` damaged ones. Needs the package onnx."""
    import onnx

    from support.onnx_model import ConvModel, write_graph

    good = folder / "good.onnx"
    write_graph(ConvModel(), good)
    model = onnx.load(good)
    stored = {entry.key: entry.value for entry in model.metadata_props}
    for key in stored:
        for number, value in enumerate(WRONG_JSON):
            onnx.helper.set_model_props(model, stored | {key: value})
            path = folder / f"{key} {number}.onnx"
            onnx.save(model, path)
            yield path
    for number, content in enumerate(damaged(good.read_bytes(), random, count)):
        path = folder / f"damaged {number}.onnx"
        path.write_bytes(content)
        yield path


def archives(folder: Path, random: np.random.Generator, count: int) -> Iterator[Path]:
    """Archives that write elsewhere, hold links and devices, or grow without end, and `count` damaged ones."""
    for number, name in enumerate(UNSAFE_NAMES):
        path = folder / f"names {number}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # past the constructor, which would tidy it
            archive.writestr(info, b"evil")
        yield path
        path = folder / f"names {number}.tar"
        with tarfile.open(path, "w") as target:
            target.addfile(tarfile.TarInfo(name))
        yield path
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        path = folder / f"kind {kind.decode()}.tar"
        with tarfile.open(path, "w") as target:
            entry = tarfile.TarInfo("top/link")
            entry.type, entry.linkname = kind, "/etc/passwd"
            target.addfile(entry)
        yield path
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/zeros", bytes(100 << 20))
    yield folder / "bomb.zip"
    with zipfile.ZipFile(folder / "good.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"top/{number}.txt", random.bytes(200))
    for number, content in enumerate(damaged((folder / "good.zip").read_bytes(), random, count)):
        path = folder / f"damaged {number}.zip"
        path.write_bytes(content)
        yield path


def yaml_files(folder: Path, config: str, random: np.random.Generator, count: int) -> Iterator[Path]:
    """Settings that stand for gigabytes, nest without end or name Python objects; damaged copies of `config`."""
    laughs = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghijkl"))
    texts = [
        "x: " + "y" * (5 << 20),
        "classes: {" + "n" * 100_000 + ": [0, 0, 0]}",
        "a: &a [lol, lol]\n" + laughs,
        "[" * 20_000,
        "{a: " * 20_000,
        "seed: " + "9" * 10_000,
        "seed: !!python/object/apply:os.system [id]",
        "? [1, 2]\n: 3",
        "&a [*a]",
        "encoder: {depth: 10000000}",
        "image_size: [16384, 16384]\nencoder: {patch_size: 1}",
        "\x00\x01",
        "\ufeff",
        "- 1",
        "2001-99-99: 1",
    ]
    contents = [text.encode() for text in texts] + [config.encode() + b"\n" + text.encode() for text in texts]
    contents += [b"\xff\xfe\x00", *damaged(config.encode(), random, count)]
    nasty = [".nan", ".inf", "-1", "[]", "{}", "1e999", "null", "'\\e[2J'", str(2**63)]
    lines = config.splitlines()
    for _ in range(count):
        changed = list(lines)
        at = int(random.integers(len(lines)))
        changed[at] = changed[at].partition(":")[0] + ": " + nasty[int(random.integers(len(nasty)))]
        contents.append("\n".join(changed).encode())
    for number, content in enumerate(contents):
        path = folder / f"settings {number}.yaml"
        path.write_bytes(content)
        yield path


def pictures(folder: Path, random: np.random.Generator, count: int) -> Iterator[Path]:
    """`count` damaged pictures of five formats."""
    image = Image.fromarray(random.integers(0, 256, (40, 60, 3), np.uint8))
    for format, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("TIFF", "tif"), ("WEBP", "webp"), ("GIF", "gif")):
        buffer = io.BytesIO()
        image.save(buffer, format)
        for number, content in enumerate(damaged(buffer.getvalue(), random, count // 5)):
            path = folder / f"damaged {number}.{suffix}"
            path.write_bytes(content)
            yield path
