"""Where a RUN is: a folder, a model that comes with depict, or `hf-hub:user/name` on the Hugging Face hub.

What comes from the hub is untrusted: only two files are fetched, plain YAML and safetensors, and neither can run code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from depict.errors import UserError, one_line
from depict.io.shipped import shipped_model

PREFIX = "hf-hub:"
CONFIG, WEIGHTS = "config.yaml", "model.safetensors"
TIMEOUT = 5.0
"""Seconds to wait for the hub's first answer."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def local_run(run: str | Path) -> Path:
    """The folder of a run, of a shipped model by its name, or of `hf-hub:user/name`, downloaded once and cached.

    `hf-hub:user/name@revision` chooses a revision.
    """
    if not str(run).startswith(PREFIX):
        return shipped_model(str(run)) or Path(run)
    name, _, revision = str(run).removeprefix(PREFIX).partition("@")
    check_name(name)
    from huggingface_hub import snapshot_download

    unreachable = connection_error(name)
    try:
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=[CONFIG, WEIGHTS],
            local_files_only=unreachable is not None,
        )
        return Path(folder)
    except Exception as error:  # the hub's client, its HTTP library and the disk raise errors of many types
        advice = "It is not in the local cache either." if unreachable else "Is the name right, and are you logged in?"
        raise UserError(f"cannot get '{name}' from the hub: {one_line(unreachable or error)}. {advice}") from error


def connection_error(name: str) -> Exception | None:
    """Why the hub cannot be reached for the repository `name`; None if it answers, even with a refusal.

    One short attempt: on its own, the hub's client retries for more than a minute per file without a network.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, timeout=TIMEOUT)
    except HfHubHTTPError:
        return None
    except Exception as error:  # of the client, its HTTP library or its offline mode
        return error
    return None


def output_folder(run: str | Path) -> Path:
    """The folder for results about a run: its own, or the current one for a run on the hub or a shipped model."""
    return Path() if str(run).startswith(PREFIX) or shipped_model(str(run)) else Path(run)


def short_names(runs: Sequence[str]) -> list[str]:
    """A name for every run: that of its folder, preceded by as many parents as make all names distinct."""
    paths = []
    for run in runs:
        hub = run.startswith(PREFIX)
        path = Path(run.removeprefix(PREFIX).replace("@", "-")) if hub else Path(run).absolute().resolve()
        paths.append([part for part in path.parts if part != path.anchor])
    for length in range(1, max(map(len, paths)) + 1):
        names = ["-".join(parts[-length:]) for parts in paths]
        if len({name.casefold() for name in names}) == len(names):  # some file systems ignore case
            return names
    raise UserError(f"a run was given twice: {', '.join(runs)}.")


def check_name(name: str) -> None:
    """Raise unless `name` has the form user/name."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UserError(f"'{name}' is not a name on the hub: it must have the form user/name.")
