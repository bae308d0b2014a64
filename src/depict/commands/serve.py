"""`depict serve`: the explorer in a browser, and a small inference service."""

from __future__ import annotations

import importlib.util
from typing import Annotated

from tyro.conf import Positional, arg

from depict.config.flags import Device, flag
from depict.config.ranges import check_numbers, whole
from depict.errors import UserError
from depict.terminal import say

DEFAULT = "depict-ade20k"
"""The model to show if no run is given: it comes with depict."""


def main(
    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="[RUN...]", help_behavior_hint="")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    root_path: Annotated[str, flag("none", "PREFIX")] = "",
    allow_host: Annotated[str, flag("none", "NAMES")] = "",
    workers: int = 1,
    open: bool = False,
    device: Device = None,
) -> int:
    """Show in a browser what decoders do to a picture, step by step.

    Drop a photograph on the page: it shows the classes, the decoder's steps, and what any patch attends
    to. Two runs are compared side by side. POST /segment makes it an inference service (/docs on the
    server lists the routes). Pictures stay in memory for ten minutes and are never written to disk.

    Examples:
        depict serve
        depict serve runs/mine
        depict serve runs/sa runs/ca
        depict serve mine.onnx --host 0.0.0.0 --port 8080

    Args:
        runs: Run folders, shipped models, hf-hub:user/name, or files from `depict export` (.onnx: labels only). By
            default depict-ade20k, which comes with depict.
        host: Address to listen at. The default can be reached from this machine only.
        port: Port to listen at; 0 takes a free one.
        root_path: Prefix under which a proxy serves the page, such as /explorer.
        allow_host: Host names to answer for besides localhost and addresses, such as a.example.org,b.example.org.
        workers: Pictures that are analyzed at once.
        open: Open the page in the default browser.
        device: cpu, cuda, cuda:1 or mps.
    """
    check_numbers(whole(1, 1024), workers=workers)
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"`depict serve` needs {package}: pip install 'depict[web]'.")

    from depict.io.shipped import shipped_models
    from depict.web.app import create_app
    from depict.web.runs import open_runs
    from depict.web.server import address_of, is_private, listen, run

    prefix = "/" + root_path.strip("/") if root_path.strip("/") else ""
    opened = open_runs(runs or (str(shipped_models()[DEFAULT]),), device)
    app = create_app(opened, workers=workers, root_path=prefix, hosts=[host, *allow_host.split(",")])
    with listen(host, port) as listening:
        address = address_of(listening, prefix)
        say(f"serving {', '.join(each.name for each in opened)} at {address}")
        who = "only this machine" if is_private(listening) else "everyone who can reach this machine"
        say(f"{who} can open it; Ctrl-C stops")
        if open:
            import webbrowser

            webbrowser.open(address)
        run(app, listening)
    say("stopped")
    return 0
