"""The explorer on a free port of the loopback interface, in a thread, and a client for it."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from depict.web.app import create_app
from depict.web.runs import Run
from depict.web.server import listen, make_server


class Answer(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One request per connection."""

    def __init__(self, port: int, app: Any = None):
        self.port, self.app = port, app
        self.url = f"http://127.0.0.1:{port}/"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: bytes, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def analyzed(self, body: bytes) -> str:
        """Send a picture and wait for its analysis; returns its id."""
        state = self.post("/pictures", body).json
        while state["state"] in ("waiting", "working"):
            time.sleep(0.02)
            state = self.get(f"/pictures/{state['id']}").json
        assert state["state"] == "done", state
        return state["id"]


@contextlib.contextmanager
def serving(runs: Sequence[Run], **options: Any) -> Iterator[Client]:
    """Serve until the block ends."""
    app = create_app(runs, **options)
    server = make_server(app)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Client(listening.getsockname()[1], app)
        finally:
            server.should_exit = True
            thread.join()


def model_run(model: Any, name: str = "tiny") -> Run:
    return Run(name, model.predictor(), model)


def picture(height: int = 44, width: int = 60, seed: int = 0) -> np.ndarray:
    """Smooth colors, uint8 (height, width, 3)."""
    random = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)
    a, b, c = random.uniform(0, 85, (3, 3))
    return np.stack([a[i] * rows + b[i] * columns + c[i] * (rows < columns) for i in range(3)], 2).astype(np.uint8) * 3


def encoded(image: np.ndarray, format: str = "png") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format)
    return file.getvalue()
