"""`depict attention`: the attention of a layer and a head as heat over the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from depict.config.flags import Device, Picture, RunName, check_file, flag, keep_inputs
from depict.terminal import say


def main(
    run: RunName,
    image: Picture,
    layer: Annotated[int | None, flag("all")] = None,
    head: Annotated[int | None, flag("all")] = None,
    class_: Annotated[str | None, flag("none", "NAME"), arg(name="class")] = None,
    at: Annotated[str | None, flag("none", "X,Y")] = None,
    part: Literal["decoder", "encoder"] = "decoder",
    scale: Literal["own", "common"] = "own",
    out: Annotated[Path | None, flag("named after the picture and the flags", "FILE.png")] = None,
    device: Device = None,
) -> int:
    """Draw the attention of a class or a patch to all patches of a picture.

    The picture is not cut into windows. Layers of the decoder are its attention steps. In the encoder,
    the class token attends if --at is not given.

    Examples:
        depict attention runs/mine photo.jpg --class car
        depict attention runs/mine photo.jpg --at 300,200 --layer 3 --head 2
        depict attention runs/mine photo.jpg --part encoder --layer 12

    Args:
        run: A run folder, a shipped model such as depict-ade20k, or hf-hub:user/name.
        image: The picture.
        layer: Layer, counted from 1.
        head: Head, counted from 1.
        class_: Class whose attention is drawn (decoder only).
        at: Draw the attention of the patch at this pixel, counted from the upper left corner.
        part: Part of the model.
        scale: Colors up to the largest value of each map, or of all maps, which makes maps comparable.
        out: File to write, by default in the current folder.
        device: cpu, cuda, cuda:1 or mps.
    """
    import depict
    from depict.analysis.attention import attention_maps
    from depict.devices import find_device
    from depict.io.files import atomic_path
    from depict.io.images import read_image
    from depict.viz.attention import attention_sheet

    check_file(out, ".png")
    keep_inputs(out, image)
    position = None if at is None else _position(at)
    picture = read_image(image)
    model = depict.load(run).to(find_device(device, 0))
    maps, cells = attention_maps(model, picture, part, layer, head, class_, position)
    sheet = attention_sheet(picture, maps, cells, position, scale)
    words = [image.stem, "attention", part, f"layer{layer or 's'}", f"head{head or 's'}"]
    words += [word.replace(" ", "_").replace("/", "_").replace(",", "_") for word in (class_, at) if word]
    path = out or Path("-".join(words) + ".png")
    with atomic_path(path) as temporary:
        sheet.save(temporary, "png")
    rows, columns = maps[0].values.shape
    say(f"written: {path} ({len(maps)} {'map' if len(maps) == 1 else 'maps'} of {rows} x {columns} patches)")
    return 0


def _position(text: str) -> tuple[int, int]:
    from depict.errors import UserError

    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--at takes a position X,Y in whole pixels, such as 120,80, not '{text}'.")
    return int(parts[0]), int(parts[1])
