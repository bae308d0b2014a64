"""`depict prepare`: download a public data set, verify it, and convert it to the layout that `depict.data` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from depict.config.flags import Folder, check_folder, flag, positional
from depict.data.prepare import sources
from depict.data.prepare.sources import Source
from depict.errors import UserError
from depict.terminal import say

Name = Literal["ade20k", "cityscapes", "pascal_context", "pascal_context_59", "camvid"]


def main(
    dataset: Annotated[Positional[Name], positional("DATASET")],
    root: Folder,
    source: Annotated[str | None, flag("each file's home page", "URL")] = None,
    test: bool = False,
    trust_pickle: bool = False,
) -> int:
    """Download and convert a public data set. Run the same command again to resume.

    Archives that are already in the root folder are used and kept. Cityscapes needs a login: the command
    says what to download and where to put it. The download addresses are those of public scripts and
    have not been tested against their hosts.

    Examples:
        depict prepare ade20k --root datasets
        depict check --data ade20k --root datasets

    Args:
        dataset: ade20k, cityscapes, pascal_context, pascal_context_59 or camvid.
        root: Folder for the data set. Use the same --root for `depict train` and `depict check`.
        source: Address of a mirror. Files are downloaded from URL/NAME.
        test: ADE20K: also download the test images, which have no public ground truth.
        trust_pickle: Pascal Context: use the ready masks of PyTorch-Encoding instead of converting the annotations.
            They are pickle files; only plain types are loaded from them.
    """
    if trust_pickle and not dataset.startswith("pascal_context"):
        raise UserError(f"--trust-pickle is only for Pascal Context: leave it out for {dataset}.")
    if test and dataset != "ade20k":
        raise UserError(f"--test is only for ADE20K: leave it out for {dataset}.")
    check_folder(root, "--root")
    root.mkdir(parents=True, exist_ok=True)
    splits = ("train", "val", "test") if test else ("train", "val")
    if _problem(dataset, root, splits) is None:
        say(f"{dataset} is already prepared in '{root}'.")
        return 0
    if dataset == "ade20k":
        _unpack(root, source, sources.ADE20K, *([sources.ADE20K_TEST] if test else []))
    elif dataset == "cityscapes":
        _unpack(root, source, *sources.CITYSCAPES)
    elif dataset == "camvid":
        _unpack(root, source, sources.CAMVID)
    else:
        _unpack(root, source, sources.VOC_IMAGES)
        _write_context_masks(root, source, trust_pickle)
    if problem := _problem(dataset, root, splits):
        raise UserError(f"{dataset} is incomplete: {problem} Move its folder out of '{root}' and run again.")
    say(f"{dataset} is ready in '{root}'. Check it with: depict check --data {dataset} --root '{root}'")
    return 0


def _problem(dataset: str, root: Path, splits: tuple[str, ...]) -> str | None:
    """Why the data set cannot be opened; None when it can."""
    from depict.data import create_dataset

    try:
        for split in splits:
            create_dataset(dataset, root, split)
    except UserError as error:
        return str(error)
    return None


def _unpack(root: Path, mirror: str | None, *archives: Source) -> None:
    """Download and unpack the archives whose folders are missing."""
    from depict.data.prepare.unpack import unpack

    missing = [a for a in archives if not all((root / folder).is_dir() for folder in a.folders.values())]
    manual = [a for a in missing if a.login and not mirror and not (root / a.name).exists()]
    if manual:
        raise UserError(_login_steps(root, manual))
    for archive in missing:
        path, fetched = _get(root, mirror, archive)
        unpack(path, root, archive.folders)
        if fetched:
            path.unlink()


def _write_context_masks(root: Path, mirror: str | None, trust_pickle: bool) -> None:
    """Write the masks and lists of Pascal Context."""
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
    """The verified file in the root folder, and whether it was downloaded (a user's own file is never removed)."""
    from depict.data.prepare.download import download

    path = root / source.name
    here = path.exists()
    address = f"{mirror.rstrip('/')}/{source.name}" if mirror else source.address
    return download(address, path, source.sha1), not here


def _login_steps(root: Path, archives: list[Source]) -> str:
    """What to do for archives that need a login."""
    names = " and ".join(archive.name for archive in archives)
    return (
        f"Cityscapes needs a login: sign in at {archives[0].address} , download {names}, "
        f"put {'it' if len(archives) == 1 else 'them'} into '{root}', and run this command again."
    )
