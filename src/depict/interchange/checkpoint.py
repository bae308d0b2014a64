"""An official checkpoint (DEPICT or Segmenter: `checkpoint.pth` with `variant.yml` beside it) becomes our model.

The tensors say what the model is; the YAML adds what they cannot: how heads divide their bases, a position grid that
is not square, the data set. Where both speak, they must agree. What the file is comes from a stranger: no code of it is
ever run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data import DATASETS, dataset_class
from depict.data.dataset import Color
from depict.errors import UserError, unknown
from depict.interchange.official import our_decoder_state
from depict.model import SegmentationModel
from depict.runs import load_weights

VARIANT = "variant.yml"
_SIZES = {(192, 12): "tiny", (384, 12): "small", (768, 12): "base", (1024, 24): "large"}
_MEANS = {"vit": (0.5, 0.5, 0.5), "deit": (0.485, 0.456, 0.406)}
_NOT_NEEDED = re.compile(r"encoder\.(head|head_dist)\.(weight|bias)")  # the classifier of the pretraining
_KINDS = {  # the first tensor name of the decoder that fits tells what it is
    r"snet\.layers\.\d+\.fn\.proj": "depict_ca",
    r"net\.layers\.\d+\.fn\.proj": "depict_sa",
    r"blocks\.\d+\.attn\.qkv\.weight": "segmenter",
    r"head\.weight": "linear",
}
_ENCODER_LAYERS = r"encoder\.blocks\.(\d+)\..+"
_LAYERS = {  # names of the tensors in the layers that the YAML counts
    "depict_ca": r"decoder\.snet\.layers\.(\d+)\..+",
    "depict_sa": r"decoder\.net\.layers\.(\d+)\..+",
    "segmenter": r"decoder\.blocks\.(\d+)\..+",
}


@dataclass
class Imported:
    """A model made from a checkpoint, and the tensors that it has no place for."""

    model: SegmentationModel
    not_needed: list[str] = field(default_factory=list)
    """The classifier that the encoder was pretrained with."""
    left: list[str] = field(default_factory=list)
    """Tensors that nobody knows."""


def import_checkpoint(
    checkpoint: Path,
    variant: Path | None = None,
    *,
    heads: int | None = None,
    cross_heads: int | None = None,
    data: str | None = None,
) -> Imported:
    """Build our model from an official checkpoint; arguments that are given come before what the YAML says.

    `variant`: the YAML, by default `variant.yml` beside the checkpoint, if there is one. `data`: the data set whose
    class names, colors and sizes the model is to carry.
    """
    from depict.encoder import read_state

    state = read_state(checkpoint)
    settings = _settings(variant, checkpoint)
    _refuse_difference(state, settings, checkpoint)
    encoder, image_size = _encoder(state, settings)
    decoder = _decoder(state, settings, heads, cross_heads)
    classes, palette, data_config = _data(_num_classes(state, decoder.name), settings, data, image_size)
    config = Config(encoder=encoder, decoder=decoder, data=data_config, image_size=image_size)
    model = SegmentationModel(config, classes, palette)
    ours, left = _renamed(state, model, checkpoint)
    load_weights(model, ours, checkpoint)
    not_needed = [name for name in left if _NOT_NEEDED.fullmatch(name)]
    return Imported(model.eval(), not_needed, [name for name in left if name not in not_needed])


class _Loader(yaml.SafeLoader):
    """Plain YAML and one tag more, `!!python/tuple`, which is how the authors' files write `image_size`."""


def _tuple(loader: _Loader, node: Any) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node))


_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)


