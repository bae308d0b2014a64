"""Files are written atomically."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections import namedtuple

import pytest

from depict import UserError
from depict.io.files import atomic_path, need_space, write_json


def test_a_finished_block_leaves_the_file_and_nothing_else(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"ä": 1})
    assert json.loads((tmp_path / "deep" / "a.json").read_text()) == {"ä": 1}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_a_failed_block_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_files_get_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write '.*file/a.json'"):
        write_json(tmp_path / "file" / "a.json", 1)


def test_a_full_disk_is_reported_in_one_line_and_keeps_the_old_file(tmp_path):
    code = (
        "import sys; from depict.io.files import atomic_path\n"
        "from depict.errors import UserError\n"
        "try:\n"
        "    with atomic_path(sys.argv[1]) as temporary: temporary.write_bytes(bytes(1 << 20))\n"
        "except UserError as error: print(error)\n"
    )
    (tmp_path / "a.bin").write_bytes(b"old")

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.bin")], capture_output=True, text=True, preexec_fn=limit
    )
    assert "cannot write" in result.stdout, result.stderr
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_too_little_free_space_is_reported_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1_064_000_000))
    need_space(tmp_path, 990_000_000, "a small thing", "no need")
    with pytest.raises(UserError) as caught:
        need_space(tmp_path, 1_000_000_000, "a large thing", "make room")
    expected = f"a large thing needs 1.07 GB, but only 1.06 GB are free at '{tmp_path}': make room."
    assert str(caught.value) == expected
