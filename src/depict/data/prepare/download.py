"""Downloading a large file over HTTP: resumed after an interruption, checksum verified, free space checked first."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from depict.errors import UserError
from depict.io.files import need_space, write_json
from depict.terminal import progress_bar, say

CHUNK = 1 << 20
PERMANENT = (400, 401, 403, 404, 405, 410, 451)
"""Status codes that a second request will not change."""
MAKE_ROOM = "make room or choose another --root"
"""What to do when the disk is too full."""


@dataclass(frozen=True)
class _Origin:
    """Where a partial file comes from; it is only continued from the same one."""

    url: str
    size: int | None
    version: str | None
    """The server's strong ETag or Last-Modified, for If-Range."""


def download(url: str, target: Path, sha1: str | None = None, *, attempts: int = 5, pause: float = 2.0) -> Path:
    """Download `url` to `target` and return `target`; an existing file is only verified.

    Data goes to `target`.part first, which a later call continues with a Range request (a server that does not support
    them, or whose file has changed, sends it again). Gives up after `attempts` requests in a row without any data.
    """
    if target.exists():
        if sha1:
            _verify(target, sha1, f"Remove it and run again to download it from {url}.")
        return target
    if not _is_address(url):
        raise UserError(f"'{url}' is not an http:// or https:// address: give one with --source.")
    part, origin_file = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = 0
        while True:
            before = _length(part)
            try:
                if _request(url, part, origin_file):
                    break
                problem = "the connection was lost"
            except urllib.error.HTTPError as error:
                problem = f"the server answered {error.code} {error.reason}"
                if error.code in PERMANENT:
                    raise UserError(_failed(url, target, problem)) from error
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                problem = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
            failures = 0 if _length(part) > before else failures + 1
            if failures >= attempts:
                raise UserError(_failed(url, target, problem))
            wait = pause * 2 ** max(failures - 1, 0)
            say(f"{target.name}: {problem}; retrying in {wait:.0f} s", error=True)
            time.sleep(wait)
        if sha1:
            _verify_part(part, origin_file, sha1, url)
        part.replace(target)
        origin_file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{part}': {error.strerror or error}. Run again to continue.") from error
    return target


def _is_address(url: str) -> bool:
    """Whether a URL can be requested at all; retrying would not help with a malformed one."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # unbalanced brackets, a port that is not a number, an invalid host name
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(host)
        and port != 0
        and all("!" <= character <= "~" for character in url)
    )


def _request(url: str, part: Path, origin_file: Path) -> bool:
    """Request what is missing, once; True when the file is complete."""
    have, origin = _length(part), _read_origin(origin_file)
    if origin is None or origin.url != url:
        have = 0
    headers = {"User-Agent": "depict", "Accept-Encoding": "identity"}
    if have and origin:
        headers["Range"] = f"bytes={have}-"
        if origin.version:
            headers["If-Range"] = origin.version
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if origin and origin.size == have:
            return True
        _discard(part, origin_file)
        return False
    with response:
        start, total = _extent(response)
        if response.status == 206 and (start != have or origin is None or not _continues(origin, total)):
            _discard(part, origin_file)  # not the rest of what we have: the next request is for the whole file
            return False
        if response.status != 206:
            have = 0
        purpose = f"downloading '{part.name.removesuffix('.part')}'"
        need_space(part.parent, CHUNK if total is None else total - have, purpose, MAKE_ROOM)
        if have == 0:
            part.write_bytes(b"")
            write_json(origin_file, asdict(_Origin(url, total, _version(response))))
        bar = progress_bar(total=total, initial=have, unit="B", unit_scale=True, desc=part.name.removesuffix(".part"))
        with part.open("ab") as file, bar:
            for chunk in _chunks(response):
                if total is None:  # the server gave no size: check before every chunk
                    need_space(part.parent, len(chunk), purpose, MAKE_ROOM)
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))
    return total is None or have == total


def _continues(origin: _Origin, total: int | None) -> bool:
    """Whether a partial response belongs to the file we have the beginning of: by size, else by If-Range."""
    return bool(origin.version) if origin.size is None else total == origin.size


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body in chunks; errors here are the network's, not the disk's."""
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """First byte and total size according to the headers."""
    length = response.headers.get("Content-Length", "")
    if response.status != 206:
        return 0, int(length) if length.isdecimal() else None
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdecimal():
        return -1, None
    return int(first), int(total) if total.isdecimal() else None


def _version(response: http.client.HTTPResponse) -> str | None:
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _read_origin(origin_file: Path) -> _Origin | None:
    try:
        return _Origin(**json.loads(origin_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _length(part: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return part.stat().st_size
    return 0


def _discard(part: Path, origin_file: Path) -> None:
    part.unlink(missing_ok=True)
    origin_file.unlink(missing_ok=True)


def _failed(url: str, target: Path, problem: str) -> str:
    return (
        f"cannot download {url}: {problem}. Run again to continue, give a mirror with --source, "
        f"or put the file at '{target}' yourself."
    )


def _verify_part(part: Path, origin_file: Path, sha1: str, url: str) -> None:
    corrupt = part.with_name(part.name.removesuffix(".part") + ".corrupt")
    try:
        _verify(part, sha1, f"It is kept as '{corrupt.name}'; run again to download {url} again.")
    except UserError:
        part.replace(corrupt)
        origin_file.unlink(missing_ok=True)
        raise


def _verify(path: Path, sha1: str, advice: str) -> None:
    digest = hashlib.sha1(usedforsecurity=False)
    bar = progress_bar(total=path.stat().st_size, unit="B", unit_scale=True, desc=f"checking {path.name}", leave=False)
    with path.open("rb") as file, bar:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    if digest.hexdigest() != sha1:
        raise UserError(f"'{path}' is not the published file: its SHA-1 is {digest.hexdigest()}, not {sha1}. {advice}")