class _Settings:
    """Values of the YAML by path, each checked for its type where it is read; None where the YAML is silent."""

    def __init__(self, values: Mapping[str, Any], path: Path):
        self.values, self.path = values, path

    def integer(self, *keys: str) -> int | None:
        value = self._find(keys)
        return None if value is None else self._whole(keys, value)

    def number(self, *keys: str) -> float | None:
        value = self._find(keys)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        raise self._wrong(keys, value, "a number")

    def text(self, *keys: str) -> str | None:
        value = self._find(keys)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(keys, value, "text")

    def pair(self, *keys: str) -> tuple[int, int] | None:
        """Height and width, also from a single side."""
        value = self._find(keys)
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and len(value) == 2:
            return self._whole(keys, value[0]), self._whole(keys, value[1])
        side = self._whole(keys, value)
        return side, side

    def _find(self, keys: tuple[str, ...]) -> Any:
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _whole(self, keys: tuple[str, ...], value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise self._wrong(keys, value, "a whole number of at least 1")

    def _wrong(self, keys: tuple[str, ...], value: Any, right: str) -> UserError:
        return UserError(f"'{self.path}': {'.'.join(keys)} must be {right}, not {str(value)[:80]!r}.")


def _settings(variant: Path | None, checkpoint: Path) -> _Settings:
    path = variant or checkpoint.parent / VARIANT
    if variant is None and not path.exists():
        return _Settings({}, path)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(values, dict):
        raise UserError(f"'{path}' must hold a mapping of settings, as the official training writes it.")
    return _Settings(values, path)


def _refuse_difference(state: Mapping[str, Tensor], settings: _Settings, checkpoint: Path) -> None:
    """Refuse a YAML that contradicts the tensors: it is another model's, and nothing else in it can be believed."""
    dim, _, patch, _ = _shape(state, "encoder.patch_embed.proj.weight", 4)
    kind = _kind(state)
    classes = _num_classes(state, kind)
    found = {
        ("n_cls",): classes,
        ("decoder", "n_cls"): classes,
        ("d_model",): dim,
        ("n_layers",): _count(state, _ENCODER_LAYERS),
        ("patch_size",): patch,
    }
    if kind in _LAYERS:
        found["decoder", "n_layers"] = _count(state, _LAYERS[kind])
    for keys, value in found.items():
        said = settings.integer("net_kwargs", *keys)
        if said not in (None, value):
            raise UserError(
                f"'{settings.path}' says net_kwargs.{'.'.join(keys)} = {said}, but in '{checkpoint}' it is {value}: "
                "the YAML is another model's. Give the right one (--variant FILE), or remove it and give --heads."
            )


def _encoder(state: Mapping[str, Tensor], settings: _Settings) -> tuple[EncoderConfig, tuple[int, int]]:
    """The ViT that the tensors describe, and the crop that its position grid belongs to."""
    dim, _, *patch = _shape(state, "encoder.patch_embed.proj.weight", 4)
    if patch[0] != patch[1]:
        raise UserError(f"patches of {patch[0]} x {patch[1]} pixels are not square, as this import needs.")
    said = settings.integer("net_kwargs", "n_heads")
    if said not in (None, max(1, dim // 64)):
        raise UserError(f"'{settings.path}' gives the encoder {said} heads; only heads of 64 ({dim // 64}) are known.")
    depth = _count(state, _ENCODER_LAYERS)
    distilled = "encoder.dist_token" in state
    size = _SIZES.get((dim, depth))
    name = _encoder_name(size, patch[0], distilled, _normalization(state, settings))
    config = EncoderConfig(name, pretrained=False, drop_path=settings.number("net_kwargs", "drop_path_rate") or 0.0)
    if size is None or f"_{size}_" not in name:
        config.dim, config.depth = dim, depth
    if f"_patch{patch[0]}_" not in name:
        config.patch_size = patch[0]
    return config, _image_size(state, settings, patch[0], 2 if distilled else 1)


def _encoder_name(size: str | None, patch: int, distilled: bool, family: str) -> str:
    """timm's name of this ViT or DeiT, or of one that differs in numbers only; its normalization is the right one."""
    import timm

    between = "_distilled" if distilled else ""
    for candidate, pixels, patches in itertools.product((size, "tiny", "base"), (384, 224), (patch, 16)):
        name = f"{family}_{candidate}{between}_patch{patches}_{pixels}"
        if timm.is_model(name) and tuple(timm.get_pretrained_cfg(name).mean) == _MEANS[family]:
            return name
    raise UserError(f"no encoder of timm is a {family}{between} with patches of {patch} pixels and the right colors.")


def _image_size(state: Mapping[str, Tensor], settings: _Settings, patch: int, prefix: int) -> tuple[int, int]:
    tokens = _shape(state, "encoder.pos_embed", 3)[1] - prefix
    said = settings.pair("net_kwargs", "image_size")
    side = round(max(0, tokens) ** 0.5)
    grid = (side, side) if said is None else (said[0] // patch, said[1] // patch)
    if grid[0] * grid[1] != tokens or tokens < 1:
        where = f"'{settings.path}' (net_kwargs.image_size)"
        if said is None:
            raise UserError(f"the {tokens} positions are no square grid: say height and width in {where}.")
        raise UserError(f"{where} says {said}, which does not fit {tokens} positions of {patch} pixels.")
    return grid[0] * patch, grid[1] * patch


def _normalization(state: Mapping[str, Tensor], settings: _Settings) -> str:
    """vit (mean and deviation 0.5) or deit (ImageNet's)."""
    said = settings.text("net_kwargs", "normalization") or settings.text("dataset_kwargs", "normalization")
    if said is None:
        deit = "encoder.dist_token" in state or "deit" in (settings.text("net_kwargs", "backbone") or "")
        return "deit" if deit else "vit"
    if said not in _MEANS:
        raise unknown(f"normalization in '{settings.path}':", said, _MEANS)
    return said


def _kind(state: Mapping[str, Tensor]) -> str:
    """Our name of the decoder that the tensors belong to."""
    names = [name.removeprefix("decoder.") for name in state if name.startswith("decoder.")]
    kinds = [kind for pattern, kind in _KINDS.items() if any(re.fullmatch(pattern, name) for name in names)]
    if len(kinds) != 1:
        found = f"its decoder's tensors are of {' and '.join(kinds)}" if kinds else "it has no decoder known to us"
        raise UserError(f"this is no DEPICT-SA, DEPICT-CA or Segmenter checkpoint: {found}.")
    return kinds[0]


def _decoder(
    state: Mapping[str, Tensor], settings: _Settings, heads: int | None, cross_heads: int | None
) -> DecoderConfig:
    """Kind, layers and head sizes from the tensors; the division into heads from the caller or the YAML."""
    kind = _kind(state)
    if kind == "linear":
        return DecoderConfig(kind)
    said = settings.integer("net_kwargs", "decoder", "n_heads")
    if kind == "segmenter":
        return DecoderConfig(
            kind,
            layers=_count(state, _LAYERS[kind]),
            heads=heads or said,
            dropout=settings.number("net_kwargs", "decoder", "dropout"),
        )
    stack = "net" if kind == "depict_sa" else "snet"
    heads = heads or said
    head_dim = _head_dim(state, f"decoder.{stack}.layers.0.fn.proj", heads, "--heads")
    config = DecoderConfig(kind, layers=_count(state, _LAYERS[kind]), heads=heads, head_dim=head_dim)
    if kind == "depict_ca":
        config.cross_heads = cross_heads or heads
        config.cross_head_dim = _head_dim(state, "decoder.cnet.layers.0.fn.proj", config.cross_heads, "--cross-heads")
        config.cross_layers = _count(state, r"decoder\.cnet\.layers\.(\d+)\..+")
    return config


def _head_dim(state: Mapping[str, Tensor], name: str, heads: int | None, flag: str) -> int:
    bases = _shape(state, name, 2)[0]
    if heads is None:
        raise UserError(
            f"'{name}' has {bases} bases, and no variant.yml says how many heads share them (decoder.n_heads): "
            f"give {flag}, such as {flag} 3."
        )
    if heads < 1 or bases % heads:
        raise UserError(f"the {bases} bases of '{name}' do not divide into {heads} heads: give {flag}.")
    return bases // heads


def _num_classes(state: Mapping[str, Tensor], kind: str) -> int:
    return _shape(state, "decoder.head.weight", 2)[0] if kind == "linear" else _shape(state, "decoder.cls_emb", 3)[1]


def _data(
    count: int, settings: _Settings, asked: str | None, image_size: tuple[int, int]
) -> tuple[list[str], list[Color] | None, DataConfig]:
    """Class names and colors of the data set asked for or named by the YAML; plain numbers where it is unknown."""
    name = asked or settings.text("dataset_kwargs", "dataset") or ""
    sides = settings.pair("dataset_kwargs", "image_size")
    side = min(sides) if sides else None
    if asked and asked not in DATASETS:
        raise unknown("data set", asked, DATASETS)
    classes = getattr(dataset_class(name), "classes", ()) if name in DATASETS else ()
    if len(classes) != count:
        if asked:
            raise UserError(f"the checkpoint has {count} classes, '{asked}' has {len(classes) or 'its own'}.")
        return [f"class {index}" for index in range(count)], None, DataConfig(short_edge=side)
    kind = dataset_class(name)
    side = side or max(kind.recipe.short_edge, min(image_size))
    return list(classes), list(kind.palette), DataConfig(name=name, short_edge=side, max_aspect=kind.recipe.max_aspect)


def _renamed(
    state: Mapping[str, Tensor], model: SegmentationModel, source: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors in our names, each used once, and the names of those that the model has no place for."""
    own = model.state_dict()
    tensors: dict[str, Tensor] = {}
    left = []
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        ours = f"encoder.vit.{rest}"
        if part == "decoder":
            [(rest, tensor)] = our_decoder_state({rest: tensor}).items()
            ours = f"decoder.{rest}"
        if part not in ("encoder", "decoder") or ours not in own:
            left.append(name)
        elif ours in tensors:
            raise UserError(f"'{source}' holds '{name}' twice, under another name too: one of them is not the model's.")
        else:
            tensors[ours] = tensor
    return tensors, left


def _shape(state: Mapping[str, Tensor], name: str, ndim: int) -> tuple[int, ...]:
    if name not in state:
        raise UserError(f"this is no DEPICT or Segmenter checkpoint: it lacks '{name}'.")
    if state[name].ndim != ndim or 0 in state[name].shape:
        raise UserError(f"'{name}' has shape {tuple(state[name].shape)}, which is not what official checkpoints hold.")
    return tuple(state[name].shape)


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    """How many layers have names that fit."""
    return len({match[1] for name in state if (match := re.fullmatch(pattern, name))})
