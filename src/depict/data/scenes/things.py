"""The objects of a scene: buildings, trees and cars.

Each function takes the canvas, the position of the object's base (x, base) and its height, in units of the image
height.
"""

from __future__ import annotations

import numpy as np

from depict.data.scenes.canvas import Array, Canvas, colors
from depict.data.scenes.land import BUILDING, CAR, TREE, pick

_WALLS = colors("ebdfcc e0bd87 b35942 ada39e db9e85 d6cfc7")
_ROOFS = colors("9e422b 8a4a36 61545c")
_LEAVES = colors("2b6624 1c522b 3d6b21 1f5c3d 2e5c1f a85c1f 8f3d24")
_PAINTS = colors("d41717 1736ad f0f0f2 24242b f2ab0d 0f7d78 b8141f")
_GLASS, _LAMPLIGHT, _BARK, _RUBBER, _STEEL = colors("293342 ffd173 5c4533 121214 9e9ea3")
_HEADLAMP, _TAIL_LAMP = colors("fff0b8 f21f1a")


def paint_building(canvas: Canvas, x: float, base: float, height: float) -> None:
    """Paint a house with a gable or a block with a flat roof: a lit and a shaded wall, rows of windows."""
    rng, light, haze = canvas.rng, canvas.light, canvas.haze(base)
    block = rng.random() < 0.45
    width = height * (rng.uniform(0.45, 0.9) if block else rng.uniform(0.9, 1.6))
    wall, roof = pick(rng, _WALLS), pick(rng, _ROOFS)
    depth = width * rng.uniform(0.15, 0.4)
    side = 1.0 if rng.random() < 0.5 else -1.0  # which end the second wall is at
    left, right, top = x - width / 2, x + width / 2, base - height
    eaves = top if block else top + height * rng.uniform(0.28, 0.42)
    lift = 0.05 * height
    canvas.shadow(x, base, width * 0.75, 0.10 * height)
    box = canvas.box(left - depth, top - 0.02, right + depth, base)
    facing, turned = (0.85, 0.25) if side == -light.side else (0.45, 0.95)

    end = right if side > 0 else left
    corners = [(end, eaves), (end + side * depth, eaves + lift), (end + side * depth, base - lift), (end, base)]
    wall_end = canvas.polygon(box, *(corners if side > 0 else corners[::-1]))
    canvas.paint(box, wall_end, light.on(wall * 0.9, turned), BUILDING, haze)
    gx, gy = canvas.grid(box)
    courses = 1 + 0.10 * np.sin(gy * rng.uniform(220, 420)) + 0.12 * (canvas.noise(box, 60) - 0.5)
    front = canvas.rectangle(box, left, eaves, right, base)
    canvas.paint(box, front, light.on(wall * courses[..., None], facing), BUILDING, haze)

    rows = max(1, round((base - eaves) / (height * (0.13 if block else 0.3))))
    columns = max(2, round(width / (height * (0.14 if block else 0.3))))
    u, v = (gx - left) / width * columns, (gy - eaves) / (base - eaves) * rows
    in_x = (rng.uniform(0.22, 0.34) - np.abs(u % 1 - 0.5)) * width / columns
    in_y = (rng.uniform(0.24, 0.36) - np.abs(v % 1 - 0.5)) * (base - eaves) / rows
    number = (np.floor(u) * 7 + np.floor(v) * 13).astype(int)
    lit = canvas.sheet[3][number % 256] < (0.55 if light.dark else 0.06)
    glass = light.horizon * 0.35 + light.on(_GLASS, 0.4)
    glass = np.where(lit[..., None], _LAMPLIGHT, glass * (0.8 + 0.4 * (v % 1))[..., None])
    canvas.paint(box, canvas.cover(np.minimum(in_x, in_y)) * front, glass, None, haze * 0.7)

    if block:
        rim = canvas.rectangle(box, left - 0.01, top - 0.015, right + 0.01, top + 0.02)
        canvas.paint(box, rim, light.on(wall * 0.7, facing), BUILDING, haze)
        return
    over, ridge = 0.04 * width, width * rng.uniform(0.0, 0.3)
    tiles = 1 + 0.22 * np.sin(gy * 300 + 2.0 * np.sin(gx * 260)) + 0.2 * (canvas.noise(box, 70) - 0.5)
    edge = eaves + 0.01
    gable = canvas.polygon(box, (left - over, edge), (left + ridge, top), (right - ridge, top), (right + over, edge))
    canvas.paint(box, gable, light.on(roof * tiles[..., None], 0.7), BUILDING, haze)
    if rng.random() < 0.6:
        stack = left + width * rng.uniform(0.3, 0.7)
        chimney = canvas.rectangle(box, stack, top - 0.02, stack + 0.09 * width, top + 0.04)
        canvas.paint(box, chimney, light.on(wall * 0.8, facing), BUILDING, haze)
    door = left + width * rng.uniform(0.35, 0.6)
    leaf = canvas.rectangle(box, door, base - 0.3 * (base - eaves), door + 0.14 * width, base)
    canvas.paint(box, leaf, light.on(roof * 0.7, facing), None, haze)


