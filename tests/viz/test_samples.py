from dataclasses import replace

from PIL import Image

from depict.data import create_dataset
from depict.viz.samples import draw_samples
from support.layouts import folder


def test_the_sheet_of_samples_shows_the_color_of_every_class(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, [f"été {i}" for i in range(4)], [0, 1, 2]), "train")
    dataset.recipe = replace(dataset.recipe, short_edge=32, crop=32)
    draw_samples(dataset, tmp_path / "show.png")
    with Image.open(tmp_path / "show.png") as picture_file:
        colors = {color for _, color in picture_file.getcolors(1 << 24)}
        assert picture_file.width > 1000
    assert set(dataset.palette) <= colors
