"""Small models and data sets whose features are cached."""

from pathlib import Path

import torch

from depict import UserError
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.data import create_dataset
from depict.data.scenes.dataset import Scenes
from depict.data.transforms import resize_labels
from depict.inference.preprocess import resize_image
from depict.model import SegmentationModel
from depict.training.feature_builder import fitted_size, open_cache
from support.layouts import picture, save

__all__ = ["FewScenes", "Path", "UserError", "by_hand", "open_cache", "opened", "photographs", "small"]


class FewScenes(Scenes):
    images = {"train": 5, "val": 3}  # noqa: RUF012

    def __init__(self, root, split, size=32):
        super().__init__(root, split, size)


def small(image_size=(32, 48), seed=0, **encoder):
    torch.manual_seed(seed)
    shape = {"pretrained": False, "patch_size": 8, "dim": 64, "depth": 1, "freeze": True}
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", **shape | encoder),
        decoder=DecoderConfig("linear"),
        image_size=image_size,
    )
    return SegmentationModel(config, ("a", "b", "c"))


def photographs(root, sizes=((40, 30), (20, 60), (25, 37), (90, 91))):
    """A data set of noise, wide and tall, whose classes are noise too."""
    for index, size in enumerate(sizes):
        save(root / "images" / "train" / f"{index}.png", picture(*size, seed=index))
        save(root / "masks" / "train" / f"{index}.png", picture(*size, seed=100 + index)[..., 0] % 3)
    return create_dataset("folder", root, "train")


def opened(model, dataset, folder, **options):
    return open_cache(model, dataset, folder, progress=False, **options)


def by_hand(model, dataset, index, mirror):
    """What the cache must hold: the sample in the window, mirrored before it is padded, through the encoder."""
    image, labels = dataset.read(index)
    size = fitted_size(*labels.shape, model.image_size)
    image, labels = resize_image(image, size), resize_labels(labels, size)
    if mirror:
        image, labels = image.flip(-1), labels.flip(-1)
    padding = (0, model.image_size[1] - size[1], 0, model.image_size[0] - size[0])
    pad = torch.nn.functional.pad
    with torch.no_grad():
        tokens, grid = model.eval().tokens(pad(model.normalize(image), padding)[None])
    return tokens[0], pad(labels, padding, value=255), grid
