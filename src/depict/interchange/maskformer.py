"""A MaskFormer of the hub, downloaded as a folder (config.json and model.safetensors), becomes our model.

The folder is untrusted: `transformers` reads it as data, without remote code and without pickles. Only models on a Swin
can be imported, since timm has the same encoder; `depict` runs the rest of them by `decoders/maskformer.py`. timm pads
grids that its attention windows do not divide after shifting them, the original before. So the run gets a window whose
grids they divide, and there the scores are those of the original.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data import DATASETS, dataset_class
from depict.data.palette import Color
from depict.errors import UserError, one_line, unknown
from depict.interchange.checkpoint import ImportedModel
from depict.io.classes import check_classes
from depict.model import SegmentationModel
from depict.runs import load_weights

SWINS = {
    (96, (2, 2, 6, 2), 7): "swin_tiny_patch4_window7_224",
    (96, (2, 2, 18, 2), 7): "swin_small_patch4_window7_224",
    (128, (2, 2, 18, 2), 7): "swin_base_patch4_window7_224",
    (128, (2, 2, 18, 2), 12): "swin_base_patch4_window12_384",
    (192, (2, 2, 18, 2), 7): "swin_large_patch4_window7_224",
    (192, (2, 2, 18, 2), 12): "swin_large_patch4_window12_384",
}
"""timm's name of a Swin by its width, depths and window."""
COARSEST = 32
"""Stride of a Swin's last level."""
FIXED = {
    ("backbone_config", "hidden_act"): "gelu",
    ("backbone_config", "layer_norm_eps"): 1e-5,
    ("backbone_config", "use_absolute_embeddings"): False,
    ("decoder_config", "activation_function"): "relu",
}
"""Settings of config.json that no tensor shows, and the one value that our model computes with."""
NOT_NEEDED = r"criterion\..+|.+\.relative_position_index|model\.pixel_level_module\.encoder\.model\.layernorm\..+"
"""Tensors of the original that its masks do not depend on."""
_SWIN = "model.pixel_level_module.encoder."
_BLOCK = r"model\.encoder\.layers\.(\d+)\.blocks\.(\d+)\."
# (name in transformers without the prefix above, timm's); the first pattern that matches the full name applies.
_SWIN_RENAMES = [
    (r"model\.embeddings\.patch_embeddings\.projection\.(\w+)", lambda m: f"patch_embed.proj.{m[1]}"),
    (r"model\.embeddings\.norm\.(\w+)", lambda m: f"patch_embed.norm.{m[1]}"),
    (_BLOCK + r"layernorm_before\.(\w+)", lambda m: f"layers.{m[1]}.blocks.{m[2]}.norm1.{m[3]}"),
    (_BLOCK + r"layernorm_after\.(\w+)", lambda m: f"layers.{m[1]}.blocks.{m[2]}.norm2.{m[3]}"),
    (
        _BLOCK + r"attention\.self\.(relative_position_bias_table|qkv\.\w+)",
        lambda m: f"layers.{m[1]}.blocks.{m[2]}.attn.{m[3]}",
    ),
    (_BLOCK + r"attention\.output\.dense\.(\w+)", lambda m: f"layers.{m[1]}.blocks.{m[2]}.attn.proj.{m[3]}"),
    (_BLOCK + r"intermediate\.dense\.(\w+)", lambda m: f"layers.{m[1]}.blocks.{m[2]}.mlp.fc1.{m[3]}"),
    (_BLOCK + r"output\.dense\.(\w+)", lambda m: f"layers.{m[1]}.blocks.{m[2]}.mlp.fc2.{m[3]}"),
    # timm merges patches at the start of a stage, not at the end of the one before it.
    (
        r"model\.encoder\.layers\.(\d+)\.downsample\.(\w+)\.(\w+)",
        lambda m: f"layers.{int(m[1]) + 1}.downsample.{m[2]}.{m[3]}",
    ),
]
_RENAMES = [
    (rf"{re.escape(_SWIN)}hidden_states_norms\.(.+)", lambda m: f"decoder.norms.{m[1]}"),
    (r"model\.pixel_level_module\.decoder\.(.+)", lambda m: f"decoder.pixel_decoder.{m[1]}"),
    (r"model\.transformer_module\.(.+)", lambda m: f"decoder.transformer.{m[1]}"),
    (r"((?:class_predictor|mask_embedder)\..+)", lambda m: f"decoder.{m[1]}"),
]


