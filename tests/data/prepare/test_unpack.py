from __future__ import annotations

import io
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple

import pytest

from depict.data.prepare.unpack import Limits, unpack
from depict.errors import UserError

FOLDERS = {"top": "there"}


def zipped(path, entries: dict[str, bytes], **kwargs):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # past the constructor, which would tidy it
            info.external_attr = kwargs.get("mode", 0) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def tarred(path, entries: dict[str, bytes], *members: tarfile.TarInfo, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path


def files_below(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


GOOD = {"top/a.txt": b"a", "top/deep/b.txt": b"b", "other/c.txt": b"c"}


@pytest.mark.parametrize("make", [zipped, tarred])
def test_only_the_wanted_folder_is_unpacked(make, tmp_path):
    archive = make(tmp_path / "archive", GOOD)
    root = tmp_path / "root"
    root.mkdir()
    unpack(archive, root, {"top": "deep/place"})
    assert files_below(root) == {"deep/place/a.txt": b"a", "deep/place/deep/b.txt": b"b"}


def test_a_compressed_tar_is_read_too(tmp_path):
    unpack(tarred(tmp_path / "a.tar.gz", GOOD, mode="w:gz"), tmp_path, FOLDERS)
    assert (tmp_path / "there/a.txt").read_bytes() == b"a"


def test_a_pattern_matches_a_folder_whose_name_varies(tmp_path):
    unpack(zipped(tmp_path / "a.zip", {"name-1234/Data/x": b"x"}), tmp_path, {"name-*/Data": "Data"})
    assert (tmp_path / "Data/x").read_bytes() == b"x"
    several = zipped(tmp_path / "b.zip", {"name-1/Data/x": b"x", "name-2/Data/x": b"x"})
    with pytest.raises(UserError, match=r"holds several folders 'name-\*/Data'"):
        unpack(several, tmp_path, {"name-*/Data": "Other"})


def test_an_existing_folder_is_kept(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"one/x": b"new", "two/y": b"new"})
    (tmp_path / "one").mkdir()
    (tmp_path / "one/x").write_bytes(b"old")
    unpack(archive, tmp_path, {"one": "one", "two": "two"})
    assert (tmp_path / "one/x").read_bytes() == b"old"
    assert (tmp_path / "two/y").read_bytes() == b"new"


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["../evil", "top/../../evil", "/evil", "top\\..\\evil", "C:evil", "top/a\\b"])
def test_an_entry_outside_the_folder_is_refused(make, name, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    archive = make(tmp_path / "archive", {"top/good": b"", name: b"evil"})
    with pytest.raises(UserError, match=r"refused: its entry .* outside the folder"):
        unpack(archive, root, FOLDERS)
    assert not list(root.iterdir())
    assert not list(tmp_path.rglob("*evil*"))


def link(name: str, kind: bytes, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_in_a_tar_is_refused(kind, tmp_path):
    archive = tarred(tmp_path / "a.tar", {"top/good": b""}, link("top/escape", kind, "/etc"))
    with pytest.raises(UserError, match="'top/escape' is a link or a device"):
        unpack(archive, tmp_path, FOLDERS)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]


def test_a_file_behind_a_link_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(link("top/escape", tarfile.SYMTYPE, str(tmp_path)))
        info = tarfile.TarInfo("top/escape/evil")
        archive.addfile(info)
    with pytest.raises(UserError, match="link or a device"):
        unpack(tmp_path / "a.tar", tmp_path, FOLDERS)
    assert not (tmp_path / "evil").exists()


def test_a_link_in_a_zip_is_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"top/escape": b"/etc"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(UserError, match="link or a device"):
        unpack(archive, tmp_path, FOLDERS)


def test_a_zip_bomb_is_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"top/zeros": bytes(40 << 20)})
    assert archive.stat().st_size < 100_000
    with pytest.raises(UserError, match="more than 100 times its size"):
        unpack(archive, tmp_path, FOLDERS)
    assert not (tmp_path / "there").exists()


def test_too_many_files_and_too_many_bytes_are_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {f"top/{i}": b"12345" for i in range(10)})
    with pytest.raises(UserError, match="more than 9 files"):
        unpack(archive, tmp_path, FOLDERS, Limits(entries=9))
    with pytest.raises(UserError, match="more than"):
        unpack(archive, tmp_path, FOLDERS, Limits(size=49))
    unpack(archive, tmp_path, FOLDERS, Limits(entries=10, size=50))


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "a.zip", GOOD)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1_000_000))
    with pytest.raises(UserError, match=r"unpacking 'a.zip' needs .* choose another --root"):
        unpack(archive, tmp_path, FOLDERS)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


def test_another_archive_than_expected_is_named(tmp_path):
    with pytest.raises(UserError, match=r"'.*a\.zip' holds no folder 'top'"):
        unpack(zipped(tmp_path / "a.zip", {"else/x": b""}), tmp_path, FOLDERS)


def test_a_file_that_is_not_an_archive_is_named(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"<html>please log in</html>")
    with pytest.raises(UserError, match=r"'.*a\.zip' is neither a zip nor a tar file"):
        unpack(tmp_path / "a.zip", tmp_path, FOLDERS)


def test_a_damaged_archive_leaves_nothing_behind(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"top/x": bytes(range(256)) * 400})
    content = bytearray(archive.read_bytes())
    content[120:160] = bytes(40)
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"'.*a\.zip' is damaged"):
        unpack(archive, tmp_path, FOLDERS)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


def test_an_archive_with_a_damaged_name_is_reported_as_damaged(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("top/é.txt", "content")
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(content.replace("é".encode(), b"\xb7\xb7"))
    with pytest.raises(UserError, match=r"'.*a\.zip' is damaged"):
        unpack(tmp_path / "a.zip", tmp_path, {"top": "there"})


def test_a_truncated_archive_is_reported_as_damaged(tmp_path):
    archive = tarred(tmp_path / "a.tar", {"top/x": bytes(100_000)})
    archive.write_bytes(archive.read_bytes()[:60_000])
    with pytest.raises(UserError, match=r"'.*a\.tar' is damaged"):
        unpack(archive, tmp_path, FOLDERS)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    archive = zipped(tmp_path / "a.zip", GOOD)
    remains = tmp_path / ".a.zip.unpacking" / "top"
    remains.mkdir(parents=True)
    (remains / "half").write_text("half")
    unpack(archive, tmp_path, FOLDERS)
    assert files_below(tmp_path / "there") == {"a.txt": b"a", "deep/b.txt": b"b"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "there"]
