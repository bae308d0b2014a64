from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from depict.data.prepare.download import download
from depict.errors import UserError
from support.local_server import serve

BODY = np.random.default_rng(0).bytes(3_000_000)
SHA1 = hashlib.sha1(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_file_is_downloaded_completely_and_no_other_file_is_left(tmp_path):
    with serve({"a.zip": BODY}) as server:
        path = download(f"{server.url}/a.zip", tmp_path / "new" / "a.zip", SHA1)
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["a.zip"]


def test_a_lost_connection_is_resumed_where_it_stopped(tmp_path):
    with serve({"a.zip": BODY}, break_after=[1_000_000, 500_000]) as server:
        path = download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1, pause=0)
    assert path.read_bytes() == BODY
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_server_without_ranges_sends_the_file_again(tmp_path):
    with serve({"a.zip": BODY}, ranges=False, break_after=[1_000_000]) as server:
        path = download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1, pause=0)
    assert path.read_bytes() == BODY


def test_a_failed_download_is_resumed_by_the_next_call(tmp_path):
    with serve({"a.zip": BODY}, break_after=[700_000, 0, 0]) as server:
        with pytest.raises(UserError, match=r"cannot download .*a\.zip: .*Run again to continue"):
            download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1, attempts=2, pause=0)
        assert (tmp_path / "a.zip.part").stat().st_size == 700_000
        server.requests.clear()
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY
    assert server.requests == [("/a.zip", "bytes=700000-")]


def test_a_killed_download_is_resumed(tmp_path):
    target = tmp_path / "a.zip"
    program = (
        "import sys, pathlib; from depict.data.prepare.download import download;"
        "download(sys.argv[1], pathlib.Path(sys.argv[2]), pause=60)"
    )
    with serve({"a.zip": BODY}, break_after=[1_200_000]) as server:
        command = [sys.executable, "-c", program, f"{server.url}/a.zip", str(target)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        part = tmp_path / "a.zip.part"
        for _ in range(2000):
            if part.exists() and part.stat().st_size == 1_200_000:
                break
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        server.requests.clear()
        assert download(f"{server.url}/a.zip", target, SHA1).read_bytes() == BODY
    assert server.requests == [("/a.zip", "bytes=1200000-")]


def test_a_file_that_changed_on_the_server_is_downloaded_again(tmp_path):
    other = BODY[::-1]
    with serve({"a.zip": BODY}, break_after=[1_000_000]) as server:
        with pytest.raises(UserError):
            download(f"{server.url}/a.zip", tmp_path / "a.zip", attempts=0, pause=0)
        server.files["a.zip"], server.etag = other, '"two"'
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip").read_bytes() == other


def test_a_change_of_size_is_noticed_without_an_etag(tmp_path):
    other = BODY + b"more"
    with serve({"a.zip": BODY}, break_after=[1_000_000], etag=None) as server:
        with pytest.raises(UserError):
            download(f"{server.url}/a.zip", tmp_path / "a.zip", attempts=0, pause=0)
        server.files["a.zip"] = other
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", pause=0).read_bytes() == other


def test_a_part_from_another_address_is_not_resumed(tmp_path):
    with serve({"a.zip": BODY, "b/a.zip": BODY[::-1]}, break_after=[1_000_000]) as server:
        with pytest.raises(UserError):
            download(f"{server.url}/b/a.zip", tmp_path / "a.zip", attempts=0, pause=0)
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY


def test_a_complete_part_is_only_renamed(tmp_path):
    with serve({"a.zip": BODY}) as server:
        download(f"{server.url}/a.zip", tmp_path / "a.zip")
        with serve({"a.zip": BODY}, break_after=[10]) as other:
            with pytest.raises(UserError):
                download(f"{other.url}/a.zip", tmp_path / "b.zip", attempts=0, pause=0)
            (tmp_path / "a.zip").replace(tmp_path / "b.zip.part")
            assert download(f"{other.url}/a.zip", tmp_path / "b.zip", SHA1).read_bytes() == BODY


def test_a_busy_server_is_retried(tmp_path):
    with serve({"a.zip": BODY}, refuse=[503, 500]) as server:
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1, pause=0).read_bytes() == BODY
    assert len(server.requests) == 3


def test_a_missing_file_is_reported_at_once(tmp_path):
    with serve({}) as server:
        with pytest.raises(UserError, match=r"404 Not Found.*--source.*put the file at '.*a\.zip'"):
            download(f"{server.url}/a.zip", tmp_path / "a.zip")
        assert len(server.requests) == 1


