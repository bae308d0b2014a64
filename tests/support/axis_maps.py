"""Axis maps as plain matrices, for tests."""

from __future__ import annotations

import numpy as np

from depict.inference.resample import AxisMap


def dense(axis: AxisMap, inputs: int) -> np.ndarray:
    """The whole matrix (outputs, inputs) of a map, float64."""
    matrix = np.zeros((len(axis), inputs))
    np.add.at(matrix, (np.arange(len(axis))[:, None], axis.indices), axis.weights)
    return matrix
