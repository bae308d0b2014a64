"""1,000 untrusted files through `depict segment`: is each accounted for, and does memory stay flat?

Sizes from 1x1 to 4000x3000; every mode; damaged, empty, misnamed and linked files; names in many scripts. Prints the
outcome and the peak memory in each tenth of the run, and that of one largest picture alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from PIL import Image

from support.strange_files import account, make_mixed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--largest", type=int, nargs=2, default=(4000, 3000), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--model", type=Path, help="a run or an ONNX file; by default a small one with random weights")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        model = options.model or small_run(folder / "run")
        started = time.perf_counter()
        expected = make_mixed(folder / "mixed", options.count, tuple(options.largest))
        kinds = Counter(one.status for one in expected.values())
        print(f"{len(expected)} files made in {time.perf_counter() - started:.0f} s, expected: {dict(kinds)}")

        (folder / "single").mkdir()
        Image.new("RGB", tuple(options.largest)).save(folder / "single/picture.png")
        _, _, alone = segment(model, folder / "single", folder / "out-single", options.workers)
        code, seconds, resident = segment(model, folder / "mixed", folder / "out", options.workers)
        wrong = account(folder / "mixed", folder / "out", expected)
        tenth = max(1, len(resident) // 10)
        peaks = [max(resident[start : start + tenth]) >> 20 for start in range(0, len(resident), tenth)]
        print(f"exit code {code}, {seconds:.0f} s, {len(expected) / seconds:.1f} files per second")
        print(f"peak of memory: {max(resident) >> 20} MB; one picture of the largest size alone: {max(alone) >> 20} MB")
        print(f"peak in each tenth of the run, MB: {peaks}")
        print("\n".join(wrong) or "every file is accounted for")
        return 0 if code == 1 and not wrong else 1


def segment(model: Path, folder: Path, out: Path, workers: int) -> tuple[int, float, list[int]]:
    """Exit code, seconds, and the bytes in memory over time of `depict segment` in a process of its own."""
    command = [sys.executable, "-m", "depict.cli", "segment", str(model), str(folder), "--out", str(out)]
    started = time.perf_counter()
    resident = []
    with (out.parent / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--workers", str(workers)], stdout=log, stderr=log)
        while process.poll() is None:
            resident.append(resident_bytes(process.pid))
            time.sleep(0.02)
    if process.returncode not in (0, 1):
        print((out.parent / "log").read_text(errors="replace")[-2000:])
    return process.returncode, time.perf_counter() - started, resident


def resident_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS")), 0)


def small_run(folder: Path) -> Path:
    """A model of 16 classes with random weights: here the files count, not the answers."""
    from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
    from depict.model import SegmentationModel
    from depict.runs import save

    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, depth=2, dim=64),
        decoder=DecoderConfig("linear"),
        data=DataConfig(short_edge=128, max_aspect=4.0),
        image_size=128,
    )
    save(SegmentationModel(config, [f"class {index}" for index in range(16)]), folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