def test_an_unreachable_host_is_reported_in_one_line(tmp_path):
    with serve({}) as server:
        gone = server.url
    with pytest.raises(UserError, match="refused") as error:
        download(f"{gone}/a.zip", tmp_path / "a.zip", attempts=2, pause=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/a.zip",
        "a.zip",
        "http://",
        "http://[bad/a.zip",
        "http://a..b/a.zip",
        "http://host:port/a.zip",
        "http://host/a b.zip",
        "http://host/é.zip",
    ],
)
def test_anything_but_a_web_address_is_refused(url, tmp_path):
    with pytest.raises(UserError, match="is not an http:// or https:// address"):
        download(url, tmp_path / "a.zip")


def test_a_wrong_checksum_sets_the_file_aside(tmp_path):
    with serve({"a.zip": BODY}) as server:
        with pytest.raises(UserError, match=r"not the published file.*a\.zip\.corrupt"):
            download(f"{server.url}/a.zip", tmp_path / "a.zip", "0" * 40)
        assert [p.name for p in tmp_path.iterdir()] == ["a.zip.corrupt"]
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY


def test_an_existing_file_is_verified_and_kept(tmp_path):
    (tmp_path / "a.zip").write_bytes(BODY)
    assert download("http://127.0.0.1:1/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY
    (tmp_path / "a.zip").write_bytes(b"something else")
    with pytest.raises(UserError, match="not the published file"):
        download("http://127.0.0.1:1/a.zip", tmp_path / "a.zip", SHA1)
    assert (tmp_path / "a.zip").read_bytes() == b"something else"


@pytest.mark.parametrize("length", [True, False])
def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch, length):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1_000_000))
    message = r"downloading 'a\.zip' needs 0.07 GB, but only 0.00 GB are free at '.*': make room"
    with serve({"a.zip": BODY}, length=length) as server, pytest.raises(UserError, match=message):
        download(f"{server.url}/a.zip", tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())


def test_free_space_is_checked_before_every_chunk_if_the_size_is_unknown(tmp_path, monkeypatch):
    def usage(folder):
        free = (64 << 20) + 2_500_000 - sum(path.stat().st_size for path in folder.glob("*.part"))
        return namedtuple("Usage", "free")(free)

    with serve({"a.zip": BODY}, length=False) as server:
        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"downloading 'a\.zip' needs"):
            patch.setattr(shutil, "disk_usage", usage)
            download(f"{server.url}/a.zip", tmp_path / "a.zip")
        have = (tmp_path / "a.zip.part").stat().st_size
        assert 0 < have < 2_500_000
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY
    assert server.requests[-1] == ("/a.zip", f"bytes={have}-")


def test_a_part_without_size_and_version_is_downloaded_again(tmp_path, monkeypatch):
    with serve({"a.zip": BODY}, length=False, etag=None) as server:
        with monkeypatch.context() as patch, pytest.raises(UserError, match="cannot write"):
            patch.setattr(Path, "replace", _no_space)
            download(f"{server.url}/a.zip", tmp_path / "a.zip")
        (tmp_path / "a.zip.part").write_bytes(BODY[:1_000_000])
        server.files["a.zip"] = BODY[::-1]
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", pause=0).read_bytes() == BODY[::-1]


def _no_space(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("length", [True, False])
def test_a_disk_that_fills_up_keeps_the_part(tmp_path, length):
    program = (
        "import resource, sys, pathlib, depict.data.prepare.download as d, depict.errors as e\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n"
        "try: d.download(sys.argv[1], pathlib.Path(sys.argv[2]))\n"
        "except e.UserError as error: print(error)"
    )
    with serve({"a.zip": BODY}, length=length) as server:
        command = [sys.executable, "-c", program, f"{server.url}/a.zip", str(tmp_path / "a.zip")]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"cannot write '{tmp_path / 'a.zip.part'}'" in printed
        assert len(printed.splitlines()) == 1
        assert "Run again to continue" in printed
        assert 0 < (tmp_path / "a.zip.part").stat().st_size <= 1_500_000
        assert download(f"{server.url}/a.zip", tmp_path / "a.zip", SHA1).read_bytes() == BODY
    assert server.requests[-1][1] is not None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with serve({"a.zip": BODY}) as server, pytest.raises(UserError, match=r"cannot write '.*file.*a\.zip"):
        download(f"{server.url}/a.zip", tmp_path / "file" / "a.zip")
