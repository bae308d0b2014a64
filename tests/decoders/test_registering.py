"""Custom decoders: registered by name, on tokens or on the levels of an encoder."""

import pytest
import torch
from torch import nn

from depict import UserError, create_model, register_decoder
from depict.decoders import DECODERS, create_decoder
from depict.decoders.base import Decoder
from support.level_decoder import Sum

ENCODER = "test_efficientnet"  # levels of strides 2 to 32


class Mean(Decoder):
    """The same logits everywhere, from the mean of the tokens."""

    def __init__(self, dim, num_classes):
        super().__init__(dim, num_classes)
        self.last = nn.Linear(dim, num_classes)

    def forward(self, Z, grid, trace=None):
        self.check(Z, grid)
        return self.last(Z.mean(1))[..., None, None].expand(-1, -1, *grid)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr("depict.decoders.DECODERS", dict(DECODERS))
    register_decoder("sum", Sum)
    register_decoder("mean", Mean)


def test_a_decoder_on_tokens_is_built_by_its_name():
    model = create_model("mean", encoder="test_vit", num_classes=3, image_size=64)
    assert isinstance(model.decoder, Mean)
    assert model(torch.randn(2, 3, 40, 64)).shape == (2, 3, 40, 64)


def test_a_decoder_on_levels_gets_them_from_its_finest_on_and_sets_the_stride_of_the_masks():
    model = create_model("sum", encoder=ENCODER, num_classes=3, image_size=64, width=5)
    assert model.decoder.dims == model.encoder.dims
    assert [side for side, _ in model.encoder.strides] == [2, 4, 8, 16, 32]
    assert model.neck is None
    assert model.config.stride == 2
    images = torch.randn(2, 3, 64, 96)
    assert torch.equal(model.masks(images), model.decoder(model.levels(images)[0], (32, 48)))
    assert model(images[..., :50]).shape == (2, 3, 64, 50)


def test_multiply_adds_of_a_decoder_on_levels_are_counted():
    model = create_model("sum", encoder=ENCODER, num_classes=3, image_size=64, width=5)
    first, second, *_ = model.encoder.dims
    assert model.head_multiply_adds((64, 64)) == 32 * 32 * (first * 5 + 5 * 3) + 16 * 16 * second * 5
    assert next(model.decoder.parameters()).device.type == "cpu"


def test_neck_and_stride_are_not_set_for_a_decoder_that_has_its_own():
    for options in ({"neck_dim": 8}, {"stride": 4}):
        with pytest.raises(UserError, match="masks of stride 2 and a neck of its own"):
            create_model("sum", encoder=ENCODER, num_classes=3, image_size=64, **options)


def test_a_decoder_on_levels_has_nothing_to_unroll():
    model = create_model("sum", encoder=ENCODER, num_classes=3, image_size=64)
    with pytest.raises(UserError, match="Sum takes levels of the encoder"):
        model.unroll(torch.zeros(3, 64, 64, dtype=torch.uint8))
    with pytest.raises(UserError, match="Sum takes levels of the encoder"):
        model.tokens(torch.zeros(1, 3, 64, 64))


def test_only_decoders_are_registered_and_never_under_a_name_of_depict():
    with pytest.raises(UserError, match="'depict_sa' is a decoder of depict"):
        register_decoder("depict_sa", Sum)
    with pytest.raises(UserError, match="must be a subclass of depict.decoders.base.Decoder"):
        register_decoder("other", nn.Linear)
    register_decoder("sum", Mean)  # again, as in a notebook
    assert isinstance(create_decoder("sum", 4, 2), Mean)


def test_dimensions_that_do_not_fit_a_decoder_are_refused():
    with pytest.raises(UserError, match="takes levels: give their dimensions as a list, not 4"):
        create_decoder("sum", 4, 2)
    for name, dim in (("sum", [4, 0]), ("mean", [4])):
        with pytest.raises(UserError, match="the embedding dimension must be an integer of at least 1"):
            create_decoder(name, dim, 2)


def test_unknown_options_of_a_registered_decoder_are_named():
    with pytest.raises(UserError, match="option for the decoder 'sum': 'widht'"):
        create_model("sum", encoder=ENCODER, num_classes=3, image_size=64, widht=5)
