"""The site: every link leads somewhere, nothing is loaded from other hosts, and the search finds things."""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from conftest import REPOSITORY
from support.local_server import serve_folder

pytestmark = pytest.mark.slow
LOADED = {"script": "src", "link": "href", "img": "src", "source": "srcset", "iframe": "src", "video": "src"}


def build(repository, site):
    """Build the site with its own settings."""
    # Not with --quiet: it hides the warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=repository, env=env)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(REPOSITORY, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Addresses(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in ("prev", "next", "canonical"):
            self.found.append(given.get(LOADED[tag]) or "")


def test_every_guide_and_notebook_is_a_page_with_what_it_shows(site):
    sources = [path for path in (REPOSITORY / "docs").rglob("*") if path.suffix in (".md", ".ipynb")]
    assert len(sources) > 14
    for path in sources:
        assert (site / path.relative_to(REPOSITORY / "docs").with_suffix(".html")).is_file()
    assert "MSSA" in (site / "reference/operators.html").read_text()
    assert not list(site.rglob("*.py"))


def test_pages_load_nothing_from_other_hosts(site):
    pages = list(site.rglob("*.html"))
    for page in pages:
        addresses = Addresses()
        addresses.feed(page.read_text(encoding="utf-8"))
        assert addresses.found
        assert [a for a in addresses.found if a.startswith(("http:", "https:", "//"))] == [], page.name
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8").replace('"', "").replace("'", "")


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src").symlink_to(REPOSITORY / "src")
    with (tmp_path / "docs/speed.md").open("a") as page:
        page.write("\n[one](nowhere.md) [two](data.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "data.md#nowhere" in done.stderr


def test_make_docs_builds_it_in_the_same_way():
    recipe = (REPOSITORY / "Makefile").read_text().partition("\ndocs: ")[2].partition("\n\n")[0]
    assert "mkdocs build --strict\n" in f"{recipe}\n"


@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_the_search_finds_things_and_no_page_is_too_wide(site, browser, width):
    with serve_folder(site) as address:
        page = browser.new_page(viewport={"width": width, "height": 800})
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        for name in pages_of(site):
            page.goto(f"{address}/{name}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.goto(f"{address}/index.html")
        if width < 1000:
            page.click("label[for=__search].md-header__button")
        page.fill("input.md-search__input", "coding rate")
        page.wait_for_selector(".md-search-result__item")
        assert page.locator(".md-search-result__item").count() > 3
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
        page.close()


def pages_of(site):
    """The pages of the site."""
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
