"""The large regions of a scene: sky, mountains, fields, water and roads.

The palettes of the classes overlap: only texture, shape and position identify a class.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from depict.data.scenes.canvas import Array, Canvas, colors

SKY, MOUNTAIN, FIELD, WATER, ROAD, BUILDING, TREE, CAR = range(8)

_MOUNTAINS = colors("757585 6b6b80 6b6185 87757a 5c6680")
_FIELDS = colors("709938 7aa33d 618538 bda34c 99944c 946e42")
_WATERS = colors("1a5799 1a6b8a 2e6b7d 3d75ab 426b7d")
_ROADS = colors("66666b 47474f 7d7a78 57575e 8a7057")
_FLOWERS = colors("f2d94d e66673 f2f2f2")


def pick(rng: np.random.Generator, palette: Array, jitter: float = 0.05) -> Array:
    """A random color (3,) of a palette, slightly varied."""
    color = palette[int(rng.random() * len(palette))]
    return np.clip(color + rng.uniform(-jitter, jitter, 3), 0.02, 1).astype(np.float32)


def paint_sky(canvas: Canvas) -> None:
    """Fill the canvas with a gradient, sun or moon, clouds, and stars at night."""
    rng, light, box = canvas.rng, canvas.light, canvas.whole
    rise = np.clip(1 - canvas.y / canvas.horizon, 0, 1) ** rng.uniform(0.6, 1.2)
    sky = light.horizon + (light.zenith - light.horizon) * rise[..., None]
    canvas.image[:] = sky
    away = np.hypot(canvas.x - light.sun[0], canvas.y - light.sun[1])
    if light.name not in ("overcast", "storm", "mist"):
        radius = rng.uniform(0.025, 0.055)
        glow = 0.55 * np.exp(-away / (4.5 * radius)) * (0.35 if light.dark else 1.0)
        canvas.image += glow[..., None] * (light.direct * 0.8 + 0.2)
        disc = np.clip(light.direct * 0.8 + 0.55, 0, 1)
        canvas.paint(box, canvas.cover(radius - away), disc)
    if light.name == "night":
        stars = canvas.noise(box, 90) > 0.93
        canvas.image[stars] += 0.45 * np.float32(rng.random())
    cover, cells = rng.uniform(0.0, 0.75), rng.uniform(2.0, 5.0)
    heap = canvas.noise(box, cells, stretch=rng.uniform(1.4, 4.0), octaves=5)
    body = np.clip((heap - 0.72 + 0.45 * cover) * 5, 0, 1)
    bright = np.clip(light.horizon * 0.55 + light.direct * 0.65 + light.ambient * 0.2, 0, 1)
    dull = light.zenith * 0.45 + light.ambient * 0.55
    relief = np.clip(0.5 + canvas.slope(heap, 0) * 0.19 + (0.55 - heap), 0, 1)[..., None]
    canvas.paint(box, 0.85 * body, dull + (bright - dull) * relief)
    canvas.labels[:] = SKY


def paint_mountains(canvas: Canvas) -> None:
    """Paint one or two ridges, lit from the sun's side, paler with distance."""
    rng, light = canvas.rng, canvas.light
    ridges = 1 + int(rng.random() * 2)
    color, snow = pick(rng, _MOUNTAINS), rng.random() < 0.45
    peak = rng.uniform(0.22, 0.36)
    for ridge in range(ridges):
        near = (ridge + 1) / ridges
        height = peak * (1.15 - 0.45 * near)
        jagged = np.abs(canvas.line(rng.uniform(1.2, 2.6), octaves=5))
        top = canvas.horizon - height * (1.15 - 1.5 * jagged)
        box = canvas.box(0, float(top.min()), canvas.aspect, canvas.horizon + 0.03)
        rows = slice(box[0].start, box[0].stop)
        relief = canvas.noise(box, 7, octaves=5)
        shade = np.clip(0.5 + light.side * canvas.slope(relief, 1) * 0.14, 0, 1)
        altitude = np.clip((canvas.horizon - canvas.y[rows]) / (height * 1.1), 0, 1)
        rock = color * (0.72 + 0.55 * relief[..., None])
        if snow:
            cap = np.clip((altitude + (relief - 0.5) * 0.9 - 0.62) * 9, 0, 1)[..., None]
            rock = rock + (np.float32(0.93) - rock) * cap
        lit = light.on(rock, shade)
        haze = light.haze * (1.05 - 0.75 * near) * (1 - 0.45 * altitude)
        canvas.paint(box, canvas.cover(canvas.y[rows] - top), lit, MOUNTAIN, np.clip(haze, 0, 0.78))


