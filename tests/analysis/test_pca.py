"""Maps of one set of patch embeddings."""

import numpy as np
import pytest

from depict.analysis.pca import patch_maps


def test_shares_and_segments_describe_the_maps():
    Z = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
    maps = patch_maps(Z, (3, 4), directions=4, centered=True)
    facts = maps.facts()
    assert facts["dimension"] == 8
    assert len(facts["energy"]) == 4
    for method in ("PCA", "k-means"):
        labels = maps.labels[method]
        assert labels.shape == (3, 4)
        assert facts["shares"][method] == pytest.approx([(labels == part).mean() for part in range(4)])
        assert len(np.unique(labels)) <= facts["segments"][method] <= 12


def test_components_are_colors_between_0_and_1():
    Z = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
    components = patch_maps(Z, (3, 4), directions=2, centered=False).components
    assert components.shape == (3, 4, 3)
    assert components.min() == 0
    assert components.max() == 1


def test_two_dimensions_leave_the_third_color_empty():
    Z = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    components = patch_maps(Z, (2, 3), directions=2, centered=True).components
    assert (components[..., 2] == 0).all()
    assert components[..., :2].max() == 1
