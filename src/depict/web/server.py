"""Running the application: one process, connections that stay silent are closed, a clean stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from depict.errors import UserError

REQUEST_SECONDS = 20.0
"""A connection must send the head of a request within this time; uvicorn itself would wait forever."""
STOP_SECONDS = 10
"""On a stop, requests get this long to finish."""


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a time limit for the head of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a request has begun, start it when the next one is awaited."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _watch(self) -> None:
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif waiting and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._close)

    def _close(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is not between 0 and 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror as error:
        raise UserError(f"--host '{host}' is not an address of this machine.") from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot listen at {host}, port {port}: {reason}: choose another --port or --host.") from error


def address_of(listening: socket.socket, root_path: str) -> str:
    """The address to type into a browser on this machine."""
    host, port = listening.getsockname()[:2]
    ip = ipaddress.ip_address(host)
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"


def is_private(listening: socket.socket) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def make_server(app: FastAPI) -> uvicorn.Server:
    """uvicorn in one process, which logs only what is wrong."""
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def run(app: FastAPI, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that are being answered are finished."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # uvicorn handles both signals itself and raises them again once it has stopped.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        make_server(app).run([listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
