"""`depict info`: parameters and multiply-adds of decoders, next to the paper's figures."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import textwrap
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any

from tyro.conf import arg

from depict.config.flags import flag
from depict.config.paper import FOOTNOTES, MASKFORMER, MASKFORMER_COSTS, Row, paper_rows
from depict.config.presets import preset_names
from depict.config.ranges import check_numbers, whole
from depict.config.schema import Config, DecoderConfig, EncoderConfig, NeckConfig
from depict.io.classes import MOST_CLASSES
from depict.terminal import say, say_text

CONVENTION = (
    "GFLOPs as the paper counts them: 1 multiply-add = 1, attention products included, LayerNorm 5 per element;\n"
    "softmax, L2 norms, element-wise operations and the final interpolation not counted. Decoder only, one image."
)


def main(
    decoder: DecoderConfig = DecoderConfig(name=""),  # noqa: B008 - read, never changed
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008
    neck: NeckConfig = NeckConfig(),  # noqa: B008
    stride: Annotated[int | None, flag("the patch of a plain ViT, 8 for others")] = None,
    image_size: int = 512,
    classes: int = 150,
    models: bool = False,
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """List parameters and GFLOPs of every decoder next to the paper's figures.

    Any flag but --json and --models prints one model instead of the paper's tables.

    Examples:
        depict info
        depict info --decoder depict_sa --encoder vit_small_patch16_384 --classes 150
        depict info --decoder linear --encoder convnext_tiny --stride 4
        depict info --models
        depict info --json

    Args:
        decoder: The decoder of that model.
        encoder: The encoder of that model.
        neck: Its neck, if the encoder needs one.
        stride: Cell of the decoder's grid and its masks in pixels.
        image_size: Side of its square input in pixels.
        classes: Its number of classes.
        models: List the trained models that come with depict instead; use their names wherever a RUN is expected.
        json_: Print JSON with exact integers.
    """
    if models:
        _print_models()
        return
    given = (decoder, encoder, neck, stride, image_size, classes)
    if given != (DecoderConfig(name=""), EncoderConfig(), NeckConfig(), None, 512, 150):
        decoder = dataclasses.replace(decoder, name=decoder.name or "depict_sa")
        encoder = dataclasses.replace(encoder, pretrained=False)
        _one_model(
            Config(encoder, decoder, image_size=image_size, stride=stride, neck=neck), image_size, classes, json_
        )
        return
    facts = [_facts(row) for row in paper_rows()]
    if json_:
        convention = " ".join(CONVENTION.split())
        report = {"convention": convention, "rows": facts, "footnotes": FOOTNOTES, "configurations": preset_names()}
        say_text(json.dumps(report, indent=2))
    else:
        _print_tables(facts)


def _print_models() -> None:
    """One line for each shipped model: its name and the first sentence of its card."""
    from depict.io.shipped import shipped_models

    if not (found := shipped_models()):
        say("No trained models come with this version of depict.")
    for name, folder in found.items():
        lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
        say(f"{name}  {next(line for line in lines if line and not line.startswith(('#', '---')))}")


def _facts(row: Row) -> dict[str, Any]:
    """Costs of a row's decoder next to the printed figures."""
    from depict.costs import decoder_costs

    computed = row.config != MASKFORMER or importlib.util.find_spec("transformers") is not None
    parameters, flops = MASKFORMER_COSTS
    if computed:
        parameters, flops = decoder_costs(row.decoder, row.dim, row.classes, row.grid, **row.options)
    return {
        "table": row.table,
        "decoder": row.label,
        "backbone": row.backbone,
        "image_size": row.image_size,
        "classes": row.classes,
        "configuration": row.config,
        "kind": row.decoder,
        "options": row.options,
        "computed": computed,
        "parameters": parameters,
        "parameters_printed_millions": row.parameters or None,
        "parameters_round_to_printed": rounds_to(parameters, row.parameters, 6),
        "multiply_adds": flops,
        "multiply_adds_printed_billions": row.flops or None,
        "multiply_adds_round_to_printed": rounds_to(flops, row.flops, 9),
        "miou_printed": row.miou,
        "note": row.note or None,
    }


