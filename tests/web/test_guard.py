"""Which requests are answered."""

import pytest
from starlette.datastructures import Headers

from depict.web.guard import Guard

GUARD = Guard(lambda *_: None, ["photos.example.org"])


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:80", "[::1]:8000", "192.168.1.7", "PHOTOS.example.org:443"]
)
def test_own_names_and_addresses_are_answered(host):
    assert GUARD.refusal("GET", Headers({"host": host})) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "a:b:c", "example.org"]
)
def test_foreign_hosts_are_refused(host):
    status, detail = GUARD.refusal("GET", Headers({"host": host}))
    assert status == 421
    assert "--allow-host" in detail


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"origin": "http://localhost:8000"}, False),
        ({"origin": "https://localhost:8000"}, False),  # a proxy may speak TLS
        ({"origin": "http://localhost:9000"}, True),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_of_other_sites_are_refused(headers, refused, method):
    refusal = GUARD.refusal(method, Headers({"host": "localhost:8000"} | headers))
    assert (refusal is not None) == refused
    assert not refused or refusal[0] == 403


def test_a_link_on_another_site_may_lead_here_but_a_form_may_not():
    headers = Headers({"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert GUARD.refusal("GET", headers) is None
    assert GUARD.refusal("POST", headers)[0] == 403
