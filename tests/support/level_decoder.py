"""A decoder as a user may write it: on the levels of an encoder, without a neck of depict."""

from torch import nn

from depict.decoders.base import LevelDecoder


class Sum(LevelDecoder):
    """A convolution on the sum of two levels, of strides 2 and 4; masks of stride 2."""

    finest, stride = 2, 2

    def __init__(self, dims, num_classes, width=8):
        super().__init__(dims, num_classes)
        self.maps = nn.ModuleList(nn.Linear(dim, width) for dim in dims[:2])
        self.last = nn.Conv2d(width, num_classes, 1)

    def forward(self, levels, grid):
        fine, coarse = (apply(level).permute(0, 3, 1, 2) for apply, level in zip(self.maps, levels, strict=False))
        return self.last(fine + nn.functional.interpolate(coarse, size=grid, mode="bilinear"))