def paint_tree(canvas: Canvas, x: float, base: float, height: float) -> None:
    """Paint a broad-leaved tree of several masses of leaves, or a conifer of ragged tiers; the trunk is tree, too."""
    rng, light, haze = canvas.rng, canvas.light, canvas.haze(base)
    leaves = pick(rng, _LEAVES)
    conifer = rng.random() < 0.4
    spread = height * (rng.uniform(0.20, 0.28) if conifer else rng.uniform(0.32, 0.46))
    canvas.shadow(x, base, spread * 1.1, 0.07 * height)
    box = canvas.box(x - spread * 1.4, base - height * 1.1, x + spread * 1.4, base)
    gx, gy = canvas.grid(box)
    thick = height * rng.uniform(0.03, 0.05)
    fork = base - 0.6 * height
    trunk = canvas.polygon(box, (x - thick, fork), (x + thick, fork), (x + 1.5 * thick, base), (x - 1.5 * thick, base))
    canvas.paint(box, trunk, light.on(_BARK * rng.uniform(0.6, 1.3), 0.4), TREE, haze)

    ragged = canvas.noise(box, 9 / height**0.5, octaves=3) - 0.5
    fine = canvas.noise(box, 60)
    if conifer:
        down = np.clip((gy - (base - height)) / (0.86 * height), 0, 1.02)
        tiers = (down * rng.uniform(4, 6)) % 1
        reach = spread * down * (0.72 + 0.38 * tiers)
        inside = np.minimum(reach - np.abs(gx - x) + ragged * 0.35 * spread * down, base - 0.14 * height - gy)
        inside = np.minimum(inside, gy - (base - height))
        shade = np.clip(0.5 + light.side * (gx - x) / spread * 0.6, 0, 1) * (0.45 + 0.55 * (1 - tiers))
    else:
        inside = np.full((gy.shape[0], gx.shape[1]), -1.0, np.float32)
        middle = base - 0.64 * height
        shade = np.zeros_like(inside)
        for _ in range(5):
            angle, away = rng.uniform(0, 2 * np.pi), spread * rng.uniform(0.15, 0.5)
            cx, cy = x + away * np.cos(angle), middle + 0.8 * away * np.sin(angle)
            radius = spread * rng.uniform(0.5, 0.72)
            mass = radius - np.hypot(gx - cx, gy - cy)
            lit = np.clip(0.5 + (light.side * (gx - cx) - (gy - cy)) / radius * 0.45, 0, 1)
            shade = np.where(mass > inside, lit, shade)
            inside = np.maximum(inside, mass)
        inside = inside + ragged * 0.45 * spread
    clumps = np.clip(0.62 + 1.5 * ragged + 1.0 * (fine - 0.5), 0.15, 1.5)
    crown = light.on(leaves * clumps[..., None], shade)
    canvas.paint(box, canvas.cover(inside), crown, TREE, haze)


