"""`depict import`: an official DEPICT or Segmenter checkpoint becomes a run."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

SHOWN = 20
"""Unknown tensors that are named."""


def main(
    checkpoint: tyro.conf.Positional[Path],
    run: tyro.conf.Positional[Path],
    variant: Path | None = None,
    heads: int | None = None,
    cross_heads: int | None = None,
    data: str | None = None,
) -> int:
    """Turn an official DEPICT-SA, DEPICT-CA or Segmenter checkpoint into a run.

    What the model is comes from the tensors; `variant.yml` beside the checkpoint adds what they cannot say. The file is
    read as data: one that tries to run code is refused. Ends with 1 if some tensors were left over.

    Args:
        checkpoint: The file, mostly named checkpoint.pth.
        run: Folder of the new run; it must not hold one yet.
        variant: The YAML, if it does not lie beside the checkpoint as variant.yml.
        heads: Attention heads of the decoder (of MSSA for DEPICT-CA), where no YAML says it.
        cross_heads: Heads of MSCA, where they differ from those of MSSA.
        data: Data set whose classes these are, such as ade20k, where no YAML says it.
    """
    from depict.errors import UserError

    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"'{run}' exists and is not an empty folder: name a new one.")
    from depict.interchange.checkpoint import import_checkpoint
    from depict.runs import save

    imported = import_checkpoint(checkpoint, variant, heads=heads, cross_heads=cross_heads, data=data)
    model = imported.model
    save(model, run)
    size = " x ".join(map(str, model.image_size))
    options = ", ".join(f"{name} {value}" for name, value in model.config.decoder.options().items())
    print(f"encoder {model.encoder.name} (dimension {model.encoder.dim}), windows of {size}")
    print(f"decoder {model.config.decoder.name}" + (f" ({options})" if options else ""))
    print(f"{model.num_classes} classes of {model.config.data.name or 'an unknown data set'}")
    if imported.pretraining_head:
        print(f"not needed (classifier of the pretraining): {', '.join(imported.pretraining_head)}")
    print(f"written: {run}")
    if imported.unknown:
        shown = ", ".join(f"'{name}'" for name in imported.unknown[:SHOWN])
        more = f" and {len(imported.unknown) - SHOWN} more" if len(imported.unknown) > SHOWN else ""
        print(f"depict: not imported, since the model has no such tensors: {shown}{more}", file=sys.stderr)
        return 1
    return 0
