"""Can loading keep a GPU busy? JPEG decoders, augmentation steps, images per second through the workers.

`python benchmarks/loading.py [--images 64] [--batches 40]` on generated JPEGs of ADE20K's usual size (683x512),
crops of 512, one core per worker.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as T

from depict.data import create_dataset, transforms
from depict.data.loading import Schedule, training_batches
from depict.data.pairs import read_image
from depict.data.transforms import Augmentation, sample_generator
from depict.inference.sliding import resized_size

HALF = (0.5, 0.5, 0.5)
AUGMENTATION = Augmentation(short_edge=512, max_aspect=4, crop=(512, 512), mean=HALF, std=HALF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)
    with tempfile.TemporaryDirectory() as folder:
        root = generate(Path(folder), options.images)
        dataset = create_dataset("ade20k", root, "train")
        compare_decoders(dataset.paths(0)[0])
        time_steps(dataset)
        rates = {workers: throughput(dataset, workers, options.batches) for workers in (0, 1, 2)}
    print("\nimages/s through the loader, batches of 8")
    for workers, rate in rates.items():
        print(f"  {workers} workers  {rate:7.1f}   {rate / rates[0]:.2f}x of none")
    print_need(rates[2])


def generate(root: Path, count: int) -> Path:
    """Photograph-like pictures: noise of all scales, so that a JPEG has the weight of a real one (about 60 KB)."""
    for part in ("training", "validation"):
        images, masks = (root / "ADEChallengeData2016" / kind / part for kind in ("images", "annotations"))
        images.mkdir(parents=True)
        masks.mkdir(parents=True)
        for index in range(count if part == "training" else 1):
            generator = np.random.default_rng(index)
            picture = np.zeros((512, 683, 3), np.float32)
            for scale in (4, 12, 40, 120, 400):
                coarse = generator.uniform(0, 255, (scale * 3 // 4 + 1, scale, 3)).astype(np.uint8)
                layer = Image.fromarray(coarse).resize((683, 512), Image.Resampling.BICUBIC)
                picture += np.asarray(layer) / scale**0.5
            picture *= 255 / picture.max()
            Image.fromarray(picture.astype(np.uint8)).save(images / f"{index}.jpg", quality=90)
            mask = Image.fromarray(generator.integers(0, 151, (6, 8), np.uint8))
            mask.resize((683, 512), Image.Resampling.NEAREST).save(masks / f"{index}.png")
    return root


def compare_decoders(path: Path) -> None:
    decoders: dict[str, Callable[[], torch.Tensor]] = {
        "ours (simplejpeg)": lambda: read_image(path),
        "Pillow": lambda: _planes(np.array(Image.open(path))),
    }
    if find_spec("torchvision.io"):
        from torchvision.io import ImageReadMode, decode_jpeg

        decoders["torchvision (deprecated)"] = lambda: decode_jpeg(_bytes(path), mode=ImageReadMode.RGB)
    if find_spec("torchcodec"):
        from torchcodec.decoders import decode_jpeg as torchcodec_jpeg

        decoders["torchcodec"] = lambda: torchcodec_jpeg(_bytes(path))
    if find_spec("cv2"):
        import cv2

        decoders["OpenCV"] = lambda: _planes(cv2.imread(str(path), cv2.IMREAD_COLOR_RGB))
    print(f"decoding one JPEG of 683x512, {path.stat().st_size // 1024} KB")
    ours = read_image(path).int()
    for name, decode in decoders.items():
        difference = int((decode().int() - ours).abs().max())
        print(f"  {name:<26} {best_of(decode):6.2f} ms   largest pixel difference {difference}")


def _planes(pixels: np.ndarray) -> torch.Tensor:
    """(H, W, 3) as the loader takes it: (3, H, W)."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def time_steps(dataset) -> None:
    """Milliseconds of each step on one core at the mean factor, and of plain torchvision where they differ."""
    image_path, mask_path = dataset.paths(0)
    image, labels = dataset.read(0)
    size = resized_size(image.shape[1], image.shape[2], 512, 4, 1.25)
    large, large_labels = transforms.resize_image(image, size), transforms.resize_labels(labels, size)
    crop, planar = large[:, :512, :512].contiguous(), image.contiguous()
    rows: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("read image", lambda: read_image(image_path), None),
        ("read mask", lambda: dataset.read_labels(mask_path), None),
        ("resize image", lambda: transforms.resize_image(image, size), lambda: transforms.resize_image(planar, size)),
        ("resize labels", lambda: transforms.resize_labels(labels, size), None),
        ("test one crop", lambda: transforms.is_varied(large_labels[:512, :512]), None),
        ("hue", lambda: transforms.shift_hue(crop.float(), 9), lambda: T.adjust_hue(crop, 0.05)),
    ]
    print("\nmilliseconds on one core    ours   naive   ratio")
    for name, ours, naive in rows:
        print_row(name, best_of(ours), best_of(naive) if naive else None)
    keys = [(epoch, index) for epoch in range(4) for index in range(min(16, len(dataset)))]
    print_row("whole sample, mean", mean_of(lambda key: ours_of(dataset, key), keys), mean_of(naive_of(dataset), keys))