def paint_car(canvas: Canvas, x: float, base: float, height: float, side_on: bool) -> None:
    """Paint a car seen from the side, from the front or from behind.

    Its parts are in car units: x from -1 to 1 in driving direction, y 0 at the road and 1 at the roof.
    """
    rng, light, haze = canvas.rng, canvas.light, canvas.haze(base) * 0.6
    half = height / 2 * (rng.uniform(2.0, 2.6) if side_on else rng.uniform(1.15, 1.4))
    box = canvas.box(x - half * 1.1, base - height * 1.1, x + half * 1.1, base + 0.05 * height)
    canvas.shadow(x + light.side * half * 0.35, base, half * 1.15, 0.14 * height, 0.6)
    ahead = 1.0 if rng.random() < 0.5 else -1.0
    _, gy = canvas.grid(box)
    sheen = np.clip(1.15 - 0.9 * (gy - (base - height)) / height, 0.35, 1)  # brighter where it faces the sky
    body = light.on(pick(rng, _PAINTS), sheen)
    glass, rubber = light.horizon * 0.45 + light.on(_GLASS * 0.65, 0.4), light.on(_RUBBER, 0.5)

    def polygon(color: Array, *points: tuple[float, float]) -> None:
        placed = [(x + ahead * px * half, base - py * height) for px, py in points]
        canvas.paint(box, canvas.polygon(box, *(placed if ahead > 0 else placed[::-1])), color, CAR, haze)

    def band(color: Array, left: float, top: float, right: float, bottom: float) -> None:
        polygon(color, (left, top), (right, top), (right, bottom), (left, bottom))

    def disc(color: Array, px: float, py: float, radius: float) -> None:
        center = (x + ahead * px * half, base - py * height)
        canvas.paint(box, canvas.ellipse(box, center, radius * height, radius * height), color, CAR, haze)

    if side_on:
        van = rng.random() < 0.3
        front, rear = (0.82, -0.97) if van else (rng.uniform(0.42, 0.6), rng.uniform(-0.95, -0.62))
        polygon(body, (rear + 0.12, 1.0), (front - 0.28, 1.0), (front, 0.54), (rear, 0.54))
        polygon(body, (-0.96, 0.59), (0.6, 0.59), (0.93, 0.5), (-1.0, 0.5))
        polygon(body, (-0.99, 0.56), (0.93, 0.54), (1.0, 0.42), (1.0, 0.2), (0.95, 0.16), (-0.97, 0.16), (-1.0, 0.24))
        for a, b in ((rear + 0.14, -0.14), (-0.08, front - 0.1)):
            polygon(glass, (a, 0.93), (min(b, front - 0.3), 0.93), (b, 0.6), (a - 0.05, 0.6))
        for wheel in (-0.62, 0.62):
            disc(rubber, wheel, 0.19, 0.21)
            disc(light.on(_STEEL, 0.6), wheel, 0.19, 0.10)
        lamps = ((0.9, 0.42, _HEADLAMP), (-0.94, 0.44, _TAIL_LAMP))
    else:
        band(rubber, -0.86, 0.25, -0.56, 0.0)
        band(rubber, 0.56, 0.25, 0.86, 0.0)
        polygon(body, (-0.62, 1.0), (0.62, 1.0), (0.86, 0.58), (-0.86, 0.58))
        polygon(body, (-0.9, 0.62), (0.9, 0.62), (0.97, 0.48), (0.95, 0.14), (-0.95, 0.14), (-0.97, 0.48))
        polygon(glass, (-0.54, 0.94), (0.54, 0.94), (0.72, 0.63), (-0.72, 0.63))
        band(light.on(_RUBBER * 3, 0.5), -0.94, 0.27, 0.94, 0.17)
        band(light.on(_STEEL * 1.3, 0.5), -0.22, 0.42, 0.22, 0.32)
        shine = _TAIL_LAMP if rng.random() < 0.5 else _HEADLAMP
        lamps = ((-0.8, 0.48, shine), (0.8, 0.48, shine))
    for px, py, shine in lamps:
        disc(shine * (1.0 if light.dark else 0.7), px, py, 0.065)
