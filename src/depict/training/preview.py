"""A few validation images with their ground truth and prediction, drawn at each validation."""

from __future__ import annotations

from accelerate.utils import gather_object
from PIL import Image
from torch import Tensor

from depict.data.dataset import Dataset
from depict.viz.comparison import Comparison, compare, draw_comparisons

IMAGES = 4


class Preview:
    """Watches an evaluation; the images are evenly spaced over the data set and the same each time."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        count = min(IMAGES, len(dataset))
        self.indices = {number * len(dataset) // count for number in range(count)}
        self.seen: list[Comparison] = []

    def watch(self, index: int, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
        """Keep small pictures of the image if it is one of those shown."""
        if index in self.indices:
            arrays = image.permute(1, 2, 0).numpy(), truth.numpy(), prediction.numpy()
            self.seen.append(compare(index, self.dataset.name_of(index), *arrays, self.dataset.palette))

    def sheet(self, title: str) -> Image.Image:
        """The images that all processes saw; called by all of them."""
        seen = sorted(gather_object(self.seen), key=lambda comparison: comparison.index)
        return draw_comparisons(seen, title, self.dataset.classes, self.dataset.palette)
