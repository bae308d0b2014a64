"""Connections and addresses."""

import http.client
import json
import socket
import time

import pytest

from depict.errors import UserError
from depict.web import server
from depict.web.server import address_of, is_private, listen
from support.explorer import model_run, serving
from support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def runs():
    return [model_run(tiny_model("linear"))]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_that_sends_no_request_is_closed(runs, monkeypatch, sent):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    with serving(runs) as client, socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_trickling_bytes_does_not_keep_a_connection_open(runs, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    with (
        serving(runs) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection,
        pytest.raises(OSError),
    ):
        for _ in range(400):
            connection.sendall(b"x")
            time.sleep(0.05)


def test_a_connection_may_be_used_again(runs):
    with serving(runs) as client:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
        sockets = set()
        for _ in range(3):
            connection.request("GET", "/health")
            sockets.add(connection.sock)
            with connection.getresponse() as answer:
                assert json.load(answer)["status"] == "ok"
        assert len(sockets) == 1
        connection.close()


def test_a_taken_port_and_a_foreign_address_are_reported_in_one_line():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert is_private(taken)
        assert address_of(taken, "/x") == f"http://127.0.0.1:{port}/x/"
        with pytest.raises(UserError, match=f"port {port}: .*: choose another --port"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match="--host 'no such host' is not an address"):
        listen("no such host", 0)
    with pytest.raises(UserError, match="--port 70000 is not between 0 and 65535"):
        listen("127.0.0.1", 70000)


def test_listening_everywhere_is_not_private():
    with listen("0.0.0.0", 0) as everywhere:
        assert not is_private(everywhere)
        assert address_of(everywhere, "").startswith("http://127.0.0.1:")
