"""How the things that stand in a scene are painted: buildings, trees and cars.

Each takes the canvas, where its foot stands (x, base) and its height, all in units of the picture's height.
"""

from __future__ import annotations

import numpy as np

from depict.data.scene_canvas import Canvas, colours
from depict.data.scene_land import BUILDING, CAR, TREE, pick

_WALLS = colours("ebdfcc e0bd87 b35942 ada39e db9e85 d6cfc7")
_ROOFS = colours("9e422b 8a4a36 61545c")
_LEAVES = colours("2b6624 1c522b 3d6b21 1f5c3d 2e5c1f a85c1f 8f3d24")
_PAINTS = colours("d41717 1736ad f0f0f2 24242b f2ab0d 0f7d78 b8141f")


def paint_building(canvas: Canvas, x: float, base: float, height: float) -> None:
    """A house with a gable or a block with a flat roof: a lit and a shaded wall, rows of windows."""
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
    front = canvas.polygon(box, (left, eaves), (right, eaves), (right, base), (left, base))
    canvas.paint(box, front, light.on(wall * courses[..., None], facing), BUILDING, haze)

    rows = max(1, round((base - eaves) / (height * (0.13 if block else 0.3))))
    columns = max(2, round(width / (height * (0.14 if block else 0.3))))
    u = (gx - left) / width * columns
    v = (gy - eaves) / (base - eaves) * rows
    pane_w, pane_h = rng.uniform(0.22, 0.34), rng.uniform(0.24, 0.36)
    in_x = (pane_w - np.abs(u % 1 - 0.5)) * width / columns
    in_y = (pane_h - np.abs(v % 1 - 0.5)) * (base - eaves) / rows
    panes = canvas.cover(np.minimum(in_x, in_y)) * front
    number = (np.floor(u) * 7 + np.floor(v) * 13).astype(int)
    lamp = canvas.sheet[3][number % 256] < (0.55 if light.dark else 0.06)
    glass = light.horizon * 0.35 + light.on(np.asarray((0.16, 0.2, 0.26), np.float32), 0.4)
    glass = np.where(
        lamp[..., None], np.asarray((1.0, 0.82, 0.45), np.float32), glass * (0.8 + 0.4 * (v % 1))[..., None]
    )
    canvas.paint(box, panes, glass, None, haze * 0.7)

    if block:
        rim = canvas.polygon(box, (left - 0.01, top - 0.015), (right + 0.01, top - 0.015),
                             (right + 0.01, top + 0.02), (left - 0.01, top + 0.02))  # fmt: skip
        canvas.paint(box, rim, light.on(wall * 0.7, facing), BUILDING, haze)
        return
    over = 0.04 * width
    ridge = width * rng.uniform(0.0, 0.3)
    tiles = 1 + 0.22 * np.sin(gy * 300 + 2.0 * np.sin(gx * 260)) + 0.2 * (canvas.noise(box, 70) - 0.5)
    gable = canvas.polygon(
        box, (left - over, eaves + 0.01), (left + ridge, top), (right - ridge, top), (right + over, eaves + 0.01)
    )
    canvas.paint(box, gable, light.on(roof * tiles[..., None], 0.7), BUILDING, haze)
    if rng.random() < 0.6:
        stack = left + width * rng.uniform(0.3, 0.7)
        chimney = canvas.polygon(box, (stack, top - 0.02), (stack + 0.09 * width, top - 0.02),
                                 (stack + 0.09 * width, top + 0.04), (stack, top + 0.04))  # fmt: skip
        canvas.paint(box, chimney, light.on(wall * 0.8, facing), BUILDING, haze)
    door = left + width * rng.uniform(0.35, 0.6)
    leaf = canvas.polygon(box, (door, base - 0.3 * (base - eaves)), (door + 0.14 * width, base - 0.3 * (base - eaves)),
                          (door + 0.14 * width, base), (door, base))  # fmt: skip
    canvas.paint(box, leaf, light.on(roof * 0.7, facing), None, haze)