def paint_field(canvas: Canvas) -> None:
    """Paint the ground below the horizon: grass, soil or straw, with furrows or tufts, and distant hills."""
    rng, light = canvas.rng, canvas.light
    edge = canvas.horizon + 0.012 * canvas.line(3)
    if rng.random() < 0.25:
        edge = canvas.horizon - rng.uniform(0.02, 0.07) * np.clip(0.4 + canvas.line(1.2, 2), 0, 1)
    box = canvas.box(0, float(edge.min()), canvas.aspect, 1)
    x, y = canvas.grid(box)
    color, other = pick(rng, _FIELDS), pick(rng, _FIELDS)
    depth = canvas.depth(y)
    patches = np.clip((canvas.noise(box, 3, stretch=3, octaves=2) - 0.5) * 4 + 0.3, 0, 1)[..., None]
    base = color + (other - color) * patches * rng.uniform(0.1, 0.6)
    tufts = canvas.ground(box, 2.2) + canvas.ground(box, 4.5) - 1
    texture = 1 + rng.uniform(0.25, 0.5) * tufts
    if rng.random() < 0.45:
        across = (x - canvas.aspect * rng.uniform(-0.2, 1.2)) * depth
        furrows = np.sin(across * rng.uniform(16, 30)) * np.clip(2.6 / depth, 0, 1) ** 2
        texture = texture + rng.uniform(0.12, 0.28) * furrows
    ground = base * np.clip(texture, 0.3, 1.8)[..., None]
    if rng.random() < 0.4:
        bloom = (canvas.ground(box, 3.2) > 0.93)[..., None] * np.clip(2.5 / depth - 0.4, 0, 1)[..., None]
        ground = ground + (pick(rng, _FLOWERS) - ground) * bloom
    haze = light.haze * np.clip(1 - (y - canvas.horizon) / (1 - canvas.horizon), 0, 1) ** 2.5 * 0.85
    canvas.paint(box, canvas.cover(y - edge), light.on(ground, 0.75), FIELD, haze + 0 * x)


def paint_water(canvas: Canvas) -> None:
    """Paint a lake, a sea, a bay at one side or a near shore, with ripples and reflections."""
    rng, light = canvas.rng, canvas.light
    kind, below = rng.random(), 1 - canvas.horizon
    x, y = canvas.x, canvas.y
    ragged = canvas.line(2.5, 4)
    if kind < 0.40:  # from the horizon to a shore
        top = canvas.horizon + (0.0 if rng.random() < 0.6 else rng.uniform(0.06, 0.10))
        shore = canvas.horizon + below * rng.uniform(0.35, 0.65) + 0.05 * ragged
        inside = np.minimum(y - top - 0.01 * ragged, shore - y)
    elif kind < 0.65:  # the near shore
        top = canvas.horizon + below * rng.uniform(0.35, 0.60)
        inside = y - top - 0.06 * ragged
    else:  # a bay at one side
        top = canvas.horizon + (0.0 if rng.random() < 0.5 else rng.uniform(0.06, 0.12))
        side = 1 if rng.random() < 0.5 else -1
        reach = rng.uniform(0.35, 0.65) * canvas.aspect
        bend = canvas.noise(canvas.whole, 3, stretch=1.5, octaves=3) - 0.5
        across = x if side > 0 else canvas.aspect - x
        slant = rng.uniform(-0.5, 0.5) * (y - canvas.horizon)
        inside = np.minimum(y - top - 0.01 * ragged, (reach + slant - across + 0.3 * bend) * 0.7)
    box = canvas.box(0, top - 0.08, canvas.aspect, 1)
    gx, gy = canvas.grid(box)
    depth = canvas.depth(gy)
    waves = canvas.noise(box, 46, stretch=5.5, octaves=2) - 0.5
    swell = canvas.noise(box, 18, stretch=5.0) - 0.5
    ripple = waves * 0.9 + swell * np.clip(1.6 / depth, 0, 1)
    mirrored = np.clip((2 * top - gy + 0.10 * ripple) * canvas.height, 0, canvas.height - 1).astype(int)
    wobble = np.arange(box[1].start, box[1].stop)[None] + (swell * 0.06 * canvas.height).astype(int)
    reflection = canvas.image[mirrored, np.clip(wobble, 0, canvas.width - 1)]
    deep = light.on(pick(rng, _WATERS), 0.5)
    mirror = rng.uniform(0.25, 0.65) * np.clip(0.55 + 0.12 * depth, 0, 1)[..., None]
    color = deep + (reflection - deep) * mirror
    color = color * (1 + rng.uniform(0.45, 0.9) * ripple[..., None])
    glint = np.exp(-(((gx - light.sun[0]) / 0.12) ** 2)) * np.clip(ripple * 9 - 1.0, 0, 1)
    crest = np.clip(ripple * 7 - 2.2, 0, 1) * rng.uniform(0.05, 0.35)
    color = color + (np.clip(glint * 0.8, 0, 1) + crest)[..., None] * (light.direct + 0.2 * light.ambient)
    canvas.paint(box, canvas.cover(inside[box[0]]), color, WATER, 0.3 * canvas.haze(top))


