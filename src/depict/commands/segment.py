"""`depict segment`: label maps, overlays and shares of the classes for any number of pictures."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from depict.devices import processes

if TYPE_CHECKING:
    from depict.segment.inputs import Input


def main(
    model: tyro.conf.Positional[str],
    pictures: tyro.conf.Positional[tuple[str, ...]],
    out: Path,
    classes: str | None = None,
    overlay: bool = True,
    probabilities: bool = False,
    full_image: bool = False,
    multiscale: bool = False,
    overwrite: bool = False,
    compile: bool = False,
    device: str | None = None,
    workers: int = 2,
) -> int:
    """Segment pictures: a label map, an overlay with a legend and the shares of the classes for each.

    Pictures may be of any size and kind; one that cannot be read, or a folder, is named, skipped and counted, and the
    exit code is then 1. Outputs that exist are kept, so that the same command goes on where it stopped. Under torchrun
    the pictures are shared out among the processes.

    Args:
        model: Folder of a run, or a file that `depict export` wrote (.onnx; torch is not needed then).
        pictures: Files, folders (searched to the bottom, read in natural order) and patterns such as 'frames/*.png'.
            A video file that is named itself is read frame by frame (needs the extra `video`).
        out: Folder for labels/NAME.png, overlays/NAME.png, probabilities/NAME.npz and summary.json. NAME is the path
            below the folder that all inputs have in common.
        classes: Show and write these classes only, such as sky,road; other pixels get the largest value, 255 or 65535.
        overlay: Write overlays.
        probabilities: Write the probability of each class at each pixel, float16 (height, width, classes).
        whole: Let the network see each picture at once instead of in windows.
        multiscale: Average over the scales 0.5, 0.75, 1, 1.25, 1.5 and 1.75, each also mirrored.
        overwrite: Write outputs anew that exist.
        compile: Compile the network first (torch.compile), which pays for many pictures.
        device: Where to compute, such as cpu, cuda or cuda:1; by default a GPU if there is one.
        workers: Threads that read pictures ahead, and as many that write.
    """
    from tqdm import tqdm

    from depict.errors import UserError
    from depict.segment.inputs import find_inputs
    from depict.segment.outputs import KINDS, Outputs, Row, Summary, choose_classes
    from depict.segment.pipeline import segment_all
    from depict.segment.predictor import open_predictor

    if workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}.")
    inputs, passed = find_inputs(pictures, out, own=(*KINDS, "summary.json"))
    with processes() as (rank, world, local):
        predictor = open_predictor(
            model, multiscale=multiscale, full_image=full_image, compile=compile, device=device, local=local
        )
        shown = choose_classes(predictor.classes, classes)
        outputs = Outputs(out, predictor.classes, predictor.palette, shown, overlay, probabilities, overwrite)
        about = {
            "model": str(Path(model).absolute()) if Path(model).exists() else model,
            "multiscale": multiscale,
            "full_image": full_image,
            "classes": [predictor.classes[index] for index in shown],
            "legend": outputs.legend,
        }
        summary = Summary(out, about, overwrite)
        summary.write([], passed)  # by it another process, or call, knows the outputs for ours, however this one ends
        rows: list[Row] = []
        started = time.perf_counter()
        try:
            with (
                _ended_in_order(),
                warnings.catch_warnings(),
                tqdm(total=_total(inputs, world), desc="segmenting", unit="image", disable=rank > 0) as bar,
            ):
                warnings.simplefilter("ignore")  # what decoders remark on odd files
                files = [one for one in inputs if one.error is None]
                done = segment_all(predictor, files, outputs, workers, rank, world, summary.sources)
                for row in itertools.chain(done, _locked(inputs) if rank == 0 else ()):
                    rows.append(row)
                    bar.update()
                    if row["status"] == "failed":
                        bar.write(f"depict: skipped: {row['error']}", file=sys.stderr)
        finally:
            if world == 1:
                summary.write(rows, passed)
        if world > 1:
            rows = _gathered(rows, world)
            if rank == 0:
                summary.write(rows, passed)
        if rank == 0:
            _report(rows, time.perf_counter() - started, len(passed), summary.path)
        return 1 if any(row["status"] == "failed" for row in rows) else 0


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let the signal that batch systems end a job with remove unfinished files, as an interrupt from the keyboard does.

    For the work alone: a process that waits for others, as it does before and after, hears no signals in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _locked(inputs: list[Input]) -> Iterator[dict[str, Any]]:
    """A row of the summary for each folder that could not be listed."""
    from depict.segment.outputs import readable

    for number, one in enumerate(inputs):
        if one.error is not None:
            row = {"name": readable(one.name), "source": readable(one.path), "order": (number, 0)}
            yield row | {"status": "failed", "error": readable(one.error)}


def _total(inputs: list[Input], world: int) -> int | None:
    """How many pictures and frames this process will see, if the videos tell."""
    from depict.segment.inputs import frame_count

    counts = [frame_count(one.path) if one.video else 1 for one in inputs]
    known = [count for count in counts if count is not None]
    return -(-sum(known) // world) if len(known) == len(counts) else None


def _gathered(rows: list[dict[str, Any]], world: int) -> list[dict[str, Any]]:
    import torch.distributed

    parts: list[Any] = [None] * world
    torch.distributed.all_gather_object(parts, rows)
    return [row for part in parts for row in part]


def _report(rows: list[dict[str, Any]], seconds: float, passed: int, path: Path) -> None:
    count = {status: sum(row["status"] == status for row in rows) for status in ("written", "kept", "failed")}
    told = f"{len(rows)} pictures: {count['written']} written, {count['kept']} kept, {count['failed']} failed"
    if passed:
        told += f"; {passed} other files passed over"
    if count["written"]:
        told += f" ({count['written'] / seconds:.2f} written per second)"
    print(told)
    print(f"written: {path}")
