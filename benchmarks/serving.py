"""`depict serve` under load and attack: does every client get the answer to its own picture, and does memory stay flat?

100 clients send mixed pictures for 2 minutes. Half call POST /segment and compare the labels with those of the model,
half use the page's routes and ask a patch. A 503 is retried after the seconds that it names. Then 200 hostile uploads:
each must be refused in one line, and the server must still answer.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import io
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from depict.data.scenes.dataset import render
from depict.segment.predictor import open_predictor
from depict.web.uploads import MAX_PIXELS, MAX_UPLOAD
from depict.web.uploads import SECONDS as UPLOAD_SECONDS
from mixed_images import resident_bytes

SIZES = [(480, 640), (64, 48), (300, 900), (720, 540), (1, 1), (1080, 1920)]
KINDS = ("png", "jpeg", "webp")


class Picture(NamedTuple):
    """An upload and the labels (H, W) that the model gives it."""

    body: bytes
    labels: np.ndarray


@dataclass
class Record:
    """What all clients saw."""

    seconds: list[float] = field(default_factory=list)
    """Of each answer, from the first attempt on."""
    served: list[float] = field(default_factory=list)
    """Of each answer, from the attempt that was accepted on."""
    asked: list[float] = field(default_factory=list)
    """Of each question about a patch."""
    busy: int = 0
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="a run; by default a small one with random weights")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or small_run(Path(folder) / "run")
        pictures = make_pictures(run)
        with serving(run, options.workers) as (port, process):
            ask(port, "POST", "/segment", pictures[0].body)  # the first call is slow
            record, resident = load(port, process, pictures, options.clients, options.seconds)
            report(record, resident, options)
            record.wrong += attack(port, options.hostile)
            record.wrong += check_labels(port, pictures[0], Record())
            print(f"memory after the attack: {resident_bytes(process) >> 20} MB")
    print("\n".join(record.wrong[:20]) or "every answer was right, every attack was refused")
    return 1 if record.wrong else 0


@contextlib.contextmanager
def serving(run: str, workers: int) -> Iterator[tuple[int, int]]:
    """The port and the process of `depict serve`."""
    command = [sys.executable, "-m", "depict.cli", "serve", run, "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
            while True:
                with contextlib.suppress(OSError):
                    ask(port, "GET", "/health")
                    break
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGINT)


def make_pictures(run: str) -> list[Picture]:
    """Scenes of every size and format, and what the model says about each."""
    predictor, pictures = open_predictor(run), []
    for index in range(len(SIZES) * len(KINDS)):
        file = io.BytesIO()
        Image.fromarray(render(7, index, SIZES[index % len(SIZES)])[0]).save(file, KINDS[index % len(KINDS)])
        pixels = np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
        pictures.append(Picture(file.getvalue(), predictor.labels(pixels)))
    return pictures


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask_until_free(port: int, path: str, body: bytes, record: Record) -> tuple[int, bytes]:
    """The answer to an upload, however often the server is busy."""
    first = time.perf_counter()
    while True:
        start = time.perf_counter()
        status, headers, content = ask(port, "POST", path, body)
        if status != 503:
            record.seconds.append(time.perf_counter() - first)
            record.served.append(time.perf_counter() - start)
            return status, content
        record.busy += 1
        time.sleep(int(headers["retry-after"]) * random.uniform(0.5, 1.5))


def check_labels(port: int, picture: Picture, record: Record) -> list[str]:
    """POST /segment must give the labels of this very picture."""
    status, content = ask_until_free(port, "/segment?output=labels", picture.body, record)
    if status != 200:
        return [f"/segment answered {status}: {content[:200]!r}"]
    return [] if same(np.asarray(Image.open(io.BytesIO(content))), picture.labels) else ["/segment: other labels"]


def check_page(port: int, picture: Picture, record: Record) -> list[str]:
    """The routes of the page: analyze, look at the classes, ask a patch, leave."""
    first = time.perf_counter()
    status, content = ask_until_free(port, "/pictures", picture.body, Record())
    state = json.loads(content)
    if status != 202:
        return [f"/pictures answered {status}: {content[:200]!r}"]
    place = f"/pictures/{state['id']}"
    while state["state"] in ("waiting", "working"):
        time.sleep(0.3)
        status, _, content = ask(port, "GET", place)
        if status != 200:
            return [f"{place} answered {status}: {content[:200]!r}"]
        state = json.loads(content)
    record.seconds.append(time.perf_counter() - first)
    wrong = [] if state["state"] == "done" else [f"/pictures: {state}"]
    _, _, maps = ask(port, "GET", f"{place}/runs/0/maps")
    shown = json.loads(ask(port, "GET", f"{place}/runs/0")[2])
    height, width = shown["view"]
    if (height, width) == picture.labels.shape:
        found = np.frombuffer(gzip.decompress(maps), np.uint8)[: height * width].reshape(height, width)
        wrong += [] if same(found, picture.labels) else ["/pictures: other labels"]
    start = time.perf_counter()
    status, _, content = ask(port, "GET", f"{place}/runs/0/patch?row=0&column=0")
    record.asked.append(time.perf_counter() - start)
    wrong += [] if status == 200 else [f"/patch answered {status}: {content[:200]!r}"]
    ask(port, "DELETE", place)
    return wrong


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal, up to pixels where two classes tie in the last digit."""
    return found.shape == expected.shape and (found == expected).mean() > 0.999


