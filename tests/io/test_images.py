"""Images of every kind become uint8 RGB, or are refused in one line."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from depict import UserError
from depict.io import images
from depict.io.images import read_image, to_rgb

RED = np.full((2, 3, 3), (255, 0, 0), dtype=np.uint8)


def palette_image():
    image = Image.fromarray(RED).convert("P")
    image.info["transparency"] = bytes(range(256))
    return image


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(RED),
        Image.fromarray(RED).convert("RGBA"),
        Image.fromarray(RED).convert("CMYK"),
        palette_image(),
        RED,
        np.dstack([RED, RED[..., :1]]),
        RED.astype(np.uint16) * 257,
        RED / 255.0,
        RED.astype(np.int64),
        torch.tensor(RED).permute(2, 0, 1),
        torch.tensor(RED).permute(2, 0, 1) / 255,
        (torch.tensor(RED).permute(2, 0, 1) / 255).bfloat16(),
    ],
    ids=lambda image: f"{type(image).__name__} {image.mode if isinstance(image, Image.Image) else image.dtype}",
)
def test_colors_are_kept_for_every_kind_of_image(image):
    assert np.array_equal(to_rgb(image), RED)


@pytest.mark.parametrize(
    "image",
    [
        Image.new("1", (4, 2), 1),
        Image.new("L", (4, 2), 255),
        Image.new("LA", (4, 2), (255, 0)),
        Image.fromarray(np.full((2, 4), 65535, np.uint16)),
        Image.fromarray(np.full((2, 4), 65535, np.int32)),
        Image.fromarray(np.full((2, 4), 1.0, np.float32)),
        Image.fromarray(np.full((2, 4), 255.0, np.float32)),
        np.full((2, 4), 255, np.uint8),
        np.full((2, 4, 1), True),
        torch.ones(1, 2, 4),
    ],
    ids=lambda image: f"{type(image).__name__} {image.mode if isinstance(image, Image.Image) else image.dtype}",
)
def test_white_stays_white_for_every_kind_of_gray_image(image):
    assert np.array_equal(to_rgb(image), np.full((2, 4, 3), 255, np.uint8))


def test_sixteen_bits_keep_their_upper_byte():
    wide = np.array([[0, 256, 32768, 65535]], np.uint16)
    assert to_rgb(wide)[0, :, 0].tolist() == [0, 1, 128, 255]
    assert to_rgb(Image.fromarray(wide))[0, :, 0].tolist() == [0, 1, 128, 255]
    assert to_rgb(Image.fromarray(wide // 256))[0, :, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((0, 4, 3), np.uint8), r"shape \(0, 4, 3\) is empty"),
        (torch.zeros(3, 0, 4), r"shape \(3, 0, 4\) is empty"),
        (np.zeros((4, 4, 7), np.uint8), r"this one has shape \(4, 4, 7\)"),
        (np.zeros((4,), np.uint8), "an image array must be"),
        (torch.zeros(40, 50, 3), r"channels first: use tensor.permute\(2, 0, 1\); this one has shape \(40, 50, 3\)"),
        (torch.zeros(7, 50, 60), r"channels first; this one has shape \(7, 50, 60\)"),
        (torch.zeros(1, 3, 4, 4), r"a tensor .* this one has shape \(1, 3, 4, 4\)"),
        (torch.full((3, 2, 2), torch.nan), "contains NaN or infinite values"),
        (np.full((2, 2, 3), 3.5), "must be in 0..1, this one is in 3.5 to 3.5"),
        (np.full((2, 2, 3), -4), "must be uint8, uint16, or a float"),
        ("picture.png", "must be a PIL image, an array or a tensor, not a str"),
        (Image.new("RGB", (0, 3)), "0 x 3 pixels is empty"),
        (Image.fromarray(np.float32([[0.5, np.nan]])), "contains NaN or infinite values"),
        (Image.fromarray(np.float32([[0.5], [np.inf]])), "contains NaN or infinite values"),
        (Image.fromarray(np.float32([[0.5], [-np.inf]])), "contains NaN or infinite values"),
    ],
)
def test_anything_else_is_refused_in_one_line(image, message):
    with pytest.raises(UserError, match=message):
        to_rgb(image)


@pytest.mark.parametrize("name", ["turned.png", "turned.jpg", "turned.tiff", "turned.webp"])
def test_files_are_rotated_upright(tmp_path, name):
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    Image.fromarray(picture).save(tmp_path / name, exif=exif)
    upright = read_image(tmp_path / name)
    assert upright.shape == (32, 16, 3)
    assert upright[:8].min() > 200
    assert upright[8:].max() < 55


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpegs_have_the_same_pixels_as_in_pillow(tmp_path, subsampling, progressive):
    path = tmp_path / "photograph.jpg"
    for height, width in ((61, 83), (1, 1)):
        photograph(height, width).save(path, subsampling=subsampling, progressive=progressive)
        np.testing.assert_array_equal(read_image(path), np.asarray(Image.open(path)))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_unusual_jpegs_are_read_too(tmp_path, mode):
    path = tmp_path / "unusual.jpg"
    photograph(61, 83).convert(mode).save(path)
    np.testing.assert_array_equal(read_image(path), np.asarray(Image.open(path).convert("RGB")))


def test_a_damaged_jpeg_is_read_or_refused_as_in_pillow(tmp_path):
    path, random, outcomes = tmp_path / "damaged.jpg", np.random.default_rng(0), set()
    photograph(61, 83).save(path)
    whole = path.read_bytes()
    for _ in range(60):
        spoiled = bytearray(whole[: random.integers(len(whole) // 2, 2 * len(whole))])
        for position in random.integers(0, len(spoiled), 2):
            spoiled[position] = random.integers(256)
        path.write_bytes(spoiled)
        try:
            expected = np.asarray(Image.open(path).convert("RGB"))
        except (OSError, SyntaxError, ValueError):
            with pytest.raises(UserError, match=r"damaged\.jpg"):
                read_image(path)
            outcomes.add("refused")
        else:
            np.testing.assert_array_equal(read_image(path), expected)
            outcomes.add("read")
    assert outcomes == {"refused", "read"}


def photograph(height, width):
    coarse = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def damaged_files(folder):
    (folder / "text.png").write_text("hello")
    (folder / "zero.jpg").write_bytes(b"")
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(whole, "PNG")
    (folder / "half.png").write_bytes(whole.getvalue()[:4000])
    Image.fromarray(np.float32([[0.5, np.nan]])).save(folder / "nan.tiff")


@pytest.mark.parametrize("name", ["missing.png", "text.png", "zero.jpg", "half.png", "nan.tiff"])
def test_unreadable_files_are_named_in_one_line(tmp_path, name):
    damaged_files(tmp_path)
    with pytest.raises(UserError, match=name) as caught:
        read_image(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_an_image_beyond_the_limit_is_refused_before_decoding(tmp_path, monkeypatch):
    Image.new("L", (100, 100)).save(tmp_path / "large.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 9999)
    with pytest.raises(UserError, match=r"large.png': 100 x 100 pixels are more than the limit of 9999"):
        read_image(tmp_path / "large.png")


def test_a_side_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    Image.new("L", (100, 1)).save(tmp_path / "long.png")
    monkeypatch.setattr(images, "MAX_SIDE", 99)
    with pytest.raises(UserError, match=r"long.png': 100 x 1 pixels are longer than the limit of 99"):
        read_image(tmp_path / "long.png")


def test_formats_that_need_other_programs_are_refused(tmp_path):
    (tmp_path / "drawn.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UserError, match=r"drawn.jpg': EPS files are not supported: convert it"):
        read_image(tmp_path / "drawn.jpg")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UserError, match="pipe.png' is not a file"):
        read_image(tmp_path / "pipe.png")


def test_32_bit_values_do_not_depend_on_where_the_bands_end():
    values = np.random.default_rng(0).integers(0, 65536, (1200, 1 << 10), dtype=np.int32)
    assert np.array_equal(to_rgb(Image.fromarray(values))[..., 1], np.round(values * (255 / 65535)))


def test_a_picture_in_memory_is_read_as_from_its_file(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 12, 3), np.uint8))
    picture.save(tmp_path / "turned.png", exif=exif)
    data = (tmp_path / "turned.png").read_bytes()
    assert (images.decode_image(data, ("PNG",), 96) == read_image(tmp_path / "turned.png")).all()
    with pytest.raises(UserError, match="12 x 8 pixels are more than the limit of 95: scale it down"):
        images.decode_image(data, ("PNG",), 95)
    with pytest.raises(UserError, match="the picture is not a readable image"):
        images.decode_image(data, ("JPEG",), 96)
    with pytest.raises(UserError, match="cannot read the picture: "):
        images.decode_image(data[: len(data) // 2], ("PNG",), 96)
