"""`depict push`: a run to the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional

from depict.config.flags import RunPath, positional
from depict.terminal import say


def main(run: RunPath, name: Annotated[Positional[str], positional("USER/NAME")], private: bool = False) -> int:
    """Upload a run to the Hugging Face hub, with a model card.

    Uploads the best weights, the configuration without local paths, and a card with the classes, the
    mIoU from `depict evaluate`, the parameters, the data and how to use it. Then hf-hub:USER/NAME works
    in place of a run folder.

    Examples:
        depict push runs/mine anna/street-scenes
        depict segment hf-hub:anna/street-scenes photos --out out

    Args:
        run: The run folder.
        name: Repository on the hub. It is created if needed.
        private: Make a new repository private.
    """
    from depict.interchange.hub import push
    from depict.io.hub import PREFIX

    url = push(run, name, private)
    say(f"written: {url}")
    say(f"use it: depict segment {PREFIX}{name} PICTURES --out DIR")
    return 0
