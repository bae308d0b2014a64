"""What every request must satisfy and every answer carries: no foreign hosts, no other sites, a strict policy."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], root_path: str = ""):
        self.app, self.root_path = app, root_path
        self.hosts = {"localhost", *(host.lower() for host in hosts if host)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":  # the start and the end of the server; there are no web sockets
            await self.app(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(POLICY)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self.refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            status, detail = refusal
            await JSONResponse({"detail": detail}, status)(scope, receive, send_with_policy)
            return
        path = scope["path"]
        if not f"{path}/".startswith(f"{self.root_path}/"):  # a proxy has removed the prefix
            path = self.root_path + path
        await self.app({**scope, "root_path": self.root_path, "path": path}, receive, send_with_policy)

    def refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """The status and reason if a request with these headers is refused."""
        host = headers.get("host", "")
        if not self.known(host):
            return 421, "this server does not answer for that host name: start it with --allow-host NAME."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "requests from other sites are refused."
        # Browsers say whether another site caused a request, also where they send no Origin. Following a link is fine.
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
        if site not in ("none", "same-origin") and not (mode == "navigate" and method == "GET"):
            return 403, "requests from other sites are refused."
        return None

    def known(self, host: str) -> bool:
        """Whether the server answers for this Host header.

        A page that lets its own name point to this machine (DNS rebinding) still sends its name. Addresses are safe.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self.hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
