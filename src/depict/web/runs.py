"""The models that a server serves: runs with their decoder's steps, and exported files with labels only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from depict.decoders import level_decoder
from depict.inference.predictors import Predictor
from depict.io.hub import short_names
from depict.segment.predictor import open_predictor

if TYPE_CHECKING:
    from depict.model import SegmentationModel

ONNX_NOTE = (
    "This model is an ONNX file, which gives labels only. To see its steps and ask its patches, serve the run that it "
    "was exported from."
)
LEVELS_NOTE = (
    "The decoder of this run takes the levels of its encoder and has no steps to show: the page has its labels only."
)


@dataclass(frozen=True)
class Run:
    """One model."""

    name: str
    """That of its folder or file; never a path, because pages show it."""
    predictor: Predictor
    model: SegmentationModel | None
    """None for an ONNX file."""

    @property
    def about(self) -> str:
        """Decoder and encoder in a few words."""
        if self.model is None:
            return "ONNX"
        return f"{self.model.config.decoder.name} on {self.model.config.encoder.name}"

    @property
    def note(self) -> str | None:
        """Why the page shows only the labels of this run; None if it shows the decoder's steps, too."""
        if self.model is None:
            return ONNX_NOTE
        return None if self.has_steps else LEVELS_NOTE

    @property
    def has_steps(self) -> bool:
        """Whether its decoder can be unrolled."""
        return self.model is not None and level_decoder(self.model.config.decoder.name) is None


def open_runs(runs: Sequence[str], device: str | None = None) -> list[Run]:
    """Load run folders, `hf-hub:user/name` and .onnx files."""
    opened = []
    for run, name in zip(runs, short_names(runs), strict=True):
        predictor = open_predictor(run, device=None if is_onnx(run) else device)
        opened.append(Run(name, predictor, getattr(predictor, "model", None)))
    return opened


def is_onnx(run: str) -> bool:
    """Whether a run is an exported file."""
    return Path(run).suffix.lower() == ".onnx"
