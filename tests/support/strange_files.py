"""Pictures of every mode and size, damaged, misnamed and linked, as users have them."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image


class Expected(NamedTuple):
    """The expected result of a file: `written` with a label map of this size, `failed` or `ignored`."""

    status: str
    size: tuple[int, int] | None = None
    """Height and width, upright."""


GOOD = ("L", "LA", "P", "P+", "1", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "turned", "gif", "webp")
ODD = ("jpeg as png", "png as jpg", "link", "png as txt", "no ending")
BAD = ("cut png", "cut jpg", "cut tif", "empty", "text", "bomb", "eps", "broken link", "noise", "NaN")
WORDS = ("photo", "Straße", "写真", "снимок", "a b", "ö.ü", "100%", "🙂", "quote'd", "x" * 120)


def make_mixed(folder: Path, count: int, largest: tuple[int, int], seed: int = 0) -> dict[str, Expected]:
    """Write `count` files up to `largest` (width, height); returns what is expected of each relative path."""
    random = np.random.default_rng(seed)
    kinds = GOOD + ODD + GOOD + BAD
    expected: dict[str, Expected] = {}
    corners = [(1, 1), largest, (largest[0], 1), (1, largest[1]), (2, 3)]
    for number in range(count):
        kind = kinds[number % len(kinds)]
        width, height = (
            corners[number]
            if number < len(corners)
            else tuple(round(side ** random.uniform(0.3, 1)) for side in largest)
        )
        parent = ("", "sub", "sub/deeper", "ünter ordner")[number % 4]
        stem = f"{WORDS[number % len(WORDS)]}{number}"
        (folder / parent).mkdir(parents=True, exist_ok=True)
        path, result = _make(folder / parent / stem, kind, width, height, random)
        expected[path.relative_to(folder).as_posix()] = result
    return expected


def _make(stem: Path, kind: str, width: int, height: int, random: np.random.Generator) -> tuple[Path, Expected]:
    def at(ending: str) -> Path:
        return stem.with_name(stem.name + ending)

    written = Expected("written", (height, width))
    picture = _picture(width, height, random)
    if kind in ("L", "LA", "1", "RGBA", "RGB"):
        picture.convert(kind).save(at(".png"), compress_level=1)
        return at(".png"), written
    if kind == "P":
        picture.quantize(32).save(at(".png"))
        return at(".png"), written
    if kind == "P+":
        picture.quantize(8).save(at(".png"), transparency=bytes(range(0, 256, 32)))
        return at(".png"), written
    if kind in ("CMYK", "YCbCr"):
        ending = ".jpg" if kind == "CMYK" else ".tif"
        picture.convert(kind).save(at(ending))
        return at(ending), written
    if kind == "I;16":
        Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257).save(at(".png"))
        return at(".png"), written
    if kind in ("I", "F"):
        dtype = np.int32 if kind == "I" else np.float32
        Image.fromarray(np.asarray(picture.convert("L")).astype(dtype)).save(at(".tiff"))
        return at(".tiff"), written
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(at(".JPG"), exif=exif)
        return at(".JPG"), Expected("written", (width, height))
    if kind == "gif":
        picture.save(at(".gif"), save_all=True, append_images=[picture])
        return at(".gif"), written
    if kind == "webp":
        picture.save(at(".webp"))
        return at(".webp"), written
    return _make_odd(at, kind, picture, written)


def _make_odd(at, kind: str, picture: Image.Image, written: Expected) -> tuple[Path, Expected]:
    if kind in ("jpeg as png", "png as jpg", "png as txt", "no ending"):
        format, ending = ("jpeg", ".png") if kind.startswith("jpeg") else ("png", f".{kind.split()[-1]}")
        ending = "" if kind == "no ending" else ending
        at(ending).write_bytes(_encoded(picture, format))
        # A name such as that of the second word has an ending of its own, but no picture's.
        return at(ending), Expected("ignored") if kind in ("png as txt", "no ending") else written
    if kind == "link":
        target = at(".png").parent / f".{at('').name}"
        target.write_bytes(_encoded(picture, "png"))
        at(".png").symlink_to(target)
        return at(".png"), written
    if kind == "broken link":
        at(".png").symlink_to(at(".gone"))
        return at(".png"), Expected("failed")
    content, ending = b"", ".jpg"
    if kind == "NaN":
        values = np.asarray(picture.convert("L")).astype(np.float32)
        values[-1, -1] = np.nan
        ending, content = ".tiff", _encoded(Image.fromarray(values), "tiff")
    elif kind.startswith("cut"):
        ending = "." + kind.split()[1]
        whole = _encoded(picture, {".png": "png", ".jpg": "jpeg", ".tif": "tiff"}[ending])
        content = whole[: len(whole) // 2]
    elif kind == "text":
        content = b"GIF, JPEG or PNG? Neither."
    elif kind == "bomb":
        header = (60000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
        ending, content = ".png", b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b""))
    elif kind == "eps":
        content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
    elif kind == "noise":
        content = b"\x89PNG\r\n\x1a\n" + np.random.default_rng(0).bytes(500)
    at(ending).write_bytes(content)
    return at(ending), Expected("failed")


def account(folder: Path, out: Path, expected: dict[str, Expected]) -> list[str]:
    """How the outputs in `out` differ from what is expected of the files in `folder`."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    rows = {Path(row["source"]).relative_to(folder).as_posix(): row for row in summary["pictures"]}
    ignored = {Path(path).relative_to(folder).as_posix() for path in summary["ignored"]}
    wrong = [f"{name}: not expected" for name in (*rows, *ignored) if name not in expected]
    labels = set()
    for name, (status, size) in expected.items():
        row = rows.get(name, {"status": "ignored" if name in ignored else "missing"})
        if row["status"] != status:
            wrong.append(f"{name}: {row['status']} instead of {status} ({row.get('error', '')})")
        elif status == "failed" and (name not in row["error"] or "\n" in row["error"]):
            wrong.append(f"{name}: reported as {row['error']}")
        elif status == "written":
            for kind in ("labels", "overlays"):
                path = out / kind / f"{row['name']}.png"
                labels.add(path)
                with Image.open(path) as picture:
                    picture.load()
                    if kind == "labels" and (picture.height, picture.width) != size:
                        wrong.append(f"{name}: labels of {picture.size} instead of {size}")
    files = {path for path in out.rglob("*") if path.is_file()} - {out / "summary.json", out / ".lock"}
    files -= set((out / ".journal").iterdir())
    return wrong + [f"{path}: left over" for path in files - labels]


def _picture(width: int, height: int, random: np.random.Generator) -> Image.Image:
    """Smooth colors with an edge: large ones must not take long to write."""
    rows, columns = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)
    colors = random.uniform(0, 255, (3, 3))
    values = [a * rows + b * columns + c * (rows < columns) for a, b, c in colors / 3]
    return Image.fromarray(np.stack(values, 2).astype(np.uint8))


def _encoded(picture: Image.Image, format: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format)
    return buffer.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
