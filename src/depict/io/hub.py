"""Where a RUN is: a folder, a model that comes with depict, or `hf-hub:user/name` on the Hugging Face hub.

What comes from the hub is untrusted: only two files are fetched, plain YAML and safetensors, and neither can run code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from depict.errors import UserError, one_line
from depict.io.shipped import shipped_model

PREFIX = "hf-hub:"
CONFIG, WEIGHTS = "config.yaml", "model.safetensors"
TIMEOUT = 5.0
"""Seconds to wait for the hub's first answer."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"[\w./-]+", re.ASCII)
_FILE_NAMES = ("etag", "x-linked-etag", "x-repo-commit", "x-xet-hash")
"""Headers that the hub's client uses as names of files in its cache."""
_FILE_NAME = re.compile(r"[\w+=-][\w.+=-]{0,200}", re.ASCII)


def local_run(run: str | Path) -> Path:
    """The folder of a run, of a shipped model by its name, or of `hf-hub:user/name`, downloaded once and cached.

    `hf-hub:user/name@revision` chooses a revision. A `Path` is always a folder.
    """
    if isinstance(run, Path):
        return run
    if not run.startswith(PREFIX):
        return shipped_model(run) or Path(run)
    name, _, revision = run.removeprefix(PREFIX).partition("@")
    check_name(name)
    if revision and not (_REVISION.fullmatch(revision) and ".." not in revision):
        raise UserError(f"'{revision}' is not a revision on the hub: give a branch, a tag or a commit.")
    from huggingface_hub import hf_hub_download

    unreachable = connection_error(name)
    offline = unreachable is not None
    try:
        with checked_answers():
            config = Path(hf_hub_download(name, CONFIG, revision=revision or None, local_files_only=offline))
            commit = config.parent.name  # both files of the same commit
            hf_hub_download(name, WEIGHTS, revision=commit, local_files_only=offline)
        return config.parent
    except Exception as error:  # the hub's client, its HTTP library and the disk raise errors of many types
        advice = "It is not in the local cache either." if unreachable else "Is the name right, and are you logged in?"
        raise UserError(f"cannot get '{name}' from the hub: {one_line(unreachable or error)}. {advice}") from error


@contextlib.contextmanager
def checked_answers() -> Iterator[None]:
    """Refuse answers that would make the hub's client write outside its cache, while the block runs.

    The client (huggingface_hub 2.4.0) joins what a server sends as ETag to the path of its cache, `../` included.
    """
    from huggingface_hub import get_session

    hooks = get_session().event_hooks["response"]
    hooks.append(_check_file_names)
    try:
        yield
    finally:
        hooks.remove(_check_file_names)


def _check_file_names(response: Any) -> None:
    """An event hook of httpx. The client asks for the names with HEAD; in other answers they are not used."""
    for header in _FILE_NAMES if response.request.method == "HEAD" else ():
        value = response.headers.get(header)
        if value is not None and not _FILE_NAME.fullmatch(value.removeprefix("W/").strip('"')):
            raise UserError(f"the server sent '{value[:60]}' as the {header} of a file, which is not a file name")


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
    named = isinstance(run, str) and (run.startswith(PREFIX) or shipped_model(run) is not None)
    return Path() if named else Path(run)


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
