"""Settings checked and completed before a training; tests/training/test_loop.py sees the same through `train`."""

import pytest

from depict import UserError
from depict.config.resolve import ResolvedConfig, ResolvedTrain, resolve
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.data.scenes.dataset import Scenes
from depict.io.yaml import from_dict, to_dict
from support.layouts import ade20k, cityscapes


def with_data(**settings):
    return Config(data=DataConfig("scenes", **settings))


def test_what_was_left_open_comes_from_the_recipe_of_the_data_set():
    config = resolve(Config(data=DataConfig("scenes"), train=TrainConfig(optimizer="sgd", batch=3))).config
    recipe = Scenes.recipe
    assert (config.data.short_edge, config.data.max_aspect) == (recipe.short_edge, recipe.max_aspect)
    assert (config.train.epochs, config.train.batch, config.train.lr) == (recipe.epochs, 3, recipe.lr)
    assert config.train.validate_every == -(-recipe.epochs // 8)
    assert config.image_size == (recipe.crop, recipe.crop)


def test_a_setting_that_nobody_filled_in_fails():
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'lr'"):
        ResolvedTrain(epochs=1, batch=1, validate_every=1)


def test_a_resolved_configuration_is_read_back_from_yaml_and_resolves_to_itself():
    config = resolve(Config(data=DataConfig("scenes"))).config
    values = to_dict(config)
    assert from_dict(ResolvedConfig, values, "here") == config
    assert resolve(from_dict(Config, values, "here")).config == config


def test_cached_features_set_the_size_that_images_are_brought_to():
    encoder, train = EncoderConfig(freeze=True), TrainConfig(cache_features=True)
    config = resolve(Config(encoder, data=DataConfig("scenes"), train=train, image_size=(64, 96))).config
    assert (config.data.short_edge, config.data.max_aspect) == (64, 1.5)


def test_a_held_out_part_of_the_training_images_is_validated_on():
    _, training, validation = resolve(with_data(holdout=0.25))
    _, everything, _ = resolve(with_data())
    assert len(training) + len(validation) == len(everything)
    assert validation.split == "train"
    assert validation.name_of(0) == everything.name_of(len(training))


def test_the_validation_images_may_be_trained_on_as_well():
    _, training, validation = resolve(with_data(train_split="trainval"))
    assert (len(training), len(validation)) == (700, 100)


def test_a_limit_is_drawn_from_what_is_not_held_out():
    _, training, validation = resolve(with_data(holdout=0.25, limit=20))
    names = {training.name_of(i) for i in range(20)}
    assert len(names) == 20
    assert names.isdisjoint(validation.name_of(i) for i in range(len(validation)))


def test_a_held_out_part_leaves_images_on_both_sides(monkeypatch):
    monkeypatch.setattr(Scenes, "images", {"train": 1, "val": 1})
    with pytest.raises(UserError, match=r"--data.holdout 0.25 leaves \d images to train on and \d to validate on"):
        resolve(with_data(holdout=0.25))


def test_a_limit_above_the_number_of_images_is_refused():
    with pytest.raises(UserError, match="--data.limit must be at most 600, the training images, not 999"):
        resolve(with_data(limit=999))


@pytest.mark.parametrize(
    ("frozen", "optimizer", "decoder", "gain"),
    [
        (True, "adamw", DecoderConfig("depict_sa"), 4.0),
        (True, "adamw", DecoderConfig("segmenter"), 4.0),
        (True, "adamw", DecoderConfig("depict_sa", logit_gain=1.0), 1.0),
        (True, "adamw", DecoderConfig("linear"), 1.0),
        (True, "adamw", DecoderConfig("linear", head="cosine"), 4.0),
        (True, "adamw", DecoderConfig("depict_sa", head="subspaces"), 1.0),
        (True, "sgd", DecoderConfig("depict_sa"), 1.0),
        (False, "adamw", DecoderConfig("depict_sa"), 1.0),
    ],
)
def test_few_classes_on_a_frozen_encoder_start_with_a_larger_gain_unless_one_is_given(frozen, optimizer, decoder, gain):
    encoder, train = EncoderConfig(freeze=frozen), TrainConfig(optimizer=optimizer)
    given = Config(encoder=encoder, data=DataConfig("scenes"), decoder=decoder, train=train)
    assert resolve(given)[0].decoder.logit_gain == gain


def test_many_classes_start_with_the_released_gain(tmp_path):
    data = DataConfig("cityscapes", root=cityscapes(tmp_path, {"labelTrainIds": [0, 1]}))
    assert resolve(Config(encoder=EncoderConfig(freeze=True), data=data))[0].decoder.logit_gain == 1.0


@pytest.mark.parametrize(
    ("frozen", "decoder", "lr", "rate"),
    [
        (True, "depict_sa", None, 1e-3),
        (True, "depict_ca", None, 3e-3),
        (True, "linear", None, 1e-2),
        (True, "linear", 2e-3, 2e-3),
        (False, "linear", None, 2e-4),
    ],
)
def test_each_decoder_has_the_rate_that_suits_it_on_a_frozen_encoder_unless_one_is_given(frozen, decoder, lr, rate):
    given = Config(EncoderConfig(freeze=frozen), DecoderConfig(decoder), DataConfig("scenes"), TrainConfig(lr=lr))
    assert resolve(given)[0].train.lr == rate


@pytest.mark.parametrize(("given", "used"), [(None, "mask2former"), ("maskformer", "maskformer")])
def test_depict_mask_is_trained_with_the_loss_of_mask2former_unless_another_is_given(given, used):
    config = Config(EncoderConfig(), DecoderConfig("depict_mask", matching=given), DataConfig("scenes"))
    assert resolve(config)[0].decoder.matching == used


def test_depict_mask_has_more_queries_than_classes_unless_their_number_is_given(tmp_path):
    many = DataConfig("ade20k", root=ade20k(tmp_path, [1, 2]))
    for data, given, used in ((many, None, 300), (many, 120, 120), (DataConfig("scenes"), None, 100)):
        config = Config(EncoderConfig(), DecoderConfig("depict_mask", queries=given), data)
        assert resolve(config)[0].decoder.queries == used
