"""`depict segment`: label maps, overlays and class shares for any number of pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from depict.config.flags import Device, Folder, check_folder, flag, positional
from depict.config.ranges import RANGES, check_numbers, whole
from depict.devices import processes
from depict.io.checksums import checksum
from depict.io.files import locked_folder, remove_unfinished
from depict.terminal import progress_bar, say

if TYPE_CHECKING:
    from depict.segment.inputs import Input
    from depict.segment.outputs import Outputs


def main(
    model: Annotated[Positional[str], positional("RUN")],
    pictures: Annotated[Positional[tuple[str, ...]], positional("PICTURES...")],
    out: Folder,
    classes: Annotated[str | None, flag("all", "NAMES")] = None,
    overlay: bool = True,
    opacity: float = 0.35,
    confidence: bool = False,
    sort: Literal["name", "confidence"] = "name",
    sheet: bool = False,
    polygons: bool = False,
    coco: Literal["no", "rle", "polygons"] = "no",
    probabilities: bool = False,
    full_image: bool = False,
    multiscale: bool = False,
    tile: Annotated[int | None, flag("whole pictures, resized as in training")] = None,
    overwrite: bool = False,
    compile: bool = False,
    device: Device = None,
    workers: int = 2,
) -> int:
    """Segment pictures: a label map, an overlay and the class shares of each.

    Pictures may have any size and format. Those that cannot be read are reported and skipped, and the
    exit code is 1. Existing outputs are kept, so the same command resumes. Under torchrun the pictures
    are split among the processes.

    Examples:
        depict segment depict-ade20k photo.jpg --out out
        depict segment runs/mine holiday/ 'frames/*.png' clip.mp4 --out out
        depict segment mine.onnx holiday/ --out out --classes sky,road
        depict segment runs/mine unlabeled/ --out out --sort confidence --sheet
        depict segment runs/mine orthophoto.tif --out out --tile 1024 --polygons

    Args:
        model: A run folder, a shipped model such as depict-ade20k, hf-hub:user/name, or a file from
            `depict export` (.onnx, which needs no torch).
        pictures: Files, folders (searched recursively) and patterns such as 'frames/*.png'. A video is read frame by
            frame if it is named itself (needs the extra `video`).
        out: Folder for labels/NAME.png, overlays/NAME.png, summary.json and what other flags ask for. NAME is the path
            below the common parent folder of all inputs.
        classes: Show and write only these classes, such as sky,road. Other pixels become 255 (65535 in 16 bits).
        overlay: Write overlays; those of a video's frames as a video, at the same frame rate.
        opacity: Strength of the class colors in overlays, from 0 to 1.
        confidence: Write the probability of the predicted class as confidence/NAME.png (0 to 255), and its mean to
            the summary.
        sort: Order of the summary and the contact sheet; confidence puts the least certain pictures first, which are
            those to label next.
        sheet: Draw the first 48 overlays side by side in contact_sheet.png.
        polygons: Write the regions of each class as polygons/NAME.geojson (needs the extra `geo`).
        coco: Write all label maps to coco.json: as run lengths, one per class, or as polygons, one per region
            (needs the extra `coco`).
        probabilities: Write the probability of each class at each pixel: float16 (height, width, classes).
        full_image: Run the network on the full image at once instead of sliding windows.
        multiscale: Average over the scales 0.5, 0.75, 1, 1.25, 1.5 and 1.75, each with its mirror image.
        tile: Short edge in pixels of the training images, for pictures that show much more than one of them, such as
            orthophotos. Windows then slide over the picture at that scale. TIFFs may have any size.
        overwrite: Replace existing outputs.
        compile: Compile the network with torch.compile, which can pay off for many pictures.
        device: cpu, cuda, cuda:1 or mps.
        workers: Threads that read pictures ahead, and as many that write.
    """
    from depict.errors import UserError
    from depict.io.coco import need_pycocotools
    from depict.io.polygons import need_rasterio
    from depict.segment.collected import FILES, write_coco, write_sheet
    from depict.segment.inputs import find_inputs
    from depict.segment.outputs import FOLDERS, Outputs, choose_classes
    from depict.segment.pipeline import segment_all
    from depict.segment.predictor import locate_model, model_checksum, open_predictor
    from depict.segment.summary import FILE, Row, Summary
    from depict.viz.overlays import check_opacity

    check_folder(out)
    check_numbers(whole(1, 1024), workers=workers)
    check_numbers(RANGES["data.short_edge"], tile=tile)
    check_opacity(opacity)
    if polygons or coco == "polygons":
        need_rasterio("--polygons" if polygons else "--coco polygons")
    if coco != "no":
        need_pycocotools("--coco")
    if sheet and not overlay:
        raise UserError("--sheet shows overlays: omit --no-overlay.")
    inputs, ignored = find_inputs(pictures, out, output_names=(*FOLDERS, *FILES, FILE))
    with processes() as (rank, world, local), contextlib.ExitStack() as stack:
        found = locate_model(model)
        predictor = open_predictor(
            found, multiscale=multiscale, full_image=full_image, tile=tile, compile=compile, device=device, local=local
        )
        shown = choose_classes(predictor.classes, classes)
        outputs = Outputs(
            out,
            predictor.classes,
            predictor.palette,
            shown,
            overlays=overlay,
            confidence=confidence or sort == "confidence",
            polygons=polygons,
            probabilities=probabilities,
            overwrite=overwrite,
            opacity=opacity,
        )
        settings = {
            "model": str(Path(model).absolute()) if Path(model).exists() else model,
            "weights": model_checksum(found)[:16],
            "multiscale": multiscale,
            "full_image": full_image,
            "tile": tile,
            "classes": [predictor.classes[index] for index in shown],
            "legend": outputs.legend,
        }
        outputs = dataclasses.replace(outputs, settings=checksum(json.dumps([settings, opacity]).encode()))
        summary = None
        if rank == 0:
            busy = f"another `depict segment` is writing to '{out}': wait for it, or choose another --out."
            stack.enter_context(locked_folder(out, busy))
            summary = Summary(out, settings, overwrite)
            summary.write([], ignored)  # marks the folder as ours, however this call ends
            remove_unfinished(out)
            for folder in FOLDERS:
                remove_unfinished(out / folder, "**/*")
        if world > 1:
            _wait_for_others()
        rows: list[Row] = []
        started = time.perf_counter()
        try:
            with (
                _exit_on_signals() as check_signals,
                warnings.catch_warnings(),
                progress_bar(total=_count(inputs, world), desc="segmenting", unit="image", disable=rank > 0) as bar,
            ):
                warnings.simplefilter("ignore")  # remarks of image decoders on odd files
                for row in segment_all(predictor, inputs, outputs, workers, rank, world):
                    rows.append(row)
                    bar.update()
                    check_signals()
                    if row["status"] == "failed":
                        say(f"depict: skipped: {row['error']}", error=True)
        finally:
            if summary and world == 1:
                summary.write(rows, ignored)
        if world > 1:
            rows = _gather(rows, world)
        if summary:
            # One process alone has already added its rows.
            in_order = summary.write(rows if world > 1 else [], ignored, sort == "confidence")
            written = [summary.path, outputs.folder / "labels"]
            if overlay:
                written += [outputs.folder / "overlays", *_write_videos(inputs, outputs, rows)]
            if sheet:
                written.append(write_sheet(in_order, outputs))
            if coco != "no":
                path, left_out = write_coco(inputs, outputs, coco == "polygons", _done(rows))
                written.append(path)
                for name in left_out:
                    say(f"depict: '{name}' is too large for a mask in {path.name} and is left out", error=True)
            _report(rows, time.perf_counter() - started, len(ignored), written)
        return 1 if any(row["status"] == "failed" for row in rows) else 0


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[Callable[[], None]]:
    """Remove unfinished files when a user, a batch system or a closed terminal ends the process.

    Only around the work: before and after it a process waits for others, and Python handles no signals. Yields a check
    for between two pictures: Python prints and drops what a handler raises while a generator is being collected.
    """
    asked: list[int] = []

    def check() -> None:
        if asked:
            raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])

    def handle(number: int, _: FrameType | None) -> None:
        asked.append(number)
        check()

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    numbers = [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    before = {number: signal.getsignal(number) for number in numbers}
    print_dropped = sys.unraisablehook
    sys.unraisablehook = lambda dropped: None if asked else print_dropped(dropped)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as SIGHUP under nohup
            signal.signal(number, handle)
    try:
        yield check
    finally:
        sys.unraisablehook = print_dropped
        for number, handler in before.items():
            signal.signal(number, handler)


def _count(inputs: list[Input], world: int) -> int | None:
    """The number of pictures and frames for this process; None if a video does not state its length."""
    from depict.segment.video import frame_count

    counts = [frame_count(entry.path) if entry.video else 1 for entry in inputs]
    known = [count for count in counts if count is not None]
    return -(-sum(known) // world) if len(known) == len(counts) else None


def _wait_for_others() -> None:
    import torch.distributed

    torch.distributed.barrier()


def _gather(rows: list[dict[str, Any]], world: int) -> list[dict[str, Any]]:
    """The rows of all processes."""
    import torch.distributed

    parts: list[Any] = [None] * world
    torch.distributed.all_gather_object(parts, rows)
    return [row for part in parts for row in part]


def _done(rows: list[dict[str, Any]]) -> set[str]:
    """The names of the pictures and frames that have outputs; at other names there may be those of other pictures."""
    return {row["name"] for row in rows if row["status"] != "failed"}


def _write_videos(inputs: list[Input], outputs: Outputs, rows: list[dict[str, Any]]) -> list[Path]:
    """Draw the overlays of the videos, but for those that the journal proves to be of the present label maps."""
    from depict.segment.collected import video_path, write_video
    from depict.segment.journal import Journal
    from depict.segment.summary import printable

    journal, done, paths = Journal(outputs.folder, outputs.settings), _done(rows), []
    usable = {row["source"] for row in rows if row["status"] != "failed"}
    for video in (entry for entry in inputs if entry.video and printable(entry.path) in usable):
        path, source = video_path(outputs, video), printable(video.path)
        content = journal.content_below(f"{video.name}/")
        if outputs.overwrite or not journal.keeps(video.name, source, content, [path]):
            journal.begin(video.name, source)
            write_video(video, outputs, done)
            journal.finish(video.name, source, content, [path])
        paths.append(path)
    return paths


LISTED = 5
"""Classes that are listed for a single picture."""


def _report(rows: list[dict[str, Any]], seconds: float, ignored: int, written: list[Path]) -> None:
    count = {status: sum(row["status"] == status for row in rows) for status in ("written", "kept", "failed")}
    text = f"{len(rows)} picture{'s' * (len(rows) != 1)}: "
    text += f"{count['written']} written, {count['kept']} kept, {count['failed']} failed"
    if ignored:
        text += f"; {ignored} other file{'s' * (ignored != 1)} ignored"
    if count["written"]:
        text += f" ({count['written'] / seconds:.2f} written per second)"
    say(text)
    if len(rows) == 1 and "shares" in rows[0]:
        largest = sorted(rows[0]["shares"].items(), key=lambda item: -item[1])[:LISTED]
        say(", ".join(f"{name} {100 * share:.1f} %" for name, share in largest if share >= 0.0005))
    certain = sorted((row["confidence"], row["name"]) for row in rows if "confidence" in row)
    if len(certain) > 1:
        least = ", ".join(f"{name} ({100 * score:.1f} %)" for score, name in certain[:3])
        mean = sum(score for score, _ in certain) / len(certain)
        say(f"confidence: {100 * mean:.1f} % on average; least certain: {least}")
    say(f"written: {', '.join(map(str, written))}")
