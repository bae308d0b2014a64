"""Chromium, for tests that look at a page (the fixture `browser`), and the contrast of all text on it."""

from __future__ import annotations

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--no-first-run", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


CONTRAST = """() => {
    const channels = color => color.match(/[\\d.]+/g).map(Number);
    const light = color => {
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = channels(color).map(v => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = node => {
        for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if ((channels(color)[3] ?? 1) > 0) return color;
        }
    };
    const words = [...document.querySelectorAll('body *')].filter(
        node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()));
    return words.map(node => {
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), node.textContent.trim().slice(0, 40)];
    });
}"""
