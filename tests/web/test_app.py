"""The server over HTTP: what it answers, and that hostile requests get a clear answer and nothing else."""

import gzip
import io
import json
import socket
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from depict import create_model
from depict.decoders import DECODERS
from depict.inference.onnx_predictor import OnnxPredictor
from depict.web import jobs, service, uploads
from depict.web.runs import Run
from support.explorer import encoded, model_run, picture, serving
from support.level_decoder import Sum
from support.onnx_model import ConvModel, write_graph
from support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def onnx_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "secret_folder.onnx"
    write_graph(ConvModel(), path)
    return Run("exported", OnnxPredictor(path), None)


@pytest.fixture(scope="module")
def client(onnx_run):
    with serving([model_run(tiny_model()), model_run(tiny_model("depict_ca"), "tiny ü 🌲"), onnx_run]) as started:
        yield started


def bomb() -> bytes:
    def chunk(kind, content):
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = (60000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


def test_segment_answers_json_labels_overlay_and_probabilities(client):
    image = picture(50, 70, seed=1)
    labels = tiny_model().predictor().labels(image)
    found = client.post("/segment", encoded(image)).json
    assert (found["run"], found["height"], found["width"]) == ("tiny", 50, 70)
    shares = {entry["label"]: entry["share"] for entry in found["classes"]}
    assert shares == {int(k): pytest.approx((labels == k).mean(), abs=1e-6) for k in np.unique(labels)}
    answer = client.post("/segment?output=labels", encoded(image))
    assert answer.headers["content-type"] == "image/png"
    assert (np.asarray(Image.open(io.BytesIO(answer.body))) == labels).all()
    overlay = Image.open(io.BytesIO(client.post("/segment?output=overlay", encoded(image, "jpeg")).body))
    assert overlay.size[0] >= 70
    with np.load(io.BytesIO(client.post("/segment?output=probabilities", encoded(image)).body)) as file:
        assert (file["probabilities"].argmax(2) == labels).mean() > 0.99


def test_a_run_is_chosen_by_name_and_an_unknown_one_lists_the_names(client):
    from urllib.parse import quote

    body = encoded(picture())
    assert client.post(f"/segment?run={quote('tiny ü 🌲')}", body).json["run"] == "tiny ü 🌲"
    answer = client.post("/segment?run=other", body)
    assert answer.status == 404
    assert answer.json["detail"] == "there is no run of that name; there are: tiny, tiny ü 🌲, exported."


def test_a_picture_is_analyzed_once_and_then_asked(client):
    image = picture(50, 70, seed=2)
    id = client.analyzed(encoded(image))
    result = client.get(f"/pictures/{id}/runs/0").json
    assert result["view"] == [50, 70]
    assert [depth["operator"] for depth in result["steps"]["depths"]] == [None, "mssa"]
    answer = client.get(f"/pictures/{id}/runs/0/maps")
    assert answer.headers["content-encoding"] == "gzip"
    classes = np.frombuffer(gzip.decompress(answer.body), np.uint8)[: 50 * 70].reshape(50, 70)
    assert (classes == tiny_model().predictor().labels(image)).all()
    assert len(gzip.decompress(client.get(f"/pictures/{id}/runs/0/steps").body)) > 2 * 50 * 70
    patch = client.get(f"/pictures/{id}/runs/0/patch?row=1&column=2").json
    assert (patch["row"], patch["column"], len(patch["steps"]), len(patch["closeness"])) == (1, 2, 1, 2)
    for row, column in ((-1, 0), (99, 0), (0, 99)):
        answer = client.get(f"/pictures/{id}/runs/0/patch?row={row}&column={column}")
        assert answer.status == 422
        assert "there is no patch" in answer.json["detail"]
    assert client.get(f"/pictures/{id}/runs/0/patch?row=x&column=1").status == 422


def test_files_of_a_kept_picture_are_those_of_segment(client):
    body = encoded(picture(50, 70, seed=3))
    id = client.analyzed(body)
    for name, output in (("labels.png", "labels"), ("overlay.png", "overlay"), ("segmentation.json", "json")):
        kept = client.get(f"/pictures/{id}/runs/0/files/{name}")
        direct = client.post(f"/segment?output={output}", body)
        assert kept.body == direct.body or json.loads(kept.body) == json.loads(direct.body)
    assert client.get(f"/pictures/{id}/runs/0/files/probabilities.npz").body[:2] == b"PK"
    assert client.get(f"/pictures/{id}/runs/0/files/passwd").status == 404
    assert client.get(f"/pictures/{id}/runs/9").status == 404


def test_an_onnx_run_gives_labels_and_says_that_it_has_no_steps(client):
    note = client.get("/runs").json["runs"][2]["note"]
    assert note.startswith("This model is an ONNX file, which gives labels only.")
    id = client.analyzed(encoded(picture()))
    assert client.get(f"/pictures/{id}/runs/2").json["steps"] is None
    assert client.get(f"/pictures/{id}/runs/2/patch?row=0&column=0").status == 404


def test_a_decoder_without_steps_gives_labels_and_leaves_the_steps_of_the_others(monkeypatch):
    monkeypatch.setitem(DECODERS, "sum", Sum)
    levels = create_model("sum", "test_efficientnet", 3, image_size=64)
    with serving([model_run(levels, "levels"), model_run(tiny_model())]) as client:
        assert "has no steps to show" in client.get("/runs").json["runs"][0]["note"]
        id = client.analyzed(encoded(picture()))
        assert client.get(f"/pictures/{id}").json["unrolled"] == [1]
        assert client.get(f"/pictures/{id}/runs/0").json["steps"] is None
        assert client.get(f"/pictures/{id}/runs/1").json["steps"] is not None


def test_a_forgotten_picture_is_gone(client):
    id = client.analyzed(encoded(picture()))
    assert client.ask("DELETE", f"/pictures/{id}").status == 204
    answer = client.get(f"/pictures/{id}")
    assert (answer.status, answer.json["detail"]) == (404, service.EXPIRED)
    assert client.ask("DELETE", "/pictures/unknown").status == 204


def test_health_and_openapi_describe_the_service(client):
    assert client.get("/health").json["runs"] == ["tiny", "tiny ü 🌲", "exported"]
    described = client.get("/openapi.json").json
    assert {"/segment", "/health", "/pictures"} <= described["paths"].keys()
    assert "requestBody" in described["paths"]["/segment"]["post"]
    assert "503" in described["paths"]["/segment"]["post"]["responses"]


@pytest.mark.parametrize("path", ["/", "/guide", "/docs", "/static/app.js", "/static/style.css", "/static/icon.svg"])
def test_every_answer_has_the_policy_and_pages_have_no_foreign_address_or_inline_script(client, path):
    answer = client.get(path)
    assert answer.status == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    if "html" in answer.headers["content-type"]:
        assert text.count("<script") == text.count('<script type="module" src=')
        assert " style=" not in text
        assert "onclick" not in text


def test_files_outside_the_page_are_not_served(client):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/app.py"):
        assert client.get(path).status == 404


@pytest.mark.parametrize(
    ("body", "headers", "status", "detail"),
    [
        (b"", {}, 422, "the body is empty"),
        (b"GIF, JPEG or PNG? Neither.", {}, 422, "the picture is not a readable image."),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", {}, 422, "the picture is not a readable image."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n", {}, 422, "the picture is not a readable image."),
        (bomb(), {}, 422, "pixels"),
        (encoded(picture(40, 50))[:-60], {}, 422, "cannot read the picture"),
        (b"--x\r\n", {"Content_Type": "multipart/form-data; boundary=x"}, 415, "curl --data-binary @photo.jpg"),
        (b"x", {"Content_Type": "image/png", "Content_Length": "99999999999"}, 413, "more than the limit of 20 MB"),
        (b"x", {"Origin": "http://evil.example"}, 403, "requests from other sites are refused"),
        (b"x", {"Host": "evil.example"}, 421, "--allow-host"),
    ],
)
@pytest.mark.parametrize("path", ["/segment", "/pictures"])
def test_what_is_not_a_picture_is_refused_in_one_line(client, path, body, headers, status, detail):
    answer = client.post(path, body, **headers)
    if path == "/pictures" and status == 422 and body:
        id = answer.json["id"]
        while (state := client.get(f"/pictures/{id}").json)["state"] in ("waiting", "working"):
            time.sleep(0.02)
        assert state["state"] == "failed"
        found = state["detail"]
    else:
        assert answer.status == status
        found = answer.json["detail"]
    assert detail in found
    assert "\n" not in found
    assert "secret" not in found
    assert "/" not in found.replace("JPEG/", "")


