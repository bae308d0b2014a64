"""`depict info`: what decoders weigh and cost, beside the paper's figures."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any

import tyro

from depict.config.paper import DIMS, FOOTNOTES, MASKFORMER, ROWS, Row
from depict.config.presets import preset_names
from depict.config.schema import DecoderConfig, EncoderConfig
from depict.errors import UserError

CONVENTION = (
    "GFLOPs as the paper counts them: 1 multiply-add = 1, attention products included, LayerNorm 5 per element;\n"
    "softmax, L2 norms, element-wise operations and the final interpolation not counted. Decoder only, one image."
)


def main(
    decoder: DecoderConfig = DecoderConfig(name=""),  # noqa: B008 - read, never changed
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008
    image_size: int = 512,
    classes: int = 150,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Parameters and GFLOPs of every decoder in the paper's tables beside the printed figures, or of one model.

    Args:
        decoder: With any of these, or of the encoder's: tell of this one model instead of the paper's tables.
        encoder: The encoder of that model.
        image_size: Side of its square input in pixels.
        classes: Its number of classes.
        json_: Print JSON with exact integers.
    """
    if (decoder, encoder, image_size, classes) != (DecoderConfig(name=""), EncoderConfig(), 512, 150):
        _one_model(dataclasses.replace(decoder, name=decoder.name or "depict_sa"), encoder, image_size, classes, json_)
        return
    from depict.costs import decoder_costs

    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if row.decoder:
            grid = (row.side // 16, row.side // 16)
            parameters, flops = decoder_costs(row.decoder, DIMS[row.backbone], row.classes, grid, **row.options)
        else:
            parameters, flops = MASKFORMER
        rows.append(_facts(row, parameters, flops))
    if json_:
        told = {"convention": " ".join(CONVENTION.split()), "rows": rows, "footnotes": FOOTNOTES}
        print(json.dumps(told | {"configurations": preset_names()}, indent=2))
        return
    table = None
    for row, facts in zip(ROWS, rows, strict=True):
        if row.table != table:
            table = row.table
            print(f"\n{table}")
            print(
                f"  {'decoder':<26}{'backbone':<9}{'input':>6}   "
                f"{'params':>11}{'paper':>8}{'diff':>9}   {'GFLOPs':>8}{'paper':>7}{'diff':>8}"
            )
        print(_line(row, facts))
    print(
        f"\n{CONVENTION}\n\nWhere the paper's own figures disagree (rows marked * do not round to the printed digit):"
    )
    for text in FOOTNOTES:
        print(f"  - {text}")
    print("\nConfigurations, for `depict train --config NAME`:")
    names = "  ".join(preset_names())
    print(textwrap.fill(names, 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _facts(row: Row, parameters: int, flops: int) -> dict[str, Any]:
    return {
        "table": row.table,
        "decoder": row.label,
        "backbone": row.backbone,
        "image_size": row.side,
        "classes": row.classes,
        "kind": row.decoder or None,
        "options": row.options,
        "computed": bool(row.decoder),
        "parameters": parameters,
        "parameters_printed_millions": row.parameters or None,
        "parameters_round_to_printed": rounds_to(parameters, row.parameters, 6),
        "multiply_adds": flops,
        "multiply_adds_printed_billions": row.flops or None,
        "multiply_adds_round_to_printed": rounds_to(flops, row.flops, 9),
        "note": row.note or None,
    }


def rounds_to(value: int, printed: str, power: int) -> bool | None:
    """Whether value / 10^power, rounded to the printed digits, is the printed figure; None where none is printed."""
    if not printed:
        return None
    digit = Decimal(printed).as_tuple().exponent
    assert isinstance(digit, int)
    return (Decimal(value).scaleb(-power)).quantize(Decimal(1).scaleb(digit), ROUND_HALF_UP) == Decimal(printed)


def _line(row: Row, facts: dict[str, Any]) -> str:
    slip = facts["parameters_round_to_printed"] is False or facts["multiply_adds_round_to_printed"] is False
    millions, billions = facts["parameters"] / 1e6, facts["multiply_adds"] / 1e9
    line = (
        f"  {row.label:<26}{row.backbone:<9}{row.side:>6}   "
        f"{millions:>9.3f} M{row.parameters:>8}{_difference(millions, row.parameters):>9}   "
        f"{billions:>8.3f}{row.flops:>7}{_difference(billions, row.flops):>8}{' *' if slip else ''}"
    )
    return line.rstrip()


def _difference(ours: float, printed: str) -> str:
    return f"{ours - float(printed):+.3f}" if printed else ""


def _one_model(decoder: DecoderConfig, encoder: EncoderConfig, side: int, classes: int, as_json: bool) -> None:
    import torch

    from depict.costs import decoder_multiply_adds, encoder_multiply_adds, parameters
    from depict.decoders import create_decoder
    from depict.encoder import Encoder

    if side < 1 or classes < 1:
        raise UserError(f"--image-size and --classes must be at least 1, not {side} and {classes}.")
    with torch.device("meta"):
        backbone = Encoder(
            encoder.name, (side, side), patch_size=encoder.patch_size, dim=encoder.dim, depth=encoder.depth
        )
        head = create_decoder(decoder.name, backbone.dim, classes, **decoder.options())
    padded = tuple(side + -side % patch for patch in backbone.patch_size)
    grid = tuple(length // patch for length, patch in zip(padded, backbone.patch_size, strict=True))
    facts: dict[str, Any] = {
        "decoder": decoder.name,
        "encoder": encoder.name,
        "image_size": side,
        "classes": classes,
        "dim": backbone.dim,
        "grid": list(grid),
        "decoder_parameters": parameters(head),
        "decoder_multiply_adds": decoder_multiply_adds(head, grid[0] * grid[1]),
        "encoder_parameters": parameters(backbone),
        "encoder_multiply_adds": encoder_multiply_adds(backbone, (padded[0], padded[1])),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    print(f"{decoder.name} on {encoder.name}, {side} x {side} pixels, {classes} classes, D = {backbone.dim}")
    for part in ("decoder", "encoder"):
        print(f"  {part:<8}{facts[f'{part}_parameters'] / 1e6:>10.3f} M parameters", end="")
        print(f"{facts[f'{part}_multiply_adds'] / 1e9:>10.3f} GFLOPs")
    print(f"\n{CONVENTION}")