def paint_tree(canvas: Canvas, x: float, base: float, height: float) -> None:
    """A broad-leaved tree of several leafy masses, or a conifer of ragged tiers; the trunk counts as tree."""
    rng, light, haze = canvas.rng, canvas.light, canvas.haze(base)
    leaves = pick(rng, _LEAVES)
    conifer = rng.random() < 0.4
    spread = height * (rng.uniform(0.20, 0.28) if conifer else rng.uniform(0.32, 0.46))
    canvas.shadow(x, base, spread * 1.1, 0.07 * height)
    box = canvas.box(x - spread * 1.4, base - height * 1.1, x + spread * 1.4, base)
    gx, gy = canvas.grid(box)
    thick = height * rng.uniform(0.03, 0.05)
    trunk = canvas.polygon(box, (x - thick, base - 0.6 * height), (x + thick, base - 0.6 * height),
                           (x + 1.5 * thick, base), (x - 1.5 * thick, base))  # fmt: skip
    bark = np.asarray((0.36, 0.27, 0.20), np.float32) * rng.uniform(0.6, 1.3)
    canvas.paint(box, trunk, light.on(bark, 0.4), TREE, haze)

    ragged = canvas.noise(box, 9 / height**0.5, octaves=3) - 0.5
    fine = canvas.noise(box, 60)
    if conifer:
        down = np.clip((gy - (base - height)) / (0.86 * height), 0, 1.02)
        tiers = (down * rng.uniform(4, 6)) % 1
        reach = spread * down * (0.72 + 0.38 * tiers)
        inside = np.minimum(reach - np.abs(gx - x) + ragged * 0.35 * spread * down, base - 0.14 * height - gy)
        inside = np.minimum(inside, gy - (base - height))
        round_ = np.clip(0.5 + light.side * (gx - x) / spread * 0.6, 0, 1) * (0.45 + 0.55 * (1 - tiers))
    else:
        inside = np.full((gy.shape[0], gx.shape[1]), -1.0, np.float32)
        middle = base - 0.64 * height
        round_ = np.zeros_like(inside)
        for _ in range(5):
            angle, away = rng.uniform(0, 2 * np.pi), spread * rng.uniform(0.15, 0.5)
            cx, cy = x + away * np.cos(angle), middle + 0.8 * away * np.sin(angle)
            radius = spread * rng.uniform(0.5, 0.72)
            mass = radius - np.hypot(gx - cx, gy - cy)
            lit = np.clip(0.5 + (light.side * (gx - cx) - (gy - cy)) / radius * 0.45, 0, 1)
            round_ = np.where(mass > inside, lit, round_)
            inside = np.maximum(inside, mass)
        inside = inside + ragged * 0.45 * spread
    clumps = np.clip(0.62 + 1.5 * ragged + 1.0 * (fine - 0.5), 0.15, 1.5)
    crown = light.on(leaves * clumps[..., None], round_)
    canvas.paint(box, canvas.cover(inside), crown, TREE, haze)


