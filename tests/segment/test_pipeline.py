"""From files through a predictor to outputs: 16 bits, errors, order, and how far ahead it reads. No torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from depict.errors import UserError
from depict.segment import pipeline
from depict.segment.inputs import find_inputs
from depict.segment.outputs import Outputs, choose_classes
from depict.segment.pipeline import segment_all
from depict.segment.summary import Summary

PALETTE = tuple((index % 256, index // 256, 9) for index in range(300))


class Brightness:
    """Labels a pixel by its red value, plus 40 so that values beyond a byte occur; refuses pictures 13 pixels wide."""

    classes = tuple(f"class {index}" for index in range(300))
    palette = PALETTE

    def labels(self, image: np.ndarray) -> np.ndarray:
        if image.shape[1] == 13:
            raise UserError("13 is bad luck.")
        return image[..., 0].astype(np.int16) + 40

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        labels = self.labels(image)
        for row in range(len(labels)):
            yield row, row + 1, np.eye(300, dtype=np.float32)[labels[row]].T[:, None]


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "in").mkdir()
    for number, width in enumerate([20, 13, 30, 5]):
        values = np.random.default_rng(number).integers(0, 256, (6, width, 3), np.uint8)
        Image.fromarray(values).save(tmp_path / f"in/{number}.png")
    return find_inputs([str(tmp_path / "in")], tmp_path)[0]


def outputs(tmp_path, **options) -> Outputs:
    shown = options.pop("shown", tuple(range(300)))
    return Outputs(tmp_path / "out", Brightness.classes, Brightness.palette, shown, **options)


def read(path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_more_than_256_classes_are_written_in_16_bits_and_kept(inputs, tmp_path):
    for status in ("written", "kept"):
        rows = list(segment_all(Brightness(), inputs, outputs(tmp_path), workers=2))
        assert [row["status"] for row in rows if row["name"] != "1"] == [status] * 3
        for row in rows:
            if row["name"] != "1":
                labels = read(tmp_path / "out/labels" / f"{row['name']}.png")
                assert labels.dtype == np.uint16
                np.testing.assert_array_equal(labels, read(inputs[int(row["name"])].path)[..., 0].astype(int) + 40)
                assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("probabilities", [False, True])
def test_a_picture_that_the_predictor_refuses_is_named_and_the_others_are_written(inputs, tmp_path, probabilities):
    rows = list(segment_all(Brightness(), inputs, outputs(tmp_path, probabilities=probabilities), workers=1))
    rows.sort(key=lambda row: row["order"])
    assert [row["status"] for row in rows] == ["written", "failed", "written", "written"]
    assert rows[1]["error"].endswith("1.png': 13 is bad luck.")
    assert sorted(path.name for path in (tmp_path / "out").rglob("1.*")) == []
    assert not list((tmp_path / "out").rglob("*.part*"))


def test_probabilities_of_chosen_classes_are_those_of_the_predictor(inputs, tmp_path):
    shown = (50, 290)
    list(segment_all(Brightness(), inputs, outputs(tmp_path, shown=shown, probabilities=True), workers=2))
    red = read(inputs[0].path)[..., 0].astype(int) + 40
    with np.load(tmp_path / "out/probabilities/0.npz") as file:
        np.testing.assert_array_equal(file["probabilities"], np.stack([red == index for index in shown], 2))
    np.testing.assert_array_equal(read(tmp_path / "out/labels/0.png"), np.where(np.isin(red, shown), red, 65535))


def test_processes_share_the_pictures_without_gaps_or_repeats(inputs, tmp_path):
    shares = [
        [row["name"] for row in segment_all(Brightness(), inputs, outputs(tmp_path), 1, rank, 3)] for rank in range(3)
    ]
    assert sorted(name for share in shares for name in share) == ["0", "1", "2", "3"]
    assert [len(share) for share in shares] == [2, 1, 1]


def test_no_more_pixels_are_read_ahead_than_allowed(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "AHEAD_PIXELS", 100)  # less than the first picture alone
    reading, most, lock = [0], [0], threading.Lock()
    real = pipeline.read_image

    def watched(path):
        with lock:
            reading[0] += 1
            most[0] = max(most[0], reading[0])
        return real(path)

    class Slow(Brightness):
        def labels(self, image):
            with lock:
                reading[0] -= 1
            return image[..., 0]

    monkeypatch.setattr(pipeline, "read_image", watched)
    rows = list(segment_all(Slow(), inputs, outputs(tmp_path), workers=4))
    assert len(rows) == 4
    assert most[0] <= 2  # the one at the network and the one that waits


def test_label_maps_have_8_bits_where_all_values_fit(tmp_path):
    def values(count: int, shown: tuple[int, ...]) -> np.ndarray:
        return Outputs(tmp_path, Brightness.classes[:count], PALETTE[:count], shown).label_values

    assert values(256, tuple(range(256))).dtype == np.uint8
    assert values(256, (1,)).dtype == np.uint16  # 255 is a class, so it cannot mean "other"
    assert values(255, (1,)).tolist() == [255, 1] + [255] * 253
    assert values(257, tuple(range(257))).dtype == np.uint16


def test_classes_are_chosen_by_name():
    assert choose_classes(("sky", "road", "car"), None) == (0, 1, 2)
    assert choose_classes(("sky", "road", "car"), "car, sky,car") == (0, 2)


def test_a_summary_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "summary.json").write_text('{"mine": 1}')
    with pytest.raises(UserError, match=r"summary.json' is not a summary of depict: remove it"):
        Summary(tmp_path, {"model": "x"}, overwrite=True)
