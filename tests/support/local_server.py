"""A real HTTP server on loopback whose manners a test can choose."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Manners:
    """What the server has and how it behaves; `requests` records the path and Range of every request."""

    files: dict[str, bytes]
    ranges: bool = True
    length: bool = True
    """Whether answers tell their Content-Length; GitHub's archives do not."""
    break_after: list[int] = field(default_factory=list)
    """For the next answers: close the connection after so many bytes of the body."""
    refuse: list[int] = field(default_factory=list)
    """For the next answers: only this status."""
    etag: str | None = '"one"'
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serve(files: dict[str, bytes], **options) -> Iterator[Manners]:
    """Serve `files` ({name: content}) until the block ends."""
    manners = Manners(files, **options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            manners.requests.append((self.path, wanted))
            if manners.refuse:
                self.send_error(manners.refuse.pop(0))
                return
            body = manners.files.get(self.path.strip("/"))
            if body is None:
                self.send_error(404)
                return
            total, start = len(body), 0
            same = self.headers.get("If-Range") in (None, manners.etag)
            if wanted and manners.ranges and same:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
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
            if manners.length:
                self.send_header("Content-Length", str(total - start))
            if manners.etag:
                self.send_header("ETag", manners.etag)
            self.end_headers()
            end = start + manners.break_after.pop(0) if manners.break_after else total
            self.wfile.write(body[start:end])
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    manners.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield manners
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
