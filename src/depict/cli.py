"""The `depict` command: an overview, and one module of `depict.commands` per command.

Nothing heavy is imported before a command needs it, so that `depict --help` answers at once.
"""

from __future__ import annotations

import importlib
import keyword
import os
import sys

from depict.errors import UserError, unknown

COMMANDS = {
    "demo": "the main job on painted scenes: train, evaluate, show; no download",
    "train": "a model from images and masks; the same command again goes on where it stopped",
    "evaluate": "mIoU, mAcc, aAcc and the table of classes of a run, as text and JSON",
    "segment": "label maps, colored overlays and shares of the classes, for any pictures",
    "analyze": "what trained models do inside: every figure of the paper as data, pictures and one page",
    "info": "parameters and FLOPs of every variant beside the paper's printed figures",
    "study": "sweeps into a table and a picture: ablation, subset, decoders, perturbation; resumable",
    "prepare": "download and convert ADE20K, Cityscapes, Pascal Context or CamVid",
    "check": "what is wrong with a data set, before a training finds out",
    "pca": "a picture segmented by the principal directions of any ViT's embeddings, with no training",
    "attention": "where a layer and a head of a run look in a picture, as overlay",
    "import": "official DEPICT and Segmenter checkpoints become runs",
    "export": "a run as an ONNX file, checked against PyTorch before it is written",
    "push": "a run to the Hugging Face hub, with a model card",
}

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says of a GPU and of a CPU."""

USAGE = """usage: depict COMMAND [options]

Semantic segmentation with white-box decoders.

{commands}

`depict COMMAND --help` tells the options of one command; `depict --version` the version."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 done with findings, 2 a mistake to mend, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _dispatch(arguments)
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        named = f"'{error.filename}': " if error.filename else ""
        return _fail(f"{named}{error.strerror or error}")
    except KeyboardInterrupt as stop:
        print(f"depict: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in OUT_OF_MEMORY):
            raise
        return _fail("there is not enough memory: take smaller images, a smaller --batch, or another --device.")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())))
        return 0
    if arguments[0] == "--version":
        import depict

        print(f"depict {depict.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = importlib.import_module(
        f"depict.commands.{name}_" if keyword.iskeyword(name) else f"depict.commands.{name}"
    )

    if hasattr(module, "run"):
        return module.run(rest)

    import tyro

    return tyro.cli(module.main, prog=f"depict {name}", args=rest) or 0


def _fail(message: str) -> int:
    print(f"depict: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