def test_a_body_without_a_length_is_refused(client):
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(b"POST /segment HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b" 411 " in connection.recv(1000)


def test_a_slow_sender_is_answered_and_its_bytes_are_not_held(client, monkeypatch):
    monkeypatch.setattr(uploads, "SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(b"POST /segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        assert b" 408 " in connection.recv(1000)
    assert client.app.state.service.uploads.reading == 0


def test_an_aborted_upload_leaves_nothing(client):
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(b"POST /pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        while client.app.state.service.uploads.reading == 0:
            time.sleep(0.01)
    while client.app.state.service.uploads.reading:
        time.sleep(0.01)


def test_uploads_at_once_are_bounded(client, monkeypatch):
    body = encoded(picture())
    monkeypatch.setattr(uploads, "READING", len(body) - 1)
    answer = client.post("/segment", body)
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1


class Blocked:
    """A predictor that waits until it may go on."""

    def __init__(self):
        self.inner, self.gate, self.began = tiny_model().predictor(), threading.Event(), threading.Event()
        self.classes, self.palette = self.inner.classes, self.inner.palette

    def scores(self, images):
        self.began.set()
        self.gate.wait(30)
        yield from self.inner.scores(images)


def test_a_full_queue_answers_503_and_those_who_wait_see_their_position(monkeypatch):
    monkeypatch.setattr(jobs, "WAITING", 2)
    blocked, body = Blocked(), encoded(picture())
    with serving([Run("blocked", blocked, None)]) as client:
        first = client.post("/pictures", body).json["id"]
        blocked.began.wait(30)
        second, third = (client.post("/pictures", body).json for _ in range(2))
        assert (second["state"], second["position"], third["position"]) == ("waiting", 1, 2)
        answer = client.post("/pictures", body)
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get(f"/pictures/{first}").json["stage"] == "finding the classes"
        client.ask("DELETE", f"/pictures/{second['id']}")
        assert client.get(f"/pictures/{third['id']}").json["position"] == 1
        blocked.gate.set()


def test_the_work_for_a_client_that_hung_up_is_dropped():
    blocked, body = Blocked(), encoded(picture())
    with serving([Run("blocked", blocked, None)]) as client:
        client.post("/pictures", body)
        blocked.began.wait(30)
        head = f"POST /segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(head + body)
            while client.get("/health").json["waiting"] == 0:
                time.sleep(0.01)
        while client.get("/health").json["waiting"]:
            time.sleep(0.05)
        blocked.gate.set()


def test_errors_of_the_model_do_not_show_the_paths_of_the_server(onnx_run, monkeypatch, capfd):
    def fail(*_):
        raise OSError(2, "no such file", "/secret/path")

    monkeypatch.setattr(onnx_run.predictor, "scores", fail)
    with serving([onnx_run]) as client:
        answer = client.post("/segment", encoded(picture()))
    assert answer.status == 500
    assert answer.json["detail"] == "the model failed on this picture; the reason is in the server's log."
    assert "/secret/path" in capfd.readouterr().err


def test_nothing_that_is_uploaded_is_written_to_disk(client, tmp_path, monkeypatch):
    import tempfile

    def refuse(*_, **__):
        raise AssertionError("a temporary file")

    for name in ("mkstemp", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    noise = np.random.default_rng(0).integers(0, 255, (900, 900, 3), np.uint8)  # 2.4 MB: beyond what Starlette holds
    assert client.post("/segment", encoded(noise)).status == 200


@pytest.mark.parametrize("stripped", [True, False])
def test_the_page_works_behind_a_prefix_whether_or_not_the_proxy_strips_it(stripped):
    with serving([model_run(tiny_model())], root_path="/explorer") as client:
        prefix = "" if stripped else "/explorer"
        assert b"depict" in client.get(f"{prefix}/").body
        assert client.get(f"{prefix}/static/app.js").status == 200
        assert client.get(f"{prefix}/health").status == 200
        assert client.post(f"{prefix}/segment", encoded(picture())).status == 200


def test_examples_are_offered_for_models_that_know_them(client):
    assert client.get("/runs").json["examples"] == 100
    assert Image.open(io.BytesIO(client.get("/examples/3").body)).size == (640, 480)
    assert client.get("/examples/100").status == 404
