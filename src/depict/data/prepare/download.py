"""Fetching one large file over HTTP so that a break costs nothing: resumed, checked, and room made sure of first."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from depict.errors import UserError
from depict.io.files import need_space, write_json

CHUNK = 1 << 20
HOPELESS = (400, 401, 403, 404, 405, 410, 451)
"""Answers that asking again will not change."""
MAKE_ROOM = "make room or choose another --root"
"""The way out where the disk is too full."""


@dataclass(frozen=True)
class _Origin:
    """What a half-fetched file is a part of: asking for the rest of something else would splice two files."""

    url: str
    size: int | None
    mark: str | None
    """The server's strong ETag or Last-Modified, for If-Range."""


def download(url: str, target: Path, sha1: str | None = None, *, attempts: int = 5, pause: float = 2.0) -> Path:
    """Fetch `url` to `target` and return it; a file that is there already is only checked.

    Bytes gather in `target`.part, which a later call continues with a Range request (a server that cannot, or whose
    file has changed, sends it anew). Up to `attempts` requests in a row may bring nothing before it gives up.
    """
    if target.exists():
        if sha1:
            _compare(target, sha1, f"Remove it and run again to fetch it anew from {url}.")
        return target
    if not _is_address(url):
        raise UserError(f"'{url}' is not an http:// or https:// address: give one with --source.")
    part, note = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = 0
        while True:
            before = _length(part)
            try:
                if _fetch(url, part, note):
                    break
                problem = "the connection broke"
            except urllib.error.HTTPError as error:
                problem = f"the server answered {error.code} {error.reason}"
                if error.code in HOPELESS:
                    raise UserError(_gave_up(url, target, problem)) from error
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                problem = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
            failures = 0 if _length(part) > before else failures + 1
            if failures >= attempts:
                raise UserError(_gave_up(url, target, problem))
            wait = pause * 2 ** max(failures - 1, 0)
            print(f"{target.name}: {problem}; trying again in {wait:.0f} s", file=sys.stderr)
            time.sleep(wait)
        if sha1:
            _check_part(part, note, sha1, url)
        part.replace(target)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{part}': {error.strerror or error}. Run again to continue.") from error
    return target


def _is_address(url: str) -> bool:
    """Whether a URL can be asked for at all: what is wrong with it here would be wrong at every try."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # brackets that do not match, a port that is no number, a name that is none
        return False
    return parts.scheme in ("http", "https") and bool(host) and port != 0 and all("!" <= sign <= "~" for sign in url)


def _fetch(url: str, part: Path, note: Path) -> bool:
    """One request for what is missing; True when the file is whole."""
    from tqdm import tqdm

    have, origin = _length(part), _read_note(note)
    if origin is None or origin.url != url:
        have = 0
    headers = {"User-Agent": "depict", "Accept-Encoding": "identity"}
    if have and origin:
        headers["Range"] = f"bytes={have}-"
        if origin.mark:
            headers["If-Range"] = origin.mark
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if origin and origin.size == have:
            return True
        _forget(part, note)
        return False
    with answer:
        start, total = _extent(answer)
        if answer.status == 206 and (start != have or origin is None or not _continues(origin, total)):
            _forget(part, note)  # not the rest of what we have: the next request asks for all of it
            return False
        if answer.status != 206:
            have = 0
        purpose = f"downloading '{part.name.removesuffix('.part')}'"
        need_space(part.parent, CHUNK if total is None else total - have, purpose, MAKE_ROOM)
        if have == 0:
            part.write_bytes(b"")
            write_json(note, asdict(_Origin(url, total, _mark(answer))))
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.name.removesuffix(".part"))
        with part.open("ab") as file, bar:
            for chunk in _chunks(answer):
                if total is None:  # the server told no size: look again before every piece
                    need_space(part.parent, len(chunk), purpose, MAKE_ROOM)
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))
    return total is None or have == total


def _continues(origin: _Origin, total: int | None) -> bool:
    """Whether a partial answer is of the file that we have the beginning of: by its size, else by the server's mark."""
    return bool(origin.mark) if origin.size is None else total == origin.size


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, piece by piece; whatever goes wrong here is the network's fault, not the disk's."""
    try:
        while chunk := answer.read(CHUNK):
            yield chunk
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _extent(answer: http.client.HTTPResponse) -> tuple[int, int | None]:
    """First byte and total size that an answer speaks of."""
    length = answer.headers.get("Content-Length", "")
    if answer.status != 206:
        return 0, int(length) if length.isdecimal() else None
    unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdecimal():
        return -1, None
    return int(first), int(total) if total.isdecimal() else None


def _mark(answer: http.client.HTTPResponse) -> str | None:
    etag = answer.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")


def _read_note(note: Path) -> _Origin | None:
    try:
        return _Origin(**json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _length(part: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return part.stat().st_size
    return 0


def _forget(part: Path, note: Path) -> None:
    part.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def _gave_up(url: str, target: Path, problem: str) -> str:
    return (
        f"cannot fetch {url}: {problem}. Run again to continue, give a mirror with --source, "
        f"or put the file at '{target}' yourself."
    )


def _check_part(part: Path, note: Path, sha1: str, url: str) -> None:
    aside = part.with_name(part.name.removesuffix(".part") + ".corrupt")
    try:
        _compare(part, sha1, f"It is kept as '{aside.name}'; run again to fetch {url} anew.")
    except UserError:
        part.replace(aside)
        note.unlink(missing_ok=True)
        raise


def _compare(path: Path, sha1: str, way_out: str) -> None:
    from tqdm import tqdm

    digest = hashlib.sha1(usedforsecurity=False)
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=f"checking {path.name}", leave=False)
    with path.open("rb") as file, bar:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    if digest.hexdigest() != sha1:
        raise UserError(f"'{path}' is not the published file: its SHA-1 is {digest.hexdigest()}, not {sha1}. {way_out}")
