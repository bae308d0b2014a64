"""Where a run came from: versions, commit, seed and command, written into its folder."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import depict


def stamp(seed: int) -> dict[str, Any]:
    """What would be asked of a run later on."""
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "timm", "accelerate")}
    return {
        "depict": depict.__version__,
        **libraries,
        "python": sys.version.split()[0],
        "commit": commit(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the checkout that depict runs from; None when it was installed as a package."""
    file = Path(depict.__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # or an environment inside someone's own repository would count
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
