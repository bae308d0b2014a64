"""The page in a real browser, used as a person would: with the mouse, with the keyboard only, on a phone."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data.scenes.dataset import render
from depict.inference.onnx_predictor import OnnxPredictor
from depict.model import SegmentationModel
from depict.web.runs import Run
from support.explorer import encoded, model_run, serving
from support.onnx_model import ConvModel, write_graph

CLASSES = (
    "Himmel ☁️",
    "Straße",
    "Bäume 🌲",
    "<b>house</b>",
    "water",
    "car",
    "mountain",
    "a class with a long name that wraps",
)
NAME = "Grüße 🙂 <i>&amp; co.png"
SETTINGS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]

pytestmark = pytest.mark.slow


def named_model(decoder: str, **options) -> SegmentationModel:
    torch.manual_seed(3)
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_384", pretrained=False, dim=64, depth=1),
        decoder=DecoderConfig(decoder, layers=2, heads=2, head_dim=16, **options),
        data=DataConfig(name="scenes", short_edge=96, max_aspect=4.0),
        image_size=64,
    )
    model = SegmentationModel(config, CLASSES)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "exported.onnx"
    write_graph(ConvModel(), path)
    runs = [
        model_run(named_model("depict_sa"), "Äpfel 🍏"),
        model_run(named_model("depict_ca", operator="exact"), "exact"),
        Run("exported", OnnxPredictor(path), None),
    ]
    with serving(runs) as started:
        yield started


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / NAME.replace("/", "")
    path.write_bytes(encoded(render(1, 3, (240, 320))[0]))
    return path


class Visit:
    """A page that records what went wrong."""

    def __init__(self, browser, client, width=1280, scheme="light"):
        self.page = browser.new_page(
            viewport={"width": width, "height": 844}, color_scheme=scheme, accept_downloads=True
        )
        self.problems: list[str] = []
        self.addresses: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.goto(client.url)
        self.page.wait_for_selector("#run option", state="attached")

    def finished(self):
        self.page.wait_for_selector("#workspace:not([hidden])")
        self.page.wait_for_selector("#status:not(:has(progress))", state="attached")
        assert self.text("#problem") == ""

    def open(self, photo):
        self.page.set_input_files("#file", str(photo))
        self.finished()

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def point(self, x, y, click=False, stage=0):
        box = self.page.locator(".frame").nth(stage).bounding_box()
        place = box["x"] + x * box["width"], box["y"] + y * box["height"]
        (self.page.mouse.click if click else self.page.mouse.move)(*place)

    def layer(self, stage=0) -> np.ndarray:
        """The pixels of the layer over the picture, (h, w, 4)."""
        url = self.page.locator(".frame canvas").nth(stage).evaluate("node => node.toDataURL()")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))

    def close(self, client):
        assert self.problems == []
        assert all(url.startswith((client.url, "blob:", "data:")) for url in self.addresses), self.addresses
        self.page.close()


@pytest.mark.parametrize(("width", "scheme"), SETTINGS)
def test_every_view_shows_what_the_model_says(browser, client, photo, width, scheme):
    visit = Visit(browser, client, width, scheme)
    page = visit.page
    visit.open(photo)
    labels = client.app.state.service.runs[0].predictor.labels(np.asarray(Image.open(photo)))

    # Classes: the layer has the colors of the labels, the text names the class, the legend isolates one.
    palette = np.array(client.app.state.service.runs[0].predictor.palette)
    colors = visit.layer()
    inside = np.ones(labels.shape, bool)  # away from the dark borders between classes
    inside[:, 1:] &= labels[:, 1:] == labels[:, :-1]
    inside[1:] &= labels[1:] == labels[:-1]
    assert (colors[..., :3] == palette[labels])[inside].all()
    visit.point(0.3, 0.7)
    assert CLASSES[labels[int(0.7 * 240), int(0.3 * 320)]] in visit.text("#readout b")
    assert visit.text("#readout").count("%") == 3
    button = page.locator("#legend button").first
    name = button.locator(".name").inner_text()
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.mouse.move(0, 0)
    assert (visit.layer()[..., 3] == np.where(labels == CLASSES.index(name), 255, 40)).all()
    button.click()
    shares = [float(text.split()[0]) for text in page.locator("#legend .share").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=5)
    page.check("input[value=swipe]")
    page.locator("#swipe").fill("25")
    assert page.locator(".frame canvas").first.evaluate("node => node.style.clipPath") == "inset(0px 0px 0px 25%)"
    page.check("input[value=confidence]")
    assert page.locator("#confidence-scale").is_visible()
    page.check("input[value=labels]")
    page.check("#safe")
    assert (visit.layer() != colors).any()
    page.uncheck("#safe")
    page.locator("#opacity").fill("30")
    assert page.locator(".frame canvas").first.evaluate("node => node.style.opacity") == "0.3"

    # Steps: the last labels differ from the first; the sign, the rate and the movement are told.
    page.click("#tab-steps")
    first = visit.layer()
    assert visit.text("#step-title") == "Before the first step"
    page.click("#step-on")
    assert visit.text("#step-title").startswith("Step 1: MSSA ")
    assert "coding rate" in visit.text("#step-facts")
    assert "moved by" in visit.text("#step-facts")
    assert page.locator("#rate-chart polyline").count() == 2
    page.locator("#step").fill("2")
    assert visit.text("#step-name") == "2 of 2"
    assert (visit.layer() != first).any()
    for mode in ("tokens", "movement"):
        page.check(f"input[value={mode}]")
        assert len(np.unique(visit.layer().reshape(-1, 4), axis=0)) > 5
    assert page.locator("#movement-scale").is_visible()

    # Patch: a click is answered with a map per head and step, and a line per class.
    page.click("#tab-patch")
    visit.point(0.3, 0.7, click=True)
    page.wait_for_selector(".head-row")
    assert page.locator(".head-row button").count() == 4
    assert visit.text("#patch-title") == "Patch in row 5, column 3"
    assert page.locator("#closeness-chart polyline").count() == 5
    before = visit.layer()
    page.locator(".head-row button").nth(3).click()
    assert (visit.layer() != before).any()

    # Compare: two stages with one crosshair, and the share of pixels that differ.
    page.click("#tab-compare")
    assert page.locator(".stage:visible").count() == 2
    visit.point(0.5, 0.5)
    assert page.locator(".crosshair:visible").count() == 2
    assert {"Äpfel 🍏", "exact"} <= {line.split(":")[0] for line in visit.text("#readout").splitlines()}
    other = client.app.state.service.runs[1].predictor.labels(np.asarray(Image.open(photo)))
    assert f"{100 * (labels != other).mean():.0f} %" in visit.text("#disagreement")
    page.check("#only-different")
    assert ((visit.layer()[..., 3] > 0) == (labels != other)).all()

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    visit.close(client)


def test_the_exact_operator_shows_signed_weights_and_an_onnx_run_says_that_it_has_labels_only(browser, client, photo):
    visit = Visit(browser, client)
    visit.open(photo)
    visit.page.click("#tab-patch")
    visit.point(0.3, 0.7, click=True)
    visit.page.wait_for_selector(".head-row")
    visit.page.select_option("#run", "1")
    visit.page.wait_for_function("() => document.querySelector('#heads-scale').textContent.includes('negative weight')")
    assert visit.page.locator(".head-row h4").all_inner_texts() == ["Step 1: MSSA, exact", "Step 2: MSSA, exact"]
    visit.page.select_option("#run", "2")
    assert "labels only" in visit.text("#patch-note")
    assert not visit.page.locator("#patch-body").is_visible()
    visit.page.click("#tab-classes")
    assert visit.page.locator("#legend li").count() >= 1
    visit.close(client)


def test_the_whole_flow_works_with_the_keyboard_only(browser, client, photo):
    visit = Visit(browser, client)
    page = visit.page
    # Playwright does not wait until its first listener takes effect; a chooser that opens before is lost.
    page.on("filechooser", lambda _: None)

    def tab_to(selector, limit=60):
        for _ in range(limit):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        pytest.fail(f"{selector} cannot be reached")

    tab_to("#pick")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(str(photo))
    visit.finished()
    assert page.evaluate("() => document.activeElement.className") == "frame"
    for key in ("ArrowRight", "ArrowDown", "Shift+ArrowRight"):
        page.keyboard.press(key)
    assert visit.text("#readout").startswith("x 167, y 124: ")
    assert page.locator("#readout").get_attribute("aria-live") == "polite"
    page.keyboard.press("Enter")
    tab_to("#tab-classes")
    tab_to("#legend button")
    page.keyboard.press("Space")
    assert page.evaluate("() => document.activeElement.getAttribute('aria-pressed')") == "true"
    page.locator("#tab-classes").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.id") == "tab-steps"
    tab_to("#step")
    page.keyboard.press("ArrowRight")
    assert visit.text("#step-title").startswith("Step 1")
    page.locator("#tab-steps").focus()
    page.keyboard.press("ArrowRight")
    tab_to(".head-row button")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator(".head-row button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("#tab-patch").focus()
    page.keyboard.press("End")
    tab_to("#only-different")
    page.keyboard.press("Space")
    assert page.is_checked("#only-different")
    visit.close(client)


DROP = """([name, base64, kind]) => {
    const bytes = Uint8Array.from(atob(base64), letter => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type: 'image/png' }));
    const event = kind === 'paste' ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true })
        : new DragEvent('drop', { dataTransfer: data, bubbles: true });
    document.body.dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_can_be_dropped_or_pasted(browser, client, photo, kind):
    visit = Visit(browser, client)
    visit.page.evaluate(DROP, [NAME, base64.b64encode(photo.read_bytes()).decode(), kind])
    visit.finished()
    assert NAME in visit.page.locator(".frame").first.get_attribute("aria-label")
    visit.close(client)