def _print_tables(facts: list[dict[str, Any]]) -> None:
    for table, rows in itertools.groupby(facts, key=lambda row: row["table"]):
        say_text(f"\n{table}")
        say(
            f"  {'decoder':<26}{'backbone':<9}{'input':>6}   "
            f"{'params':>11}{'paper':>8}{'diff':>9}   {'GFLOPs':>8}{'paper':>7}{'diff':>8}"
        )
        for row in rows:
            say(_line(row))
    say_text(
        f"\n{CONVENTION}\n\nWhere the paper's own figures disagree (rows marked * do not round to the printed digit):"
    )
    for text in FOOTNOTES:
        say(f"  - {text}")
    say_text("\nConfigurations, for `depict train --config NAME`:")
    names = "  ".join(preset_names())
    say_text(textwrap.fill(names, 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _line(row: dict[str, Any]) -> str:
    """One line of a table, marked * where a cost does not round to the printed digit."""
    mark = " *" if False in (row["parameters_round_to_printed"], row["multiply_adds_round_to_printed"]) else ""
    parameters = _compare(row["parameters"] / 1e6, row["parameters_printed_millions"], " M", (9, 8, 9))
    flops = _compare(row["multiply_adds"] / 1e9, row["multiply_adds_printed_billions"], "", (8, 7, 8))
    line = f"  {row['decoder']:<26}{row['backbone']:<9}{row['image_size']:>6}   {parameters}   {flops}{mark}"
    return line.rstrip()


def _compare(ours: float, printed: str | None, unit: str, widths: tuple[int, int, int]) -> str:
    """Our figure, the printed one and the difference, in columns of these widths."""
    difference = f"{ours - float(printed):+.3f}" if printed else ""
    return f"{ours:>{widths[0]}.3f}{unit}{printed or '':>{widths[1]}}{difference:>{widths[2]}}"


def rounds_to(value: int, printed: str, power: int) -> bool | None:
    """Whether value / 10^power, rounded to the printed digits, is the printed figure; None where none is printed."""
    if not printed:
        return None
    digit = Decimal(printed).as_tuple().exponent
    assert isinstance(digit, int)
    return (Decimal(value).scaleb(-power)).quantize(Decimal(1).scaleb(digit), ROUND_HALF_UP) == Decimal(printed)


def _one_model(config: Config, side: int, classes: int, as_json: bool) -> None:
    """Print the costs of one model, which is built without memory on the meta device."""
    import torch

    from depict.costs import encoder_multiply_adds, parameters
    from depict.decoders.base import LevelDecoder
    from depict.inference.sliding import padded_size
    from depict.model import SegmentationModel

    check_numbers(whole(1, MOST_CLASSES), classes=classes)
    with torch.device("meta"):
        model = SegmentationModel(config, [f"class {index}" for index in range(classes)])
    size = (side, side)
    rows, columns = model.grid(size)
    neck = [part for part in (model.neck, model.stem) if part is not None]
    facts: dict[str, Any] = {
        "decoder": config.decoder.name,
        "encoder": config.encoder.name,
        "image_size": side,
        "classes": classes,
        "dim": list(model.decoder.dims) if isinstance(model.decoder, LevelDecoder) else model.decoder.token_dim,
        "grid": [rows, columns],
        "decoder_parameters": parameters(model.decoder),
        "decoder_multiply_adds": model.head_multiply_adds(size) - model.neck_multiply_adds(size),
        "neck_parameters": sum(map(parameters, neck)),
        "neck_multiply_adds": model.neck_multiply_adds(size),
        "encoder_parameters": parameters(model.encoder),
        "encoder_multiply_adds": encoder_multiply_adds(model.encoder, padded_size(size, model.multiple)),
    }
    if as_json:
        say_text(json.dumps(facts, indent=2))
        return
    say(
        f"{config.decoder.name} on {config.encoder.name}, {side} x {side} pixels, {classes} classes, "
        f"{rows} x {columns} {'cells, levels' if isinstance(facts['dim'], list) else 'tokens'} of D = {facts['dim']}"
    )
    for part in ("decoder", "neck", "encoder") if neck else ("decoder", "encoder"):
        count, flops = facts[f"{part}_parameters"], facts[f"{part}_multiply_adds"]
        say(f"  {part:<8}{count / 1e6:>10.3f} M parameters{flops / 1e9:>10.3f} GFLOPs")
    say_text(f"\n{CONVENTION}")
