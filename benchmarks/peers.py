"""Our decoders and those of segmentation_models_pytorch (smp) on the same encoder, in the same training loop.

    python benchmarks/peers.py --out DIR --data camvid --root CamVid --encoder tf_efficientnet_lite0 \\
        --image-size 256 320 --epochs 20 --seeds 0 1 2 --named pole sign/symbol pedestrian \\
        --decoders smp_fpn smp_unet linear,stride=4 depict_sa,stride=4,decoder.operator=exact
    python benchmarks/peers.py --out DIR --time          # the same decoders, on an idle machine
    python benchmarks/peers.py --out DIR --quick         # a smoke test on generated scenes

A study of `depict study decoders` with four more decoders: smp_fpn, smp_unet, smp_deeplabv3plus and smp_segformer are
the decoder and head of smp's models with smp's defaults, on the levels of our encoder. Data, augmentation, loss,
optimizer, schedule, seeds, validation and evaluation are ours for all. Settings are the flags of `depict study`, and
each decoder may have its own; give --stride and --neck.dim to single decoders only, because the peers have theirs.
Before anything else, each peer must give the logits of the whole smp model with the same weights.

Two things differ from smp's models: masks are enlarged as ours are, without `align_corners`, and the encoder runs in
channels-last order, as ours does everywhere; the peers' own convolutions do not. DeepLabV3+ dilates the last stage of
the encoder, as smp does by default.

The same command resumes: finished trainings and times are kept. DIR/peers.md has the table, DIR/peers.json its numbers.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parent))

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from tyro.conf import arg

from depict.commands.settings import base_config, value_of
from depict.config.flags import Folder, check_folder, flag, parse_and_call
from depict.config.resolve import resolve
from depict.config.schema import Config
from depict.decoders import register_decoder
from depict.decoders.base import LevelDecoder
from depict.devices import kept_memory
from depict.errors import UserError
from depict.evaluation import sliding_window_for
from depict.io.files import read_json, write_json, write_text
from depict.io.yaml import to_dict, write_yaml
from depict.model import SegmentationModel
from depict.studies.collect import collect
from depict.studies.plan import FILE, Study, distinct_cells, open_study, plan, read_study
from depict.studies.running import run as run_study
from depict.studies.tables import markdown_table, mean_and_spread
from depict.terminal import say, say_text
from depict.training.losses import plain_loss
from depict.training.optim import create_optimizer
from depict.training.stopping import InterruptedTraining
from measure import alone, best, peak, resident

PEERS = {
    "smp_fpn": smp.FPN,
    "smp_unet": smp.Unet,
    "smp_deeplabv3plus": smp.DeepLabV3Plus,
    "smp_segformer": smp.Segformer,
}
DILATED = "_dilated"
"""Ending of the name of an encoder whose last stage is dilated, so that its coarsest stride is 16."""
OURS = ("linear,stride=4", "depict_sa,stride=4,decoder.operator=exact")
QUICK = shlex.split("""--data scenes --encoder test_efficientnet --encoder.pretrained False --image-size 64
    --data.every 64 --data.holdout 0.25 --epochs 1 --batch 4 --lr 1e-3 --data.workers 0 --device cpu
    --named road car""")
TIMES = "times.json"
EXPLANATION = (
    "mIoU, boundary IoU and the IoU of the named classes of the validation images, single-scale, of the best weights "
    "by validation, are means over n seeds. Parameters and GFLOPs (multiply-adds, one window) are those of all that "
    "follows the encoder. Speed and peak extra memory are those of the whole model on 2 CPU threads: a training step "
    "with cross-entropy or the decoder's own loss on one batch, labels of one validation image, and the forward pass "
    "of one window."
)


class Peer(LevelDecoder):
    """Decoder and head of a model of smp, without its final enlargement."""

    finest = 2
    architecture: Any
    encoder_name: str

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims, num_classes)
        model = self.whole_model(num_classes)
        if (channels := tuple(model.encoder.out_channels[1:])) != self.dims:
            raise UserError(f"smp has levels of {channels} channels, ours have {self.dims}: choose another encoder.")
        self.decoder: nn.Module = model.decoder
        self.head: nn.Module = model.segmentation_head[0]

    @classmethod
    def whole_model(cls, num_classes: int) -> Any:
        """The model of smp, with random weights."""
        return cls.architecture(f"tu-{cls.encoder_name}", encoder_weights=None, classes=num_classes)

    def forward(self, levels: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:  # type: ignore[override]
        """Masks (B, C, h, w). smp's decoders read nothing but the size of the image, their first level."""
        height, width = grid[0] * self.stride, grid[1] * self.stride
        image = levels[0].new_empty(levels[0].shape[0], 0, height, width)
        # Contiguous: the backward pass of their 3 x 3 convolutions is faster than in channels_last.
        return self.head(self.decoder([image, *(level.permute(0, 3, 1, 2).contiguous() for level in levels)]))