def load(
    port: int, process: int, pictures: list[Picture], clients: int, seconds: float
) -> tuple[Record, list[tuple[float, int]]]:
    """All clients at once; also the memory of the server over time."""
    record, end = Record(), time.monotonic() + seconds

    def client(number: int) -> None:
        choose = random.Random(number)
        while time.monotonic() < end:
            check = check_labels if number % 2 else check_page
            try:
                record.wrong += check(port, choose.choice(pictures), record)
            except OSError as error:
                record.wrong.append(f"client {number}: {error!r}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    resident = []
    while any(thread.is_alive() for thread in threads):
        resident.append((time.monotonic(), resident_bytes(process)))
        time.sleep(0.2)
    return record, resident


def report(record: Record, resident: list[tuple[float, int]], options: argparse.Namespace) -> None:
    took = resident[-1][0] - resident[0][0]
    count = len(record.seconds)
    print(f"{options.clients} clients, {took:.0f} s: {count} answers, {count / took:.1f} per second")
    print(f"answered 503 with Retry-After: {record.busy}; wrong: {len(record.wrong)}")
    for name, times in (
        ("an answer, with retries", record.seconds),
        ("POST /segment once accepted", record.served),
        ("asking a patch", record.asked),
    ):
        if times:
            values = " ".join(f"{1000 * value:.0f}" for value in np.percentile(times, (50, 90, 99, 100)))
            print(f"{name}, ms (median, 90 %, 99 %, longest): {values}")
    parts = np.array_split([value >> 20 for _, value in resident], 10)
    peaks = [int(part.max()) for part in parts if len(part)]
    print(f"peak of memory in each tenth, MB: {peaks}")


# Attacks: each gives what is wrong about the server's answer, or None.

Attack = Callable[[int], str | None]


def refused(path: str, body: bytes, *statuses: int, **headers: str) -> Attack:
    """A request that must be answered with one of these statuses and one line of text."""

    def attack(port: int) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        try:
            connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            content = answer.read().decode()
        finally:
            connection.close()
        detail = json.loads(content)["detail"]
        plain = not any(word in detail for word in ("\n", "Traceback", "<script"))
        return (
            None
            if plain and answer.status in statuses
            else f"{path} {headers} was answered with {answer.status}: {content[:200]}"
        )

    return attack


def slow(port: int) -> str | None:
    """One byte per second: answered with 408 when the time is over."""
    with socket.create_connection(("127.0.0.1", port), timeout=UPLOAD_SECONDS + 60) as connection:
        connection.sendall(b"POST /segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        end = time.monotonic() + UPLOAD_SECONDS + 30
        connection.settimeout(1)
        while time.monotonic() < end:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                return None if b" 408 " in connection.recv(1000) else "a slow sender got another answer"
    return "a slow sender got no answer"


def aborted(port: int) -> str | None:
    """Hang up in the middle of an upload."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        connection.sendall(bytes(5000))
    return None


def attacks() -> list[Attack]:
    """One of each kind."""
    photo = io.BytesIO()
    Image.fromarray(render(7, 0, (200, 300))[0]).save(photo, "jpeg")
    whole = photo.getvalue()
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="../../etc/passwd"\r\n\r\n'
    form = part + whole + b"\r\n--x--\r\n"
    return [
        refused("/segment", png_bomb(60_000, 60_000), 422),
        refused("/segment", png_bomb(5_000, MAX_PIXELS // 5_000 + 1), 422),
        refused("/segment", whole[: len(whole) // 2], 422, 200),  # Pillow may read what there is of a JPEG
        refused("/segment", encoded_png()[:-100], 422),
        refused("/segment", b"", 422),
        refused("/segment", b"<svg onload='alert(1)'/>", 422),
        refused("/segment", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422),
        refused("/segment", b"PK\x03\x04" + bytes(1000), 422),
        refused("/segment", b"\x89PNG\r\n\x1a\n" + random.Random(0).randbytes(5000), 422),
        refused("/segment", bytes(MAX_UPLOAD + 1), 413),
        refused("/segment", form, 415, Content_Type="multipart/form-data; boundary=x"),
        refused("/segment?run=../../etc/passwd", whole, 404),
        refused("/segment?run=%3Cscript%3Ealert(1)%3C/script%3E", whole, 404),
        refused("/segment?output=%3Cscript%3E", whole, 422),
        refused("/pictures/..%2f..%2fetc%2fpasswd", whole, 404, 405),
        refused("/segment", whole, 403, Origin="http://elsewhere.example"),
        refused("/segment", whole, 421, Host="elsewhere.example"),
        slow,
        aborted,
        aborted,
    ]


def attack(port: int, count: int) -> list[str]:
    """`count` attacks, most at once."""
    kinds, wrong, answered = attacks(), [], Counter[str]()
    gate = threading.Semaphore(40)

    def one(number: int) -> None:
        with gate:
            try:
                problem = kinds[number % len(kinds)](port)
            except OSError as error:
                problem = f"attack {number % len(kinds)}: {error!r}"
            answered["refused" if problem is None else "not refused"] += 1
            if problem:
                wrong.append(problem)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{count} hostile uploads of {len(kinds)} kinds: {dict(answered)}")
    return wrong


def png_bomb(width: int, height: int) -> bytes:
    """A few bytes that claim to be a large picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def encoded_png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(render(7, 1, (200, 300))[0]).save(file, "png")
    return file.getvalue()


def small_run(folder: Path) -> str:
    """A decoder of three steps with random weights."""
    import torch

    from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
    from depict.model import SegmentationModel
    from depict.runs import save

    torch.manual_seed(0)
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, depth=2, dim=64, patch_size=8),
        decoder=DecoderConfig("depict_sa", heads=3, head_dim=16),
        data=DataConfig(short_edge=96, max_aspect=4.0),
        image_size=96,
    )
    save(SegmentationModel(config, [f"class {index}" for index in range(16)]), folder)
    return str(folder)


if __name__ == "__main__":
    sys.exit(main())