def import_maskformer(folder: Path, data: str | None = None) -> ImportedModel:
    """Build our model from a folder in the hub's format.

    `data`: the data set whose class names and colors the model gets; by default the names in config.json.
    """
    original, processor = _read(folder)
    settings = original.config
    for (part, name), value in FIXED.items():
        if (given := getattr(getattr(settings, part), name, value)) != value:
            raise UserError(f"'{folder}' has {part}.{name} = {given!r}: only {value!r} can be imported.")
    side = _short_edge(folder, processor)
    swin, transformer = settings.backbone_config, settings.decoder_config
    key = (swin.embed_dim, tuple(swin.depths), swin.window_size)
    if key not in SWINS:
        raise UserError(f"'{folder}' has a backbone that timm does not have: width, depths and window are {key}.")
    classes, palette, data_config = _classes(settings, data, side)
    config = Config(
        encoder=EncoderConfig(SWINS[key], pretrained=False),
        decoder=DecoderConfig(
            "maskformer",
            layers=transformer.decoder_layers,
            heads=transformer.decoder_attention_heads,
            queries=transformer.num_queries,
            width=transformer.d_model,
            dropout=float(transformer.dropout),
        ),
        data=data_config,
        image_size=max(1, side // (COARSEST * swin.window_size)) * COARSEST * swin.window_size,
        stride=4,
    )
    model = SegmentationModel(config, classes, palette)
    for name, ours in (("image_mean", model.mean), ("image_std", model.std)):
        given = list(getattr(processor, name, ours))
        if not np.allclose(given, ours, atol=1e-3):
            raise UserError(f"'{folder}' has {name} = {given}: only {list(ours)}, as in timm's Swin, can be imported.")
    tensors, unknown_names = _renamed(original.state_dict(), model)
    load_weights(model, tensors, folder)
    return ImportedModel(model.eval(), [], unknown_names)


def _short_edge(folder: Path, processor: Any) -> int:
    """The short edge that pictures are resized to; without a preprocessor_config.json the original's default, 512."""
    if processor is None:
        return 512
    size = dict(processor.size)
    if not size.get("shortest_edge"):  # a fixed height and width would distort pictures
        raise UserError(f"'{folder}' resizes pictures to {size}: only a 'shortest_edge' can be imported.")
    return int(size["shortest_edge"])


def _read(folder: Path) -> tuple[Any, Any]:
    """The model as `transformers` reads it, and its image processor, None if there is none."""
    try:
        from transformers import AutoImageProcessor, MaskFormerConfig, MaskFormerForInstanceSegmentation
    except ImportError as error:
        raise UserError("importing a MaskFormer needs transformers: pip install transformers.") from error
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' has no config.json: give a checkpoint file, or a folder in the hub's format.")
    options: dict[str, Any] = {"local_files_only": True}
    try:
        settings = MaskFormerConfig.from_pretrained(folder, **options)
        kinds = (settings.model_type, settings.backbone_config.model_type)
        if kinds not in (("maskformer", "swin"), ("maskformer", "maskformer-swin")):
            raise UserError(f"'{folder}' is not a MaskFormer on a Swin, the one model of the hub that can be imported.")
        model, report = MaskFormerForInstanceSegmentation.from_pretrained(
            folder, config=settings, use_safetensors=True, output_loading_info=True, **options
        )
        processor = None
        if (folder / "preprocessor_config.json").is_file():
            processor = AutoImageProcessor.from_pretrained(folder, **options)
    except UserError:
        raise
    except Exception as error:  # transformers raises errors of many types
        raise UserError(f"'{folder}' cannot be read as a MaskFormer: {one_line(error)}.") from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"'{folder}' lacks the tensor '{missing[0]}'.")
    return model, processor


def _classes(settings: Any, requested: str | None, side: int) -> tuple[list[str], list[Color] | None, DataConfig]:
    if sorted(settings.id2label) != list(range(settings.num_labels)):
        raise UserError(f"config.json: 'id2label' must name the classes 0 to {settings.num_labels - 1}.")
    names = [str(settings.id2label[index]) for index in range(settings.num_labels)]
    if requested is None:
        return list(check_classes(names, "config.json")), None, DataConfig(short_edge=side)
    if requested not in DATASETS:
        raise unknown("data set", requested, DATASETS)
    dataset = dataset_class(requested)
    if len(getattr(dataset, "classes", ())) != len(names):
        raise UserError(f"the checkpoint has {len(names)} classes, '{requested}' has others.")
    config = DataConfig(name=requested, short_edge=side, max_aspect=dataset.recipe.max_aspect)
    return list(dataset.classes), list(dataset.palette), config


def _renamed(state: dict[str, Tensor], model: SegmentationModel) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors by our names, and the names of those that our model has no place for."""
    flat = {name.replace(".", "_"): f"encoder.features.{name}" for name in model.encoder.features.state_dict()}  # type: ignore[union-attr]
    tensors, unknown_names = {}, []
    for name, tensor in _joined(state).items():
        ours = _match(_RENAMES, name)
        if ours is None and name.startswith(_SWIN):
            swin = _match(_SWIN_RENAMES, name.removeprefix(_SWIN))
            ours = flat.get(swin.replace(".", "_")) if swin else None
        if ours is not None:
            tensors[ours] = tensor
        elif not re.fullmatch(NOT_NEEDED, name):
            unknown_names.append(name)
    return tensors, unknown_names


def _joined(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with queries, keys and values of the Swin as one matrix, in this order."""
    joined = dict(state)
    for name in state:
        if name.startswith(_SWIN) and ".self.query." in name:
            parts = [joined.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            joined[name.replace(".query.", ".qkv.")] = torch.cat(parts)
    return joined


def _match(renames: list[tuple[str, Any]], name: str) -> str | None:
    for pattern, rename in renames:
        if match := re.fullmatch(pattern, name):
            return rename(match)
    return None
