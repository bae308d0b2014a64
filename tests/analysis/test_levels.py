"""The energy that each level of the encoder contributes to the tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import create_model
from depict.analysis.figures.levels import figures
from depict.analysis.levels import Levels, energies
from depict.analysis.runner import Pictures, make_sample
from depict.analysis.text.levels import findings, verdict
from depict.segment.inputs import find_inputs
from support.layouts import picture, save


@given(st.integers(1, 4), st.integers(2, 6), st.integers(1, 5), st.integers(0, 1000))
def test_energies_of_the_levels_add_up_to_that_of_the_tokens(levels, tokens, dim, seed):
    contributions = torch.randn(levels, tokens, dim, generator=torch.Generator().manual_seed(seed)).double()
    Z0 = contributions.sum(0)
    expected = (Z0 - Z0.mean(0)).square().sum(-1)
    assert torch.allclose(energies(contributions).sum(0), expected)


def test_what_all_tokens_share_has_no_energy():
    contributions = torch.stack([torch.ones(4, 3), torch.randn(4, 3)])
    assert torch.allclose(energies(contributions)[0], torch.zeros(4).double())


def analyzed(tmp_path, scale=None, **options):
    """The result on two pictures; `scale` multiplies the map of each level."""
    torch.manual_seed(0)
    model = create_model("linear", num_classes=3, image_size=64, neck_dim=8, **options).eval()
    for part, factor in zip(model.neck.maps, scale or (), strict=False):
        part.weight.data *= factor
    for index in range(2):
        save(tmp_path / f"{index}.png", picture(50, 70, seed=index))
    pictures = Pictures(find_inputs([str(tmp_path)], tmp_path / "out")[0])
    analysis = Levels(model)
    for index in range(2):
        analysis.update(make_sample(model, pictures, index))
    return analysis.compute()


def test_a_level_that_is_switched_off_contributes_nothing(tmp_path):
    result = analyzed(tmp_path, (1, 0, 1), encoder="test_efficientnet", stride=8)
    assert list(result.numbers) == [f"energy of stride {stride} (%)" for stride in (8, 16, 32)]
    assert result.numbers["energy of stride 16 (%)"] == pytest.approx(0, abs=1e-6)
    assert sum(result.numbers.values()) == pytest.approx(100)
    assert verdict(result).answer == "partly"
    assert all(row["stride 16"] == pytest.approx(0, abs=1e-6) for row in result.tables["classes"])


def test_one_level_alone_is_said_to_be_alone(tmp_path):
    result = analyzed(tmp_path, (0, 1, 0), encoder="test_efficientnet", stride=8)
    assert verdict(result).answer == "does not hold"
    assert findings(result)[0].startswith("stride 16 contributes the most, 100 % of the energy, over 2 images")


def test_stem_and_blocks_are_named(tmp_path):
    result = analyzed(tmp_path, encoder="test_vit", stem=True, blocks=(0, 2))
    assert result.data["levels"] == ["stem", "block 0", "block 2"]


def test_maps_show_every_level_of_the_first_images(tmp_path):
    result = analyzed(tmp_path, encoder="test_efficientnet", stride=8)
    maps = result.measured.images["0"]
    assert maps.energy.shape == (3, 8, 12)
    assert np.isfinite(maps.energy).all()
    drawn = figures(result)
    assert [axes.get_title() for axes in drawn["maps"].axes[:4]] == ["image", "stride 8", "stride 16", "stride 32"]
    assert len(drawn["energy"].axes[0].patches) == 3 * (1 + len(result.measured.by_class))


def test_a_model_without_a_neck_is_skipped():
    model = create_model("linear", "test_vit", num_classes=3, image_size=32)
    assert "has no neck" in Levels(model).compute().skipped
