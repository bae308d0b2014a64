"""Any other timm model as an encoder: the feature maps that `features_only` returns are its levels.

EfficientNet, ConvNeXt, Swin, Hiera, PVT, MobileNet, ResNet and others. Weights have the names of the whole classifier,
as timm publishes them; the parts that no level needs are dropped.
"""

from __future__ import annotations

import inspect
import math
import sys
from pathlib import Path
from typing import Any

import torch
from timm.layers import Format
from timm.models import group_parameters
from torch import Tensor

from depict.devices import check_parameters
from depict.encoders.base import Encoder, Size, create, load_strictly, pretrained_weights
from depict.errors import UserError, one_line

DEFAULT_STRIDE = 8
"""Grid of the decoder, in pixels, unless it is set or the encoder has no level as fine as this."""


class HierarchicalEncoder(Encoder):
    """Feature maps of growing stride. Levels finer than `stride`, the decoder's grid, are left out.

    Fine-tuned BatchNorms train as usual: they normalize by the batch and update their running
    statistics. Images and weights are in channels-last order, in which convolutions are faster.
    """

    def __init__(
        self,
        name: str,
        image_size: Size,
        pretrained: bool | str | Path = False,
        drop_path: float = 0.0,
        stride: int | None = None,
    ):
        with torch.device("meta"):
            accepted = inspect.signature(type(create(name)).__init__).parameters
            twin = _features(name)
        reductions = twin.feature_info.reduction()
        check_parameters(sum(tensor.numel() for tensor in twin.parameters()), f"the encoder '{name}'")
        grid = stride or max(DEFAULT_STRIDE, min(reductions))
        levels = [index for index, reduction in enumerate(reductions) if reduction >= grid] or [len(reductions) - 1]
        coarsest = max(reductions[index] for index in levels)
        padded = (math.ceil(image_size[0] / coarsest) * coarsest, math.ceil(image_size[1] / coarsest) * coarsest)
        if drop_path and "drop_path_rate" not in accepted:
            raise UserError(f"'{name}' has no stochastic depth: set drop_path to 0.")
        wanted = {"drop_path_rate": drop_path, "img_size": padded, "strict_img_size": False, "dynamic_img_size": True}
        options = {key: value for key, value in wanted.items() if key in accepted}
        features = _features(name, out_indices=levels, **options)
        info = features.feature_info
        strides = tuple((reduction, reduction) for reduction in info.reduction())
        super().__init__(name, tuple(info.channels()), strides, features.pretrained_cfg)
        self.features: Any = features.to(memory_format=torch.channels_last)
        with torch.device("meta"):
            twin = _features(name, out_indices=levels, **options)
        if (error := _failure(twin, padded)) is not None:
            size = " x ".join(map(str, padded))
            raise UserError(f"'{name}' does not take images of {size} pixels: {one_line(error)}.") from error
        other_size = (padded[0] + coarsest, padded[1] + 2 * coarsest)
        self.only_size = padded if _failure(twin, other_size) else None
        if pretrained:
            self._load(pretrained, options)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The levels, (B, h, w, D) each."""
        if self.only_size and tuple(images.shape[-2:]) != self.only_size:
            only, given = (" x ".join(map(str, size)) for size in (self.only_size, images.shape[-2:]))
            raise UserError(f"the encoder '{self.name}' was built for {only} pixels and cannot take {given}.")
        levels = self.features(images.contiguous(memory_format=torch.channels_last))
        if getattr(self.features, "output_fmt", Format.NCHW) == Format.NHWC:
            return levels
        return [level.permute(0, 2, 3, 1) for level in levels]

    def layer_depths(self) -> dict[str, int]:
        """By stage: 1 for the last, and so on down to the stem."""
        with torch.device("meta"):
            classifier = create(self.name)
        if not hasattr(classifier, "group_matcher"):
            raise UserError(f"the stages of '{self.name}' are not known: use --layer-decay 1.")
        stages = group_parameters(classifier, classifier.group_matcher(coarse=True), reverse=True)
        stages = {_flat(name): stage for name, stage in stages.items()}
        own = {name: stages[_flat(name.removeprefix("features."))] for name, _ in self.named_parameters()}
        return {name: max(own.values()) - stage + 1 for name, stage in own.items()}

    def set_grad_checkpointing(self) -> None:
        """Recompute the activations of every stage in the backward pass."""
        part = getattr(self.features, "model", self.features)
        if not hasattr(part, "set_grad_checkpointing"):
            raise UserError(f"'{self.name}' cannot recompute its activations: omit --checkpointing.")
        part.set_grad_checkpointing()

    def _load(self, pretrained: bool | str | Path, options: dict[str, Any]) -> None:
        """Load the weights of the whole classifier, without the parts that no level needs."""
        source, state = pretrained_weights(self.name, pretrained)
        with torch.device("meta"):
            classifier = create(self.name, **options)
        convert = getattr(sys.modules[type(classifier).__module__], "checkpoint_filter_fn", None)
        try:
            state = convert(state, classifier) if convert else state
        except (KeyError, RuntimeError, ValueError, IndexError) as error:
            raise UserError(f"{source} does not fit the encoder '{self.name}': {one_line(error)}.") from error
        own, whole = {_flat(name): name for name in self.features.state_dict()}, classifier.state_dict().keys()
        used = {own[_flat(name)]: tensor for name, tensor in state.items() if _flat(name) in own}
        foreign = {name: tensor for name, tensor in state.items() if _flat(name) not in own and name not in whole}
        load_strictly(self.features, used | foreign, self.name, source)


def _features(name: str, **options: Any) -> Any:
    """The timm model that returns feature maps, with random weights."""
    try:
        return create(name, features_only=True, **options)
    except UserError as error:
        if "features_only" in str(error):
            raise UserError(f"'{name}' returns no feature maps and cannot be an encoder: choose another.") from error
        raise


def _failure(features: Any, size: Size) -> Exception | None:
    """What goes wrong with an image of this size; the features are on the meta device, so nothing is computed."""
    try:
        with torch.device("meta"), torch.no_grad():
            features.eval()(torch.empty(1, 3, *size))
    except Exception as error:  # timm's models check sizes in many ways, or not at all
        return error
    return None


def _flat(name: str) -> str:
    """The name of a tensor, alike in a classifier and in its feature extractor, which flattens or nests modules."""
    return name.removeprefix("model.").removeprefix("body.").replace(".", "_")
