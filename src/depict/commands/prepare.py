"""`depict prepare`: fetch a public data set, check it, and lay it out as the data sets of `depict.data` expect."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from depict.data.prepare import sources
from depict.data.prepare.sources import Source
from depict.errors import UserError

Name = Literal["ade20k", "cityscapes", "pascal_context", "pascal_context_59", "camvid"]


def main(dataset: tyro.conf.Positional[Name], root: Path, source: str | None = None, trust_pickle: bool = False) -> int:
    """Download and convert a public data set. Interrupted, it continues where it was; done, it says so.

    Archives that lie in the root folder already are used instead of downloading, and kept. Cityscapes needs a login:
    the command says what to download and where to put it. The addresses are those of public scripts and could not
    be tried against their real hosts.

    Args:
        dataset: What to prepare.
        root: Folder to prepare it in; give the same to `depict train` and `depict check`.
        source: Address of a mirror: the files are fetched from SOURCE/NAME instead of their home.
        trust_pickle: Pascal Context: use PyTorch-Encoding's ready masks instead of converting the annotations. They
            are pickle files, which can run code when they are read; here they are read with all but plain types barred.
    """
    if trust_pickle and not dataset.startswith("pascal_context"):
        raise UserError(f"--trust-pickle is about Pascal Context's ready masks; {dataset} has none. Leave it out.")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder '{root}': {error.strerror}. Choose another --root.") from error
    if _fault(dataset, root) is None:
        print(f"{dataset} was prepared already in '{root}'.")
        return 0
    if dataset == "ade20k":
        _unpack(root, source, sources.ADE20K)
    elif dataset == "cityscapes":
        _unpack(root, source, *sources.CITYSCAPES)
    elif dataset == "camvid":
        _unpack(root, source, sources.CAMVID)
    else:
        _unpack(root, source, sources.VOC_IMAGES)
        _make_context_masks(root, source, trust_pickle)
    if fault := _fault(dataset, root):
        raise UserError(f"{dataset} is there but not whole: {fault} Move its folder out of '{root}' and run again.")
    print(f"{dataset} is ready in '{root}'. Look it over with: depict check --data {dataset} --root '{root}'")
    return 0


def _fault(dataset: str, root: Path) -> str | None:
    """Why the data set cannot be opened; None when it can."""
    from depict.data import SPLITS, create_dataset

    try:
        for split in SPLITS:
            create_dataset(dataset, root, split)
    except UserError as error:
        return str(error)
    return None


def _unpack(root: Path, mirror: str | None, *archives: Source) -> None:
    """Get and unpack what is not there yet."""
    from depict.data.prepare.unpack import unpack

    missing = [a for a in archives if not all((root / place).is_dir() for place in a.folders.values())]
    by_hand = [a for a in missing if a.login and not mirror and not (root / a.name).exists()]
    if by_hand:
        raise UserError(_what_to_do(root, by_hand))
    for archive in missing:
        path, fetched = _get(root, mirror, archive)
        unpack(path, root, archive.folders)
        if fetched:
            path.unlink()


def _make_context_masks(root: Path, mirror: str | None, trust_pickle: bool) -> None:
    """Make the masks and lists of Pascal Context."""
    from depict.data.prepare.pascal_context import convert_annotations, convert_pickles

    voc = root / sources.VOC
    if trust_pickle:
        files = [_get(root, mirror, pickled) for pickled in sources.CONTEXT_PICKLES]
        convert_pickles(files[0][0], files[1][0], voc)
    else:
        files = [_get(root, mirror, sources.CONTEXT_ANNOTATIONS)]
        convert_annotations(files[0][0], voc)
    for path, fetched in files:
        if fetched:
            path.unlink()


def _get(root: Path, mirror: str | None, source: Source) -> tuple[Path, bool]:
    """The file below the root, checked, and whether it had to be fetched (what a user put there is never removed)."""
    from depict.data.prepare.download import download

    path = root / source.name
    here = path.exists()
    address = f"{mirror.rstrip('/')}/{source.name}" if mirror else source.address
    return download(address, path, source.sha1), not here


def _what_to_do(root: Path, archives: list[Source]) -> str:
    names = " and ".join(archive.name for archive in archives)
    return (
        f"Cityscapes needs a login: log in at {archives[0].address} , download {names}, "
        f"put {'it' if len(archives) == 1 else 'them'} into '{root}', and run this command again."
    )
