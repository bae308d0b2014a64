"""Reading and decoding what strangers send: bounded in bytes, pixels and time, in memory only."""

from __future__ import annotations

import asyncio

import numpy as np
from fastapi import Request
from starlette.requests import ClientDisconnect

from depict.io.images import decode_image
from depict.web.jobs import BusyError

MAX_UPLOAD = 20 << 20
"""Bytes of one picture."""
MAX_PIXELS = 24_000_000
"""Of one picture, checked before it is decoded."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Pillow's names of what is decoded; of an animation, the first picture."""
READING = 256 << 20
"""Bytes of all uploads that are being received at once."""
SECONDS = 30.0
"""An upload must be complete after this time."""


class RefusedError(Exception):
    """A request that is answered with an error: a status and one line."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status, self.detail = status, detail


class Uploads:
    """Receives the bodies of requests. They are not parsed as forms: Starlette would write large ones to disk."""

    def __init__(self) -> None:
        self.reading = 0

    async def read(self, request: Request) -> bytes:
        """The body of a request. Raises RefusedError or BusyError."""
        length = expected_length(request)
        if self.reading + length > READING:
            raise BusyError(2)
        self.reading += length
        data = bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                async for chunk in request.stream():
                    data += chunk
        except TimeoutError:
            raise RefusedError(408, f"the picture did not arrive within {SECONDS:.0f} s.") from None
        except ClientDisconnect:
            raise RefusedError(400, "the picture did not arrive completely.") from None
        finally:
            self.reading -= length
        return bytes(data)


def expected_length(request: Request) -> int:
    """The length of the body, after checking all that can be refused without reading it."""
    kind = request.headers.get("content-type", "")
    if kind.lower().startswith("multipart/"):
        raise RefusedError(
            415,
            "send the picture itself as the body, not a form: curl --data-binary @photo.jpg (not -F), "
            "or data=open('photo.jpg', 'rb').read() in Python.",
        )
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise RefusedError(411, "the length of the picture is missing: send a Content-Length header.")
    if int(length) == 0:
        raise RefusedError(422, "the body is empty: send the bytes of a picture.")
    if int(length) > MAX_UPLOAD:
        raise RefusedError(413, f"{int(length) / 2**20:.1f} MB are more than the limit of {MAX_UPLOAD >> 20} MB.")
    return int(length)


def decode(upload: bytes) -> np.ndarray:
    """RGB uint8 (H, W, 3). Raises UserError with a message that may be shown to the client."""
    return decode_image(upload, FORMATS, MAX_PIXELS)
