"""`depict push`: a run to the hub."""

from __future__ import annotations

from pathlib import Path

import tyro


def main(run: tyro.conf.Positional[Path], name: tyro.conf.Positional[str], private: bool = False) -> int:
    """Send the best model of a run to the Hugging Face hub, with a model card written from the run.

    Sent are the weights, the configuration without paths, and the card: classes, mIoU of `depict evaluate`, parameters,
    data, how to use it. `hf-hub:user/name` then works wherever a run does.

    Args:
        run: Folder of the run.
        name: Name on the hub, user/name; it is made if it does not exist.
        private: Make it for yourself only.
    """
    from depict.interchange.hub import push
    from depict.io.hub import PREFIX

    url = push(run, name, private)
    print(f"written: {url}")
    print(f"use it: depict segment {PREFIX}{name} PICTURES --out DIR")
    return 0
