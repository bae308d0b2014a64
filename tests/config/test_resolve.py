"""What a training is asked for, filled in or refused; most of it is seen through `depict train` in test_training.py."""

import pytest

from depict import UserError
from depict.config.resolve import resolve
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig


def with_data(**settings):
    return Config(data=DataConfig("scenes", **settings))


def test_a_held_out_part_of_the_training_images_is_validated_on():
    _, training, validation = resolve(with_data(holdout=0.25))
    _, everything, _ = resolve(with_data())
    assert len(training) + len(validation) == len(everything)
    assert validation.split == "train"
    assert validation.name_of(0) == everything.name_of(len(training))


def test_a_limit_is_drawn_from_what_is_not_held_out():
    _, training, validation = resolve(with_data(holdout=0.25, limit=20))
    names = {training.name_of(i) for i in range(20)}
    assert len(names) == 20
    assert names.isdisjoint(validation.name_of(i) for i in range(len(validation)))


@pytest.mark.parametrize("part", [-0.5, 0.0, 1.0, 7.0])
def test_a_held_out_part_leaves_images_on_both_sides(part):
    with pytest.raises(UserError, match=r"--data.holdout .* both sides"):
        resolve(with_data(holdout=part))


@pytest.mark.parametrize(
    ("frozen", "optimizer", "decoder", "gain"),
    [
        (True, "adamw", DecoderConfig("depict_sa"), 4.0),
        (True, "adamw", DecoderConfig("segmenter"), 4.0),
        (True, "adamw", DecoderConfig("depict_sa", logit_gain=1.0), 1.0),
        (True, "adamw", DecoderConfig("linear"), None),
        (True, "sgd", DecoderConfig("depict_sa"), 1.0),
        (False, "adamw", DecoderConfig("depict_sa"), 1.0),
    ],
)
def test_few_classes_on_a_frozen_encoder_start_with_a_larger_gain_unless_one_is_given(frozen, optimizer, decoder, gain):
    encoder, train = EncoderConfig(freeze=frozen), TrainConfig(optimizer=optimizer)
    asked = Config(encoder=encoder, data=DataConfig("scenes"), decoder=decoder, train=train)
    assert resolve(asked)[0].decoder.logit_gain == gain


def test_many_classes_start_with_the_released_gain(shared):
    data = DataConfig("cityscapes", root=shared / "fixtures/cityscapes")
    assert resolve(Config(encoder=EncoderConfig(freeze=True), data=data))[0].decoder.logit_gain == 1.0


@pytest.mark.parametrize(
    ("frozen", "decoder", "given", "rate"),
    [
        (True, "depict_sa", None, 1e-3),
        (True, "depict_ca", None, 3e-3),
        (True, "linear", None, 1e-2),
        (True, "linear", 2e-3, 2e-3),
        (False, "linear", None, 2e-4),
    ],
)
def test_each_decoder_has_the_rate_that_suits_it_on_a_frozen_encoder_unless_one_is_given(frozen, decoder, given, rate):
    asked = Config(EncoderConfig(freeze=frozen), DecoderConfig(decoder), DataConfig("scenes"), TrainConfig(lr=given))
    assert resolve(asked)[0].train.lr == rate
