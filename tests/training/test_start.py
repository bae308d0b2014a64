"""Starting the classes from the data: the discriminants of known Gaussians, and a training that begins with them."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from depict import UserError, create_model
from depict.config.resolve import resolve
from depict.config.schema import DecoderConfig
from depict.data.dataset import IGNORE
from depict.data.loading import Batch
from depict.runs import LAST
from depict.training import start
from depict.training.loop import Trainer, train
from depict.training.start import ClassStatistics, class_shares, start_from_data
from depict.training.stopping import InterruptedTraining
from support.trainings import losses, small_config


def test_discriminants_of_gaussians_with_one_covariance_are_their_log_probabilities():
    generator = torch.Generator().manual_seed(0)
    counts, dim = (30_000, 15_000, 5_000), 4
    means = torch.randn(3, dim, generator=generator)
    root = torch.randn(dim, dim, generator=generator)
    covariance = root @ root.T + torch.eye(dim)
    gaussians = [torch.distributions.MultivariateNormal(mean, covariance) for mean in means]
    torch.manual_seed(0)
    statistics = ClassStatistics(3, dim)
    for index, (gaussian, count) in enumerate(zip(gaussians, counts, strict=True)):
        shares = torch.zeros(count, 3)
        shares[:, index] = 1
        statistics.add(gaussian.sample((count,)), shares)
    q, b, seen = statistics.discriminants()
    tokens = torch.randn(1000, dim, generator=generator)
    priors = torch.tensor(counts).log() - torch.tensor(counts).sum().log()
    exact = torch.stack([gaussian.log_prob(tokens) for gaussian in gaussians], 1) + priors
    probabilities = (tokens @ q.float().T + b.float()).softmax(1)
    assert seen.all()
    assert (probabilities - exact.softmax(1)).abs().max() < 0.05


def test_a_token_may_belong_to_several_classes_in_part():
    tokens = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    shares = torch.rand(50, 2, generator=torch.Generator().manual_seed(1))
    split, whole = ClassStatistics(2, 3), ClassStatistics(2, 3)
    split.add(tokens, shares)
    for index in range(2):
        alone = torch.zeros_like(shares)
        alone[:, index] = shares[:, index]
        whole.add(tokens, alone)
    for one, other in zip(split.discriminants(), whole.discriminants(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_shares_count_the_pixels_of_every_cell():
    labels = torch.randint(3, (2, 10, 13), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels[labels == 2] = IGNORE
    padded = torch.full((2, 16, 16), IGNORE, dtype=torch.uint8)
    padded[:, :10, :13] = labels
    shares = class_shares(labels, (4, 4), (8, 8), 2)
    for index in range(2):
        expected = torch.nn.functional.avg_pool2d((padded == index).float()[:, None], 4).flatten(1)
        torch.testing.assert_close(shares[..., index], expected)


def batches(model, count=3):
    """Images whose color tells the class: black left of the middle, white right of it."""
    height, width = model.image_size
    images = torch.zeros(2, 3, height, width)
    images[..., width // 2 :] = 1
    images += 0.05 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, height, width, dtype=torch.uint8)
    labels[..., width // 2 :] = 1
    return [Batch(images, labels, torch.arange(2)) for _ in range(count)]


@pytest.mark.parametrize(
    "options", [{"decoder": "linear"}, {"decoder": "depict_us"}, {"decoder": "linear", "stride": 8}]
)
def test_a_model_labels_what_it_started_from_before_any_step(options):
    torch.manual_seed(0)
    model = create_model(
        encoder="vit_tiny_patch16_224", image_size=(32, 64), classes=["left", "right", "none"], **options
    )
    text = start_from_data(model, model, batches(model), progress=False)
    assert "6 images, by linear discriminant analysis" in text
    assert model.training
    found = model.eval()(batches(model)[0].images).argmax(1)
    assert (found == batches(model)[0].labels).float().mean() > 0.9
    assert not (found == 2).any()


def test_a_class_without_a_pixel_keeps_its_embedding():
    torch.manual_seed(0)
    model = create_model("depict_us", encoder="vit_tiny_patch16_224", image_size=(32, 64), num_classes=3)
    before = model.decoder.class_embeddings[2].clone()
    start_from_data(model, model, batches(model), progress=False)
    assert torch.equal(model.decoder.class_embeddings[2], before)
    assert model.decoder.head.bias[2] == model.decoder.head.bias.min()


def test_images_without_labels_change_nothing():
    torch.manual_seed(0)
    model = create_model("linear", encoder="vit_tiny_patch16_224", image_size=(32, 64), num_classes=2)
    before = model.decoder.head.weight.clone()
    unlabeled = [batch._replace(labels=torch.full_like(batch.labels, IGNORE)) for batch in batches(model)]
    assert "start at random" in start_from_data(model, model, unlabeled, progress=False)
    assert torch.equal(model.decoder.head.weight, before)


def test_no_more_images_than_needed_are_read(monkeypatch):
    monkeypatch.setattr(start, "IMAGES", 4)
    model = create_model("linear", encoder="vit_tiny_patch16_224", image_size=(32, 64), num_classes=2)
    assert "of 4 images" in start_from_data(model, model, batches(model, 50), progress=False)


def config(root, **settings):
    return dataclasses.replace(
        small_config(root, freeze=True, start="data", **settings), decoder=DecoderConfig("depict_us", layers=1)
    )


def test_a_training_starts_from_the_data_says_so_and_begins_with_a_lower_loss(tmp_path, pictures, capfd):
    train(config(pictures), tmp_path / "data")
    assert "the classes start from" in capfd.readouterr().err
    random = dataclasses.replace(config(pictures), train=dataclasses.replace(config(pictures).train, start="random"))
    train(random, tmp_path / "random")
    assert losses(tmp_path / "data")[0] < losses(tmp_path / "random")[0]


def test_cached_features_start_from_the_data_too(tmp_path, pictures, capfd, monkeypatch):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    train(config(pictures, cache_features=True), tmp_path / "run")
    assert "the classes start from" in capfd.readouterr().err


def test_a_resumed_training_does_not_start_again_and_ends_with_the_same_weights(tmp_path, pictures, capfd, monkeypatch):
    train(config(pictures), tmp_path / "undisturbed")
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config(pictures), tmp_path / "resumed")
    capfd.readouterr()
    train(config(pictures), tmp_path / "resumed")
    assert "the classes start from" not in capfd.readouterr().err
    ours, theirs = (load_file(tmp_path / name / LAST) for name in ("resumed", "undisturbed"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_trained_encoder_is_refused_in_one_line(pictures):
    trained = dataclasses.replace(small_config(pictures, start="data"), decoder=DecoderConfig("linear"))
    with pytest.raises(UserError, match="--start data needs --freeze-encoder"):
        resolve(trained)


@pytest.mark.parametrize(
    "decoder", [DecoderConfig("depict_sa"), DecoderConfig("segmenter"), DecoderConfig("linear", head="cosine")]
)
def test_a_decoder_whose_classes_have_no_closed_form_is_refused_in_one_line(pictures, decoder):
    refused = dataclasses.replace(config(pictures), decoder=decoder)
    with pytest.raises(UserError, match="--start data needs the decoder linear or depict_us"):
        resolve(refused)
