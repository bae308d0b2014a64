"""Cached windows of a frozen encoder: the same validation, without running the encoder again."""

import pytest
import torch

from depict import UserError
from depict.data.scenes.dataset import Scenes
from depict.evaluation import evaluate, sliding_window_for
from depict.training import window_cache
from depict.training.window_cache import WindowCache
from support.features import FewScenes, small

RECORD_START = window_cache.HASH + window_cache.CHECKSUM


def scores(model, dataset, folder):
    """The confusion matrix of a validation with cached windows."""
    with WindowCache(model, folder) as windows:
        predictor = model.predictor(sliding_window_for(model, dataset), network=windows.network(model))
        return evaluate(predictor, dataset).confusion


@pytest.fixture
def model():
    return classifier()


def classifier(seed=0):
    """A model whose predictions vary with the image, for the classes of scenes."""
    model = small((32, 32), seed)
    model.classes = Scenes.classes
    torch.manual_seed(seed)
    model.decoder.head = torch.nn.Linear(64, len(Scenes.classes))
    model.decoder.num_classes = len(Scenes.classes)
    return model


def without_encoder(model):
    def fail(*_):
        raise AssertionError("the encoder ran")

    model.encoder.forward = fail
    return model


@pytest.fixture
def dataset():
    return FewScenes(None, "val", 48)


def test_a_validation_is_the_same_with_and_without_cached_windows(tmp_path, model, dataset):
    plain = evaluate(model.predictor(sliding_window_for(model, dataset)), dataset).confusion
    first = scores(model, dataset, tmp_path)
    assert abs(first - plain).sum() <= 0.01 * plain.sum()  # tokens are rounded to float16
    assert (scores(without_encoder(model), dataset, tmp_path) == first).all()


def test_windows_serve_the_second_validation_of_the_same_training(tmp_path, model, dataset):
    with WindowCache(model, tmp_path) as windows:
        images = torch.randn(2, 3, 32, 32)
        first = windows.network(model)(images)
        assert torch.equal(windows.network(without_encoder(model))(images), first)


def test_other_pixels_or_other_weights_are_never_mixed_up(tmp_path, model):
    images = torch.randn(2, 3, 32, 32)
    with WindowCache(model, tmp_path) as windows:
        first = windows.network(model)(images)
        assert not torch.equal(windows.network(model)(images + 1e-3), first)
    other = classifier(seed=1)
    with WindowCache(other, tmp_path) as windows:
        expected = other.decoder(other.tokens(images)[0].half().float(), windows.grid)
        torch.testing.assert_close(windows.network(other)(images), expected)


def test_a_flipped_bit_or_a_cut_record_is_encoded_again(tmp_path, model):
    images = torch.randn(3, 3, 32, 32)
    with WindowCache(model, tmp_path) as windows:
        expected = windows.network(model)(images)
        record = windows.record
    [path] = tmp_path.glob("*.windows")
    content = bytearray(path.read_bytes())
    assert len(content) == 3 * record
    content[RECORD_START + 5] ^= 16
    path.write_bytes(content[:-7])
    with WindowCache(model, tmp_path) as windows:
        assert torch.equal(windows.network(model)(images), expected)
    assert path.stat().st_size == 4 * record  # two good ones, the damaged one, its replacement
    with WindowCache(without_encoder(model), tmp_path) as windows:
        assert torch.equal(windows.network(model)(images), expected)


def test_two_trainings_at_a_time_share_their_windows(tmp_path, model):
    images = torch.randn(4, 3, 32, 32)
    with WindowCache(model, tmp_path) as first, WindowCache(model, tmp_path) as second:
        for part in images.split(2):  # the second one looks again each time
            expected = first.network(model)(part)
            assert torch.equal(second.network(without_encoder(classifier()))(part), expected)
    assert sorted(path.stat().st_size for path in tmp_path.glob("*.windows")) == [0, 4 * first.record]


def test_two_trainings_at_a_time_both_keep_their_windows(tmp_path, model):
    images = torch.randn(2, 3, 32, 32)
    with WindowCache(model, tmp_path) as first, WindowCache(model, tmp_path) as second:
        expected = torch.cat([first.network(model)(images[:1]), second.network(model)(images[1:])])
    assert [path.stat().st_size for path in tmp_path.glob("*.windows")] == 2 * [first.record]
    with WindowCache(model, tmp_path) as windows:
        torch.testing.assert_close(windows.network(without_encoder(model))(images), expected)


def test_a_window_never_gets_the_tokens_of_one_that_took_its_place(tmp_path, model):
    one, other = torch.randn(2, 1, 3, 32, 32)
    with WindowCache(model, tmp_path) as first, WindowCache(model, tmp_path) as second:
        expected = first.network(model)(one)
        second.network(model)(one)  # it has seen where the first one keeps the window
        first.output.truncate(0)
        first.network(model)(other)
        assert torch.equal(second.network(model)(one), expected)


def test_a_file_of_another_training_may_disappear(tmp_path, model):
    images = torch.randn(1, 3, 32, 32)
    with WindowCache(model, tmp_path) as windows:
        (tmp_path / f"{windows.key}.7.windows").symlink_to(tmp_path / "gone")
        torch.testing.assert_close(windows.network(model)(images), model.masks(images), atol=1e-2, rtol=1e-2)


def test_more_trainings_than_files_read_and_keep_nothing(tmp_path, model, monkeypatch):
    monkeypatch.setattr(window_cache, "MOST_FILES", 1)
    images = torch.randn(1, 3, 32, 32)
    with WindowCache(model, tmp_path) as first, WindowCache(model, tmp_path) as second:
        expected = first.network(model)(images)
        assert second.output is None
        assert torch.equal(second.network(without_encoder(model))(images), expected)


def test_without_room_the_validation_goes_through_and_nothing_is_kept(tmp_path, model, monkeypatch):
    def no_room(*_):
        raise UserError("full")

    monkeypatch.setattr(window_cache, "need_space", no_room)
    with WindowCache(model, tmp_path) as windows:
        windows.network(model)(torch.randn(1, 3, 32, 32))
        assert windows.output is None
    assert next(tmp_path.glob("*.windows")).stat().st_size == 0


def test_windows_of_another_size_are_not_cached(tmp_path, model):
    images = torch.randn(1, 3, 40, 40)
    with WindowCache(model, tmp_path) as windows:
        torch.testing.assert_close(windows.network(model)(images), model.masks(images))
    assert next(tmp_path.glob("*.windows")).stat().st_size == 0


def test_a_folder_that_cannot_be_created_is_one_line(tmp_path, model):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot keep features in '.*file/below'"),
        WindowCache(model, tmp_path / "file/below"),
    ):
        pass
