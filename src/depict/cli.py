"""The `depict` command: an overview, and one module of `depict.commands` per command.

A command is imported only when it runs, so `depict --help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import keyword
import os
import sys

from depict.errors import UserError, is_out_of_memory, unknown
from depict.terminal import say, say_text

COMMANDS = {
    "demo": "label photographs; train, evaluate and compare two decoders on generated scenes; no download",
    "train": "train a model on images and masks; run it again to resume",
    "evaluate": "compute mIoU, mAcc, aAcc and the IoU of each class",
    "segment": "write label maps, overlays and class shares for any pictures",
    "analyze": "measure what trained models do inside: the paper's figures as one HTML report",
    "info": "list parameters and FLOPs of every decoder next to the paper's figures",
    "study": "run resumable sweeps into a table: ablation, subset, decoders, perturbation",
    "prepare": "download and convert ADE20K, Cityscapes, Pascal Context or CamVid",
    "check": "find problems in a data set before training",
    "pca": "segment a picture by the principal directions of a ViT's embeddings, without training",
    "attention": "draw the attention of a layer and head over a picture",
    "import": "convert an official DEPICT or Segmenter checkpoint into a run",
    "export": "write a run as an ONNX file, checked against PyTorch",
    "push": "upload a run to the Hugging Face hub, with a model card",
    "serve": "explore in a browser what a decoder does to a picture, step by step",
}

USAGE = """usage: depict COMMAND [options]

Semantic segmentation with white-box decoders.

{commands}

Run `depict COMMAND --help` for examples and options, `depict --version` for the version.
Start with `depict demo`."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success. 1: done, with problems reported. 2: an error to fix. 130: interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every name
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
        say(f"depict: {str(stop) or 'interrupted'}", error=True)
        return 130
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail("out of memory: use smaller images, a smaller --batch, or another --device.")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        text = USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()))
        say_text(text)
        return 0
    if arguments[0] == "--version":
        import depict

        say(f"depict {depict.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = importlib.import_module(f"depict.commands.{name}{'_' if keyword.iskeyword(name) else ''}")
    if hasattr(module, "run"):  # its flags depend on a configuration, which has to be read first
        return module.run(rest)

    from depict.config.flags import parse_and_call

    return parse_and_call(module.main, f"depict {name}", rest)


def _fail(message: str) -> int:
    say(f"depict: {message}", error=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
