"""`depict attention`: where a layer and a head look, as heat over the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def main(
    run: tyro.conf.Positional[str],
    image: tyro.conf.Positional[Path],
    layer: int | None = None,
    head: int | None = None,
    class_: Annotated[str | None, tyro.conf.arg(name="class")] = None,
    at: str | None = None,
    part: Literal["decoder", "encoder"] = "decoder",
    out: Path | None = None,
    device: str | None = None,
) -> int:
    """Draw the attention that a class or a place of a picture pays to all patches of it.

    The picture is seen whole, at the size that the model is applied at. Decoder layers are the steps that attend.

    Args:
        run: Folder of a run.
        image: The picture.
        layer: Layer, counted from 1; by default all of them.
        head: Head, counted from 1; by default all of them.
        class_: Class that asks (decoder only).
        at: Place that asks, as X,Y in pixels of the picture from its upper left corner. The encoder's class token asks
            if nothing is said.
        part: Part of the model.
        out: PNG file to write; by default its name is made of the picture's and the options, in the current folder.
        device: Where to compute, such as cpu, cuda or cuda:1; by default a GPU if there is one.
    """
    import depict
    from depict.analysis.attention import attention_maps, draw_maps
    from depict.devices import find_device
    from depict.io.files import atomic_path
    from depict.io.images import read_image

    place = None if at is None else _place(at)
    picture = read_image(image)
    model = depict.load(run).to(find_device(device, 0))
    maps, cells = attention_maps(model, picture, part, layer, head, class_, place)
    sheet = draw_maps(picture, maps, cells, place)
    words = [image.stem, "attention", part, f"layer{layer or 's'}", f"head{head or 's'}"]
    words += [word.replace(" ", "_").replace("/", "_").replace(",", "_") for word in (class_, at) if word]
    path = out or Path("-".join(words) + ".png")
    with atomic_path(path) as temporary:
        sheet.save(temporary, "png")
    print(f"written: {path} ({len(maps)} maps of {maps[0].values.shape[0]} x {maps[0].values.shape[1]} patches)")
    return 0


def _place(text: str) -> tuple[int, int]:
    from depict.errors import UserError

    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--at takes a place as X,Y in whole pixels, such as 120,80, not '{text}'.")
    return int(parts[0]), int(parts[1])
