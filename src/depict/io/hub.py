"""Runs fetched from the Hugging Face hub by `hf-hub:user/name`.

What comes from the hub is untrusted: plain YAML and safetensors, two files, nothing that can run.
"""

from __future__ import annotations

import re
from pathlib import Path

from depict.errors import UserError, one_line

PREFIX = "hf-hub:"
CONFIG, WEIGHTS = "config.yaml", "model.safetensors"
PATIENCE = 5.0
"""Seconds to wait for the hub's first answer."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def local_run(run: str | Path) -> Path:
    """The folder of a run. `hf-hub:user/name` or `hf-hub:user/name@revision` is downloaded once and kept."""
    if not str(run).startswith(PREFIX):
        return Path(run)
    name, _, revision = str(run).removeprefix(PREFIX).partition("@")
    check_name(name)
    from huggingface_hub import snapshot_download

    silence = hub_unreachable(name)
    try:
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=[CONFIG, WEIGHTS],
            local_files_only=silence is not None,
        )
        return Path(folder)
    except Exception as error:  # whatever the hub's client, the network or the disk raises
        way_out = "It is not kept here either." if silence else "Is the name right, and are you logged in?"
        raise UserError(f"cannot get '{name}' from the hub: {one_line(silence or error)}. {way_out}") from error


def hub_unreachable(name: str) -> Exception | None:
    """Why the hub cannot be asked for the repository `name`; None if it answers, be it with a refusal.

    One short try: left alone, its client goes on for more than a minute per file when there is no network.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except HfHubHTTPError:
        return None
    except Exception as error:  # the client's, that of its HTTP library, or its offline mode
        return error
    return None


def output_folder(run: str | Path) -> Path:
    """Where findings about a run are written: into its folder, or the current one for a run of the hub."""
    return Path() if str(run).startswith(PREFIX) else Path(run)


def check_name(name: str) -> None:
    """Raise unless `name` reads user/name."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UserError(f"'{name}' is not a name on the hub: it must read user/name.")
