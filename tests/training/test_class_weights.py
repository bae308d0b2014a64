"""Class weights of unbalanced data."""

import torch

from depict.data.dataset import Dataset
from depict.training.class_weights import balanced_weights


class Counted(Dataset):
    """Two images in which class 0 has 6 pixels, class 1 has 3, class 2 has 1, class 3 none; two are ignored."""

    classes = ("a", "b", "c", "d")

    def __len__(self):
        return 2

    def read(self, index):
        labels = [[0, 0, 0, 1, 1, 255], [0, 0, 0, 1, 2, 255]][index]
        return torch.zeros(3, 1, 6, dtype=torch.uint8), torch.tensor([labels], dtype=torch.uint8)


def test_classes_weigh_by_the_median_frequency_over_their_own():
    weights = balanced_weights(Counted(None, "train"), progress=False)
    assert weights.tolist() == [0.5, 1.0, 3.0, 1.0]
