"""`depict import`: an official DEPICT, CBT or Segmenter checkpoint, or a MaskFormer of the hub, becomes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from depict.config.flags import RunPath, flag, positional
from depict.terminal import say

SHOWN = 20
"""Unknown tensors that are named."""


def main(
    checkpoint: Annotated[Positional[Path], positional("CHECKPOINT")],
    run: RunPath,
    variant: Annotated[Path | None, flag("variant.yml next to the checkpoint, if it exists", "FILE")] = None,
    heads: Annotated[int | None, flag("the YAML's")] = None,
    cross_heads: Annotated[int | None, flag("as --heads")] = None,
    data: Annotated[str | None, flag("the YAML's", "NAME")] = None,
) -> int:
    """Convert a DEPICT, CBT, Segmenter or MaskFormer checkpoint into a run.

    The architecture is read from the tensors; variant.yml adds what they do not determine. The file is
    loaded as data, never as code. The exit code is 1 if some tensors have no place in the model.

    A folder is read as a MaskFormer on a Swin in the format of the hub, by transformers.

    Examples:
        depict import checkpoint.pth runs/official
        depict import seg_tiny_mask.pth runs/segmenter --heads 3 --data ade20k
        depict import maskformer-swin-tiny-ade runs/maskformer --data ade20k

    Args:
        checkpoint: The file, usually checkpoint.pth, or a folder with config.json and model.safetensors.
        run: New run folder.
        variant: YAML with the settings of the training.
        heads: Attention heads of the decoder (DEPICT-CA: of MSSA). Needed without a YAML, except for CBT.
        cross_heads: Heads of MSCA, if they differ.
        data: Data set with these classes, such as ade20k.
    """
    from depict.errors import UserError

    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"'{run}' exists and is not an empty folder: name a new one.")
    from depict.interchange.checkpoint import import_checkpoint
    from depict.interchange.maskformer import import_maskformer
    from depict.runs import save

    if checkpoint.is_dir():
        for name, value in (("--variant", variant), ("--heads", heads), ("--cross-heads", cross_heads)):
            if value is not None:
                raise UserError(f"{name} is for a checkpoint file; the folder '{checkpoint}' has its own config.json.")
        imported = import_maskformer(checkpoint, data)
    else:
        imported = import_checkpoint(checkpoint, variant, heads=heads, cross_heads=cross_heads, data=data)
    model = imported.model
    save(model, run)
    size = " x ".join(map(str, model.image_size))
    options = ", ".join(f"{name} {value}" for name, value in model.config.decoder.options().items())
    say(f"encoder {model.encoder.name} (dimension {model.encoder.dim}), windows of {size}")
    say(f"decoder {model.config.decoder.name}" + (f" ({options})" if options else ""))
    say(f"{model.num_classes} classes of {model.config.data.name or 'an unknown data set'}")
    if imported.pretraining_head:
        say(f"not needed (classifier of the pretraining): {', '.join(imported.pretraining_head)}")
    say(f"written: {run}")
    if imported.unknown:
        shown = ", ".join(f"'{name}'" for name in imported.unknown[:SHOWN])
        more = f" and {len(imported.unknown) - SHOWN} more" if len(imported.unknown) > SHOWN else ""
        say(f"depict: not imported, since the model has no such tensors: {shown}{more}", error=True)
        return 1
    return 0
