"""`depict train`: a model from images and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from depict.commands.settings import base_config
from depict.config.flags import check_folder, flag, parse_and_call
from depict.config.schema import Config
from depict.terminal import say, say_text


def run(arguments: list[str]) -> int:
    """Read `--config` first: its settings are the defaults of all other flags."""
    base = base_config(arguments)

    def main(
        out: Annotated[Path, arg(metavar="RUN")],
        config: Annotated[str | None, flag("none", "NAME|FILE")] = None,
        accept_data_change: bool = False,
        settings: Annotated[Config, arg(name="")] = base,
    ) -> int:
        """Train a model on images and masks. Run the same command again to resume.

        The run folder gets config.yaml (all settings), model.safetensors (the best model), metrics.jsonl
        and the state to resume from; at each validation curves.png (loss, mIoU, learning rate) and preview.png
        (a few validation images with their predictions) are redrawn. A finished run is not trained again,
        unless --epochs is raised: then it continues from its last step, with the learning rates of the longer schedule.

        Flags override the settings of --config. The value None clears one.

        Examples:
            depict train --out RUN --data folder --root DIR
            depict train --out RUN --data folder --root DIR --freeze-encoder \\
                --cache-features
            depict train --out RUN --data folder --root DIR --epochs 128
            depict train --out RUN --config ade20k/depict_sa_vit_s --root DIR
            torchrun --nproc-per-node 2 -m depict.cli train --out RUN ...

        Args:
            out: The run folder.
            config: Settings to start from: a YAML file, or the name of a configuration that comes with depict, such as
                ade20k/depict_sa_vit_s (`depict info` lists them).
            accept_data_change: Resume even if classes or files have changed since the run began.
        """
        from depict.runs import CURVES, PREVIEW
        from depict.training.loop import train

        check_folder(out)
        result = train(settings, out, accept_data_change)
        if result is not None:
            say_text(result)
            say(f"run: {out}, with {CURVES} and {PREVIEW}")
        return 0

    return parse_and_call(main, "depict train", arguments)