def paint_road(canvas: Canvas) -> Callable[[float], tuple[float, float]]:
    """Paint a road towards the horizon; return a function of y for its center and half width."""
    rng, light = canvas.rng, canvas.light
    far = canvas.aspect * rng.uniform(0.2, 0.8)
    near = canvas.aspect * rng.uniform(0.15, 0.85)
    half, bend = rng.uniform(0.26, 0.42), rng.uniform(-0.35, 0.35)
    top = canvas.horizon + rng.uniform(0.0, 0.04)

    def course(y: Array) -> tuple[Array, Array]:
        t = np.clip((y - canvas.horizon) / (1 - canvas.horizon), 0, 1)
        return far + (near - far) * t + bend * t * (1 - t), half * t + 0.008

    box = canvas.box(0, top, canvas.aspect, 1)
    x, y = canvas.grid(box)
    center, width = course(y)
    across = (x - center) / width
    color = pick(rng, _ROADS)
    grain = canvas.ground(box, 5) + canvas.noise(box, 100) - 1
    surface = color * (1 + 0.22 * grain + 0.10 * np.cos(across * 2 * np.pi))[..., None]
    depth = canvas.depth(y)
    if rng.random() < 0.75:  # painted lines; otherwise a track with ruts
        white = np.asarray((0.92, 0.9, 0.78 if rng.random() < 0.6 else 0.4), np.float32)
        dashes = (np.sin(depth * rng.uniform(3.5, 6)) > -0.2) if rng.random() < 0.7 else np.ones_like(depth, bool)
        middle = np.clip((0.055 - np.abs(across)) * width * canvas.height + 0.5, 0, 1) * dashes
        sides = np.clip((0.035 - np.abs(np.abs(across) - 0.88)) * width * canvas.height + 0.5, 0, 1)
        surface = surface + (white - surface) * np.clip(middle + sides, 0, 1)[..., None] * 0.85
    else:
        ruts = np.exp(-(((np.abs(across) - 0.42) / 0.14) ** 2))
        surface = surface * (1 - 0.32 * ruts[..., None])
    haze = light.haze * np.clip(1 - (y - canvas.horizon) / (1 - canvas.horizon), 0, 1) ** 2.5 * 0.8
    inside = np.minimum((1 - np.abs(across)) * width, y - top)
    canvas.paint(box, canvas.cover(inside), light.on(surface, 0.75), ROAD, haze + 0 * x)

    def at(height: float) -> tuple[float, float]:
        middle, side = course(np.asarray(height, np.float32))
        return float(middle), float(side)

    return at
