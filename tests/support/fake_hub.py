"""The part of the Hugging Face hub that `depict` uses, on this machine: create, commit, large files, download."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SHA = "1" * 40
TOKEN = "hf_test"


class FakeHub:
    """Repositories as files by name; large ones are kept by their hash until a commit names them."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        """Sent with every file, in place of the right ones: what a hostile server may do."""
        self.url = ""

    def answer(self, method: str, path: str, body: bytes, authorized: bool) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        parts = path.split("?")[0].strip("/").split("/")
        if method not in ("GET", "HEAD") and parts[0] != "large" and not authorized:
            return 401, {}, b"{}"
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(body))
        if parts == ["api", "validate-yaml"]:
            return self.json({"errors": [], "warnings": []})
        if parts[0] == "large":
            self.large[parts[1]] = body
            return 200, {"ETag": '"x"'}, b""
        if parts[-4:] == ["info", "lfs", "objects", "batch"]:
            return self.batch(json.loads(body))
        if parts[:2] == ["api", "models"]:
            name, action = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else "revision"
            if name not in self.repositories or (name in self.private and not authorized):
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            if action == "preupload":
                files = json.loads(body)["files"]
                modes = {True: "lfs", False: "regular"}
                answer = [
                    {"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                    for f in files
                ]
                return self.json({"files": answer})
            if action == "commit":
                return self.commit(name, body)
            if action == "tree":
                return self.json([self.entry(name, path) for path in self.repositories[name]])
            return self.json({"id": name, "sha": SHA, "siblings": [{"rfilename": f} for f in self.repositories[name]]})
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), "/".join(parts[4:]), authorized)
        return 404, {}, b"{}"

    def create(self, wanted: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        name = f"{wanted['organization']}/{wanted['name']}"
        known = name in self.repositories
        self.repositories.setdefault(name, {})
        if wanted.get("private"):
            self.private.add(name)
        return self.json({"url": f"{self.url}/{name}", "name": name}, 409 if known else 200)

    def batch(self, wanted: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/large/{one['oid']}"}}} for one in wanted["objects"]
        ]
        return self.json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        for line in body.splitlines():
            one = json.loads(line)
            if one["key"] == "file":
                self.repositories[name][one["value"]["path"]] = base64.b64decode(one["value"]["content"])
            elif one["key"] == "lfsFile":
                content = self.large[one["value"]["oid"]]
                assert hashlib.sha256(content).hexdigest() == one["value"]["oid"]
                self.repositories[name][one["value"]["path"]] = content
        return self.json({"commitUrl": f"{self.url}/{name}/commit/{SHA}", "commitOid": SHA, "success": True})

    def entry(self, name: str, path: str) -> dict[str, Any]:
        content = self.repositories[name][path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def resolve(self, name: str, path: str, authorized: bool) -> tuple[int, dict[str, str], bytes]:
        if name in self.private and not authorized:
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        content = self.repositories.get(name, {}).get(path)
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": SHA}
        return 200, headers | self.headers, content

    def json(self, value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
        return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, home: Path, token: str | None = TOKEN) -> None:
    """Point the hub's client, which is offline in tests, to `url`, with its cache in `home` and `token` as login."""
    from huggingface_hub import constants

    for name, value in {
        "HF_HUB_OFFLINE": False,
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_ETAG_TIMEOUT": 1,
    }.items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub on the loopback interface while the block runs."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            authorized = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            hub.requests.append(f"{self.command} {self.path}")
            status, headers, content = hub.answer(self.command, self.path, body, authorized)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815 - the server's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
