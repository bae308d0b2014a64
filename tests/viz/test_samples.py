import numpy as np
import torch
from PIL import Image

from depict.data import create_dataset
from depict.data.transforms import Augmentation, sample_generator
from depict.viz.samples import draw_samples, random_samples
from support.layouts import folder


def augmentation(**options) -> Augmentation:
    return Augmentation(32, 4.0, (32, 24), (0.5,) * 3, (0.5,) * 3, **options)


def test_the_sheet_of_samples_shows_the_color_of_every_class(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, [f"été {i}" for i in range(4)], [0, 1, 2]), "train")
    draw_samples(dataset, tmp_path / "show.png", augmentation())
    with Image.open(tmp_path / "show.png") as picture_file:
        colors = {color for _, color in picture_file.getcolors(1 << 24)}
        assert picture_file.width > 1000
    assert set(dataset.palette) <= colors


def test_samples_are_those_that_training_gets(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, [str(i) for i in range(4)], [0, 1]), "train")
    recipe = augmentation(scale_range=(1.0, 3.0), color_jitter=False, flip=False)
    names = [dataset.name_of(index) for index in range(len(dataset))]
    for name, image, labels in random_samples(dataset, recipe, seed=5)[: len(dataset)]:
        index = names.index(name)
        expected, truth = recipe.vary(*dataset.read(index), sample_generator(5, 0, index))
        np.testing.assert_array_equal(image, expected.permute(1, 2, 0).numpy())
        np.testing.assert_array_equal(labels, truth.numpy())


def test_without_augmentation_whole_images_are_drawn(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, [str(i) for i in range(4)], [0, 1]), "train")
    names = [dataset.name_of(index) for index in range(len(dataset))]
    for name, image, labels in random_samples(dataset, None, seed=0):
        whole, truth = dataset.read(names.index(name))
        assert torch.equal(torch.tensor(image).permute(2, 0, 1), whole)
        np.testing.assert_array_equal(labels, truth.numpy())