def print_row(name: str, ours: float, naive: float | None) -> None:
    comparison = f"{naive:7.2f} {naive / ours:6.1f}x" if naive else ""
    print(f"  {name:<22} {ours:7.2f} {comparison}")


def ours_of(dataset, key: tuple[int, int]) -> None:
    AUGMENTATION(*dataset.read(key[1]), sample_generator(0, *key))


def naive_of(dataset) -> Callable[[tuple[int, int]], None]:
    """The same steps as they are first written down: planar images, torchvision's color functions and padding."""

    def run(key: tuple[int, int]) -> None:
        image_path, mask_path = dataset.paths(key[1])
        image = T.pil_to_tensor(Image.open(image_path).convert("RGB")).contiguous()
        labels = torch.from_numpy(np.array(Image.open(mask_path)).astype(np.int64)) - 1
        labels[labels < 0] = 255
        generator = sample_generator(0, *key)
        size = resized_size(image.shape[1], image.shape[2], 512, 4, generator.uniform(0.5, 2))
        image, labels = transforms.resize_image(image, size), transforms.resize_labels(labels, size)
        top, left = transforms.choose_crop(labels, (512, 512), generator)
        image, labels = (x[..., top : top + 512, left : left + 512] for x in (image, labels))
        if generator.random() < 0.5:
            image, labels = T.horizontal_flip(image), T.horizontal_flip(labels)
        if generator.random() < 0.5:
            image = (image.float() + generator.uniform(-32, 32)).clamp(0, 255).to(torch.uint8)
        for adjust, low, high in (
            (T.adjust_brightness, 0.5, 1.5),  # what the recipe calls contrast: a factor
            (T.adjust_saturation, 0.5, 1.5),
            (T.adjust_hue, -0.1, 0.1),
        ):
            if generator.random() < 0.5:
                image = adjust(image, generator.uniform(low, high))
        image = T.normalize(T.to_dtype(image, torch.float32, scale=True), list(HALF), list(HALF))
        padding = [0, 0, 512 - image.shape[2], 512 - image.shape[1]]
        T.pad(image, padding), T.pad(labels[None], padding, fill=255)

    return run


def throughput(dataset, workers: int, batches: int) -> float:
    """Images per second after the first batches, by which time the workers are up."""
    warm_up = 4
    schedule = Schedule(len(dataset), 8, epochs=-(-(batches + warm_up) * 8 // len(dataset)))
    loader = training_batches(dataset, AUGMENTATION, schedule, workers)
    for _ in range(warm_up):
        next(loader)
    start, seen = time.perf_counter(), 0
    for batch in loader:
        seen += len(batch.images)
    return seen / (time.perf_counter() - start)


def print_need(rate: float) -> None:
    """What one GPU takes: ViT-S/16 with a DEPICT-SA decoder at 512 (1024 tokens, D = 384, 12 blocks)."""
    tokens, dim, blocks = 1024, 384, 12
    multiplications = blocks * (12 * tokens * dim**2 + 2 * tokens**2 * dim) + 3.4e9
    flops = 3 * 2 * multiplications  # forward and backward
    print(f"\nViT-S at 512 needs {flops / 1e9:.0f} GFLOP per training image (assumed: backward = 2 x forward)")
    for name, peak, used in (
        ("one A100, fp32 as published", 19.5e12, 0.6),
        ("one A100, TF32", 156e12, 0.35),
        ("one A100, bf16", 312e12, 0.35),
    ):
        need = peak * used / flops
        print(f"  {name:<28} at {used:.0%} of its peak takes {need:4.0f} images/s: {2 * need / rate:4.1f} such cores")


def best_of(run: Callable[[], object], times: int = 15) -> float:
    """Milliseconds of the fastest of several runs."""
    run()
    spans = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        spans.append(time.perf_counter() - start)
    return 1e3 * min(spans)


def mean_of(run: Callable[[tuple[int, int]], object], keys: list[tuple[int, int]]) -> float:
    """Milliseconds on average over random samples."""
    start = time.perf_counter()
    for key in keys:
        run(key)
    return 1e3 * (time.perf_counter() - start) / len(keys)


def _bytes(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8))


if __name__ == "__main__":
    main()
