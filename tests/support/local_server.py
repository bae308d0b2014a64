"""A real HTTP server on the loopback interface, with behavior that a test can choose."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Server:
    """What the server has and how it behaves; `requests` records the path and Range of every request."""

    files: dict[str, bytes]
    ranges: bool = True
    length: bool = True
    """Whether responses have a Content-Length; those of GitHub's archives do not."""
    break_after: list[int] = field(default_factory=list)
    """For the next responses: close the connection after this many bytes of the body."""
    refuse: list[int] = field(default_factory=list)
    """For the next responses: only this status."""
    etag: str | None = '"one"'
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serve(files: dict[str, bytes], **options) -> Iterator[Server]:
    """Serve `files` ({name: content}) until the block ends."""
    state = Server(files, **options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            state.requests.append((self.path, byte_range))
            if state.refuse:
                self.send_error(state.refuse.pop(0))
                return
            body = state.files.get(self.path.strip("/"))
            if body is None:
                self.send_error(404)
                return
            total, start = len(body), 0
            same = self.headers.get("If-Range") in (None, state.etag)
            if byte_range and state.ranges and same:
                start = int(byte_range.removeprefix("bytes=").rstrip("-"))
                if start >= total:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{total}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            else:
                self.send_response(200)
            if state.length:
                self.send_header("Content-Length", str(total - start))
            if state.etag:
                self.send_header("ETag", state.etag)
            self.end_headers()
            end = start + state.break_after.pop(0) if state.break_after else total
            self.wfile.write(body[start:end])
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    with _running(Handler) as state.url:
        yield state


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve the files of a folder until the block ends; gives the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with _running(functools.partial(Quiet, directory=folder)) as url:
        yield url


@contextlib.contextmanager
def _running(handler) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