def paint_car(canvas: Canvas, x: float, base: float, height: float, side_on: bool) -> None:
    """A car seen from the side or from behind: body, cabin, glass, wheels, lamps; all of it counts as car."""
    rng, light, haze = canvas.rng, canvas.light, canvas.haze(base) * 0.6
    body, dark = pick(rng, _PAINTS), np.asarray((0.07, 0.07, 0.08), np.float32)
    glass = light.horizon * 0.45 + light.on(np.asarray((0.10, 0.13, 0.17), np.float32), 0.4)
    length = height * (rng.uniform(2.0, 2.6) if side_on else rng.uniform(1.15, 1.4))
    half = length / 2
    box = canvas.box(x - half * 1.1, base - height * 1.1, x + half * 1.1, base + 0.05 * height)
    _, gy = canvas.grid(box)
    canvas.shadow(x + light.side * half * 0.35, base, half * 1.15, 0.14 * height, 0.6)
    sheen = np.clip(1.15 - 0.9 * (gy - (base - height)) / height, 0.35, 1)  # brighter where it faces the sky
    colour = light.on(body, sheen + np.zeros_like(gy))
    ahead = 1.0 if rng.random() < 0.5 else -1.0

    def shape(*points: tuple[float, float]) -> np.ndarray:
        """A polygon in car units: x -1..1 along the length towards `ahead`, y 0 at the road, 1 at the roof."""
        placed = [(x + ahead * px * half, base - py * height) for px, py in points]
        return canvas.polygon(box, *(placed if ahead > 0 else placed[::-1]))

    if side_on:
        van = rng.random() < 0.3
        front = 0.82 if van else rng.uniform(0.42, 0.6)
        rear = -0.97 if van else rng.uniform(-0.95, -0.62)
        belt = 0.56
        cabin = shape((rear + 0.12, 1.0), (front - 0.28, 1.0), (front, belt - 0.02), (rear, belt - 0.02))
        canvas.paint(box, cabin, colour, CAR, haze)
        hull = np.maximum(
            shape(
                (-0.99, belt), (0.93, belt - 0.02), (1.0, 0.42), (1.0, 0.2), (0.95, 0.16), (-0.97, 0.16), (-1.0, 0.24)
            ),
            shape((-0.96, belt + 0.03), (0.6, belt + 0.03), (0.93, belt - 0.06), (-1.0, belt - 0.06)),
        )
        canvas.paint(box, hull, colour, CAR, haze)
        for a, b in ((rear + 0.14, -0.14), (-0.08, front - 0.1)):
            pane = shape((a, 0.93), (min(b, front - 0.3), 0.93), (b, 0.6), (a - 0.05, 0.6))
            canvas.paint(box, pane, glass, None, haze)
        for wheel in (-0.62, 0.62):
            centre = (x + ahead * wheel * half, base - 0.19 * height)
            canvas.paint(box, canvas.ellipse(box, centre, 0.21 * height, 0.21 * height), light.on(dark, 0.5), CAR, haze)
            hub = light.on(np.asarray((0.6, 0.6, 0.62), np.float32), 0.6)
            canvas.paint(box, canvas.ellipse(box, centre, 0.10 * height, 0.10 * height), hub, None, haze)
        lamps = (((0.9, 0.42), (1.0, 0.85, 0.5)), ((-0.94, 0.44), (0.85, 0.1, 0.08)))
    else:
        for a, b in ((-0.86, -0.56), (0.56, 0.86)):
            tyre = shape((a, 0.25), (b, 0.25), (b, 0.0), (a, 0.0))
            canvas.paint(box, tyre, light.on(dark, 0.4), CAR, haze)
        canvas.paint(box, shape((-0.62, 1.0), (0.62, 1.0), (0.86, 0.58), (-0.86, 0.58)), colour, CAR, haze)
        canvas.paint(box, shape((-0.9, 0.62), (0.9, 0.62), (0.97, 0.48), (0.95, 0.14), (-0.95, 0.14), (-0.97, 0.48)),
                     colour, CAR, haze)  # fmt: skip
        canvas.paint(box, shape((-0.54, 0.94), (0.54, 0.94), (0.72, 0.63), (-0.72, 0.63)), glass, None, haze)
        canvas.paint(
            box, shape((-0.94, 0.27), (0.94, 0.27), (0.94, 0.17), (-0.94, 0.17)), light.on(dark * 3, 0.5), None, haze
        )
        canvas.paint(
            box, shape((-0.22, 0.42), (0.22, 0.42), (0.22, 0.32), (-0.22, 0.32)), light.on(dark + 0.75, 0.5), None, haze
        )
        lamp = (0.95, 0.12, 0.1) if rng.random() < 0.5 else (1.0, 0.93, 0.7)
        lamps = (((-0.8, 0.48), lamp), ((0.8, 0.48), lamp))
    for (px, py), shine in lamps:
        centre = (x + ahead * px * half, base - py * height)
        power = 1.0 if light.dark else 0.65
        canvas.paint(box, canvas.ellipse(box, centre, 0.07 * height, 0.06 * height),
                     np.asarray(shine, np.float32) * power, None, haze)  # fmt: skip