def test_a_picture_can_be_taken_with_the_camera(browser, client):
    visit = Visit(browser, client)
    visit.page.click("#camera")
    visit.page.wait_for_function("() => document.querySelector('#video').videoWidth > 0")
    visit.page.click("#shoot")
    visit.finished()
    assert not visit.page.locator("#camera-dialog").is_visible()
    visit.close(client)


def test_downloads_have_the_name_of_the_picture(browser, client, photo):
    visit = Visit(browser, client)
    visit.open(photo)
    for file in ("overlay.png", "labels.png", "segmentation.json", "probabilities.npz"):
        with visit.page.expect_download() as download:
            visit.page.click(f"[data-file='{file}']")
        path = Path(download.value.path())
        assert download.value.suggested_filename.endswith(f"-{file}")
        assert "Grüße 🙂" in download.value.suggested_filename
        if file == "segmentation.json":
            assert json.loads(path.read_text())["width"] == 320
        elif file == "labels.png":
            assert Image.open(path).size == (320, 240)
        else:
            assert path.stat().st_size > 1000
    visit.close(client)


def test_problems_are_told_in_words(browser, client, tmp_path):
    visit = Visit(browser, client)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG not really")
    visit.page.set_input_files("#file", str(tmp_path / "broken.png"))
    visit.page.wait_for_selector("#problem:not(:empty)")
    assert visit.text("#problem") == "This browser cannot read the picture. Use a JPEG, PNG or WebP file."
    (tmp_path / "notes.txt").write_text("words")
    visit.page.set_input_files("#file", str(tmp_path / "notes.txt"))
    visit.page.wait_for_function("() => document.querySelector('#problem').textContent.includes('notes.txt')")
    visit.close(client)


