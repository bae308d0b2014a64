"""What a training reports: a progress bar and messages on stderr, metrics.jsonl, pictures, and a tracker."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accelerate import Accelerator
from PIL import Image

from depict import terminal
from depict.config.resolve import ResolvedConfig
from depict.evaluation import Result
from depict.io.files import atomic_path
from depict.io.yaml import to_dict
from depict.runs import CURVES, PREVIEW, Metrics, read_metrics
from depict.training.preview import Preview
from depict.viz.curves import draw_curves

LOG_EVERY = 10
"""Steps between two lines of loss, rate and speed."""


def say(accelerator: Accelerator, text: str) -> None:
    """Print a message above the progress bar, from one process only."""
    if accelerator.is_main_process:
        terminal.say(*text.split("\n"), error=True)


def settings_text(config: ResolvedConfig) -> str:
    """The settings as YAML, without the augmentation that cached features do not use."""
    settings = _printable(to_dict(config))
    if config.train.cache_features:
        del settings["data"]["scale_range"], settings["data"]["color_jitter"]
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=None).rstrip()


def _printable(value: Any) -> Any:
    """Settings without line breaks in names: YAML would print them."""
    if isinstance(value, dict):
        return {name: _printable(item) for name, item in value.items()}
    return terminal.printable(value) if isinstance(value, str) else value


class Log:
    """The reports of one training from step `iteration` on; a context manager around its loop."""

    def __init__(
        self, out: Path, accelerator: Accelerator, tracker: str, iteration: int, total: int, steps_per_epoch: int
    ) -> None:
        self.out, self.accelerator, self.tracker = out, accelerator, tracker
        self.total, self.steps_per_epoch = total, steps_per_epoch
        main = accelerator.is_main_process
        self.metrics = Metrics(out, iteration) if main else None
        if tracker != "none":
            accelerator.init_trackers("depict", config={"run": str(out)})
        self.bar = terminal.progress_bar(total=total, initial=iteration, unit="step", desc=out.name, disable=not main)
        self._restart_clock()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def step(self, iteration: int, loss: float, rate: float, images: int) -> None:
        """Report a step on this many `images`; every few steps with loss, rate and speed."""
        self.images += images
        if iteration % LOG_EVERY == 0 or iteration == self.total:
            speed = self.images / (time.perf_counter() - self.since)
            self.bar.set_postfix(loss=f"{loss:.3f}", lr=f"{rate:.1e}", images_s=f"{speed:.1f}")
            self._write(iteration, loss=loss, lr=rate, images_per_second=round(speed, 2))
            self._restart_clock()
        self.bar.update()

    def validation(self, iteration: int, result: Result, best: bool, preview: Preview) -> None:
        """Report a validation, in words and pictures; its time does not count as training."""
        text = f"{self.out.name}, step {iteration}: mIoU {100 * result.miou:.2f} %{' (best so far)' if best else ''}"
        say(self.accelerator, text)
        scores = {"miou": result.miou, "macc": result.macc, "aacc": result.aacc}
        self._write(iteration, **{name: None if math.isnan(value) else value for name, value in scores.items()})
        self._write_preview(iteration, preview.sheet(text))
        self.redraw_curves()
        self._restart_clock()

    def redraw_curves(self) -> None:
        """Draw the curves of all steps so far, also of those before a resume."""
        if self.metrics:
            draw_curves(read_metrics(self.out), self.out.name, self.out / CURVES)

    def _write_preview(self, iteration: int, sheet: Image.Image) -> None:
        if self.metrics:
            with atomic_path(self.out / PREVIEW) as temporary:
                sheet.save(temporary, "png")
        if self.tracker != "none":
            options = {"dataformats": "NHWC"} if self.tracker == "tensorboard" else {}
            tracker = self.accelerator.get_tracker(self.tracker)
            tracker.log_images({"preview": np.asarray(sheet)[None]}, step=iteration, **options)

    def _restart_clock(self) -> None:
        self.since, self.images = time.perf_counter(), 0

    def _write(self, iteration: int, **values: Any) -> None:
        if self.metrics:
            epoch, processes = iteration / self.steps_per_epoch, self.accelerator.num_processes
            self.metrics.write(iteration=iteration, epoch=epoch, processes=processes, **values)
        if self.tracker != "none":
            self.accelerator.log(values, step=iteration)