def register_peers(encoder: str) -> None:
    """Make the four peers on this encoder known as decoders, and the encoder with a dilated last stage."""
    for name, architecture in PEERS.items():
        own = {"architecture": architecture, "encoder_name": encoder, "stride": 1 if architecture is smp.Unet else 4}
        register_decoder(name, type(name, (Peer,), own))

    def dilated(pretrained: bool = False, **options: Any) -> nn.Module:
        return timm.create_model(encoder, pretrained=pretrained, output_stride=16, **options)

    dilated.__name__ = encoder + DILATED
    if not timm.is_model(dilated.__name__):
        timm.models.register_model(dilated)


def complete(decoder: str, encoder: str) -> str:
    """A decoder's settings with the dilated encoder that DeepLabV3+ needs."""
    needed = f"encoder.name={encoder}{DILATED}"
    return f"{decoder},{needed}" if decoder.startswith("smp_deeplab") and needed not in decoder else decoder


@torch.no_grad()
def check_peer(model: SegmentationModel, size: tuple[int, int]) -> None:
    """Compare a peer with the whole model of smp with the same weights: levels equal, logits up to rounding."""
    decoder = model.decoder
    assert isinstance(decoder, Peer)
    whole = decoder.whole_model(model.num_classes).to(memory_format=torch.channels_last).eval()
    whole.encoder.model.load_state_dict(model.encoder.features.state_dict())
    whole.decoder.load_state_dict(decoder.decoder.state_dict())
    whole.segmentation_head[0].load_state_dict(decoder.head.state_dict())
    whole.segmentation_head[1] = nn.Identity()
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=torch.channels_last)
    levels = zip(whole.encoder(images)[1:], model.eval().encoder(images), strict=True)
    if not all(torch.equal(theirs, ours.permute(0, 3, 1, 2)) for theirs, ours in levels):
        raise SystemExit(f"{type(decoder).__name__}: the levels of smp's encoder differ from ours")
    theirs, ours = whole(images), model.masks(images)
    difference = float((theirs - ours).abs().max())
    if theirs.shape != ours.shape or difference > 1e-5 * float(theirs.abs().max()):
        raise SystemExit(f"{type(decoder).__name__}: its logits differ from smp's by up to {difference:.1e}")
    say(f"{type(decoder).__name__}: levels equal smp's bit by bit; logits differ by at most {difference:.1e}")


def check_batches(name: str, images: int, batch: int) -> None:
    """Refuse a batch of one image for DeepLabV3+, whose BatchNorm on pooled features needs two."""
    if name == "smp_deeplabv3plus" and 1 in (batch, images % batch):
        raise UserError(f"{name} cannot train on one image: choose another --batch than {batch} for {images} images.")


def build(config: Config, encoder: str) -> tuple[Any, SegmentationModel]:
    """The resolved experiment and its model, in a process where the peers may not be known yet."""
    register_peers(encoder)
    experiment = resolve(config)
    torch.manual_seed(config.seed)
    return experiment, SegmentationModel(experiment.config, experiment.training.classes)


def inference(config: Config, encoder: str) -> dict[str, float]:
    """Seconds of the forward pass of one window, and of one validation image; extra memory of the latter."""
    experiment, model = build(config, encoder)
    model.eval()
    window = torch.randn(1, 3, *model.image_size)
    predictor = model.predictor(sliding_window_for(model, experiment.validation))
    pixels = experiment.validation.read(0)[0].permute(1, 2, 0).numpy()
    before = resident()
    predictor.labels(pixels)
    memory = peak() - before
    with torch.no_grad():
        forward = best(lambda: model.masks(window))
    return {"forward": forward, "image": best(lambda: predictor.labels(pixels)), "inference_bytes": memory}