def test_a_picture_beyond_the_limits_is_scaled_down_first(browser, client, tmp_path):
    Image.new("RGB", (6400, 4000), (90, 140, 200)).save(tmp_path / "large.jpg", quality=30)
    visit = Visit(browser, client)
    visit.open(tmp_path / "large.jpg")
    assert visit.text("#status") == "The picture was scaled down from 6400 × 4000 to 3000 × 1875 pixels."
    visit.close(client)


def test_a_picture_that_the_server_has_forgotten_is_sent_again(browser, client, photo):
    visit = Visit(browser, client)
    visit.open(photo)
    visit.page.click("#tab-patch")
    [id] = [key for key in client.app.state.service.store._pictures if f"pictures/{key}" in "".join(visit.addresses)]
    client.ask("DELETE", f"/pictures/{id}")
    visit.point(0.3, 0.7, click=True)
    visit.page.wait_for_selector(".head-row")
    visit.problems = [text for text in visit.problems if "404" not in text]  # the browser logs the lost question
    visit.close(client)


def test_leaving_the_page_forgets_the_picture(browser, client, photo):
    visit = Visit(browser, client)
    visit.open(photo)
    kept = len(client.app.state.service.store)
    visit.page.goto(f"{client.url}guide")
    for _ in range(100):
        if len(client.app.state.service.store) == kept - 1:
            break
        visit.page.wait_for_timeout(50)
    else:
        pytest.fail("the picture is still kept")
    visit.close(client)


def test_the_page_works_behind_a_prefix(browser, client, photo):
    runs = client.app.state.service.runs[:1]
    with serving(runs, root_path="/tools/explorer") as prefixed:
        prefixed.url += "tools/explorer/"
        visit = Visit(browser, prefixed)
        visit.open(photo)
        visit.close(prefixed)


@pytest.mark.parametrize(("width", "scheme"), SETTINGS)
def test_axe_finds_no_serious_problem(browser, client, photo, width, scheme):
    script = os.environ.get("AXE_CORE")
    if not script or not Path(script).is_file():
        pytest.skip("AXE_CORE does not name axe.min.js (npm install axe-core)")
    visit = Visit(browser, client, width, scheme)
    visit.page.evaluate(Path(script).read_text())

    def check(where):
        found = visit.page.evaluate("() => axe.run()")["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert [(where, v["id"], [node["html"] for node in v["nodes"]]) for v in serious] == []

    check("start")
    visit.open(photo)
    check("classes")
    visit.page.click("#tab-steps")
    visit.page.click("#step-on")
    check("steps")
    visit.page.click("#tab-patch")
    visit.point(0.3, 0.7, click=True)
    visit.page.wait_for_selector(".head-row")
    visit.page.locator("#closeness-chart summary").click()
    check("patch")
    visit.page.click("#tab-compare")
    check("compare")
    for path in ("guide", "docs"):
        visit.page.goto(client.url + path)
        visit.page.wait_for_load_state("networkidle")
        visit.page.evaluate(Path(script).read_text())
        check(path)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.close(client)
