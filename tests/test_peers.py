"""The benchmark of peers: decoders of another library, trained in our loop, in one table with ours."""

import json
import subprocess
import sys

import pytest

from conftest import REPOSITORY

pytest.importorskip("segmentation_models_pytorch", reason="an extra for development")


def peers(out, *words):
    command = [sys.executable, str(REPOSITORY / "benchmarks/peers.py"), "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_peers_and_our_decoders_are_trained_into_one_table_and_finished_cells_are_kept(tmp_path):
    first = peers(tmp_path, "--quick", "--decoders", "smp_fpn", "smp_unet", "smp_deeplabv3plus", "linear,stride=4")
    assert first.stdout.count("levels equal smp's bit by bit") == 3
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/model.safetensors")}
    assert len(trained) == 4

    second = peers(tmp_path, "--named", "road", "--decoders", "smp_segformer")
    assert second.stderr.count("cell ") == 1
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    rows = {row["label"].split(",")[0]: row for row in json.loads((tmp_path / "peers.json").read_text())}
    assert list(rows) == ["smp_fpn", "smp_unet", "smp_deeplabv3plus", "linear", "smp_segformer"]
    for row in rows.values():
        assert 0 <= row["scores"]["mean"] <= 1
        assert row["scores"]["multiply_adds"] > 0
        assert row["classes"].keys() == {"road"}
    assert rows["linear"]["scores"]["parameters"] < rows["smp_fpn"]["scores"]["parameters"]


@pytest.mark.slow
def test_times_are_measured_without_a_training(tmp_path):
    peers(tmp_path, "--quick", "--time", "--decoders", "smp_unet")
    [row] = json.loads((tmp_path / "peers.json").read_text())
    assert row["scores"] == {}
    assert min(row["times"].values()) > 0
    assert not (tmp_path / "cells").exists()
    peers(tmp_path, "--time")  # the study is remembered, and nothing is left to measure
    assert json.loads((tmp_path / "peers.json").read_text())[0]["times"] == row["times"]