def training(config: Config, encoder: str) -> dict[str, float]:
    """Seconds and extra memory of a training step, and the images of its batch."""
    experiment, model = build(config, encoder)
    optimizer = create_optimizer(model.train(), experiment.config.train, 1e-6)
    batch = experiment.config.train.batch
    images = torch.randn(batch, 3, *model.image_size)
    labels = torch.randint(model.num_classes, (batch, *model.image_size), dtype=torch.uint8)

    def step() -> None:
        plain_loss(model, model(images, full_size=False), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with kept_memory():  # as `depict train` does
        before = resident()
        step()
        memory = peak() - before
        return {"step": best(step, least=2), "batch": batch, "training_bytes": memory}


def measure(study: Study, out: Path) -> None:
    """Times and memory of every decoder of the study that has none yet, each in processes of its own."""
    times = read_times(out)
    write_yaml(out / FILE, to_dict(study))
    for cell in plan(study):
        if cell.label not in times:
            arguments = (dataclasses.replace(cell.config, seed=0), study.settings.encoder.name)
            times[cell.label] = alone(inference, *arguments) | alone(training, *arguments)
            write_json(out / TIMES, times)
            say(f"measured: {cell.label}")


def read_times(out: Path) -> dict[str, Any]:
    path = out / TIMES
    return read_json(path, "remove it to measure again") if path.is_file() else {}


def summary(study: Study, out: Path, named: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each decoder: scores if it is trained, times if it is measured."""
    lines, times = {line["label"]: line for line in collect(study, out)}, read_times(out)
    rows = []
    for label in dict.fromkeys(cell.label for cell in plan(study)):
        line: dict[str, Any] = dict(lines.get(label, {}))
        iou = line.get("class_means", {})
        if line and (unknown := [name for name in named if name not in iou]):
            raise UserError(f"--named: there is no class '{unknown[0]}', only {', '.join(iou)}.")
        keys = ("seeds", "mean", "spread", "boundary_iou", "parameters", "multiply_adds", "images_per_second")
        scores = {key: line[key] for key in keys} if line else {}
        classes = {name: iou.get(name) for name in named}
        rows.append({"label": label, "scores": scores, "classes": classes, "times": times.get(label, {})})
    return rows


def table(rows: list[dict[str, Any]], named: Sequence[str]) -> str:
    """The rows as Markdown."""
    head = ["decoder", "n", "mIoU %", "boundary IoU %", *(f"{name} %" for name in named), "parameters", "GFLOPs"]
    head += ["training images/s", "inference images/s", "forward ms", "training MB", "inference MB"]
    return markdown_table(head, [_texts(row) for row in rows])


def _texts(row: dict[str, Any]) -> list[str]:
    scores, times = row["scores"], row["times"]
    label = ",".join(part for part in row["label"].split(",") if not part.endswith(DILATED))
    texts = [label, *["-"] * 3]
    if scores:
        texts[1:] = [str(len(scores["seeds"])), mean_and_spread(scores["mean"], scores["spread"])]
        texts.append(_number(scores["boundary_iou"], 100))
    texts += [_number(value, 100) for value in row["classes"].values()]
    texts += [f"{scores['parameters'] / 1e6:.3f} M", f"{scores['multiply_adds'] / 1e9:.3f}"] if scores else ["-"] * 2
    if not times:
        return [*texts, *["-"] * 5]
    speeds = [f"{times['batch'] / times['step']:.1f}", f"{1 / times['image']:.1f}", f"{1e3 * times['forward']:.1f}"]
    return [*texts, *speeds, *(f"{times[key] / 1e6:.0f}" for key in ("training_bytes", "inference_bytes"))]


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{unit * value:.2f}"


def run(arguments: list[str]) -> int:
    """Read the study in `--out` first: its settings are the defaults of all other flags."""
    if "--quick" in arguments:
        arguments = [*QUICK, *(word for word in arguments if word != "--quick")]
    folder = value_of("--out", arguments)
    before = read_study(Path(folder)) if folder else None
    base = base_config(arguments, before.settings if before else None)

    def main(
        out: Folder,
        decoders: Annotated[tuple[str, ...] | None, flag("the four peers and two of ours", "NAME...")] = None,
        seeds: Annotated[tuple[int, ...] | None, flag("the value of --seed", "INT...")] = None,
        named: Annotated[tuple[str, ...], flag("none", "CLASS...")] = (),
        time: bool = False,
        settings: Annotated[Config, arg(name="")] = base,
    ) -> int:
        """Train or time decoders of depict and of segmentation_models_pytorch side by side.

        Args:
            out: Folder of the study.
            decoders: Decoders, optionally with settings: smp_fpn depict_sa,stride=4,lr=3e-3.
            seeds: Seeds of each decoder.
            named: Classes whose IoU the table shows.
            time: Measure times and memory instead of training.
        """
        check_folder(out)
        encoder = settings.encoder.name
        register_peers(encoder)
        given = decoders or (() if before else (*PEERS, *OURS))
        study = open_study(out, "decoders", settings, seeds, tuple(complete(each, encoder) for each in given))
        for cell in {cell.label: cell for cell in distinct_cells(study)}.values():
            if cell.config.decoder.name in PEERS:
                experiment, model = build(cell.config, encoder)
                check_peer(model, (96, 128))
                check_batches(cell.config.decoder.name, len(experiment.training), experiment.config.train.batch)
        if time:
            measure(study, out)
        else:
            run_study(study, out)
        rows = summary(study, out, named)
        text = f"{table(rows, named)}\n\n{EXPLANATION}\n"
        write_json(out / "peers.json", rows)
        write_text(out / "peers.md", text)
        say_text(text)
        return 0

    return parse_and_call(main, "benchmarks/peers.py", arguments)


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except (UserError, InterruptedTraining) as error:
        sys.exit(f"peers: {error}")
