"""Drawn scenes: two objects, five captions, any number of them from a seed.

What a scene shows (`describe_scenes`) is cheap; drawing it (`render`) happens when an image is
opened. Scene i depends on (seed, i) alone. The public palette leaves some shapes and colours
out, so that a client has something only it can teach. The class of a scene is the shape of its
first object.
"""

from dataclasses import dataclass
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

from ease_flower.data.pairs import Pairs

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "ring", "bar")
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 150, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 215, 30),
    "orange": (250, 130, 20),
    "purple": (130, 60, 180),
    "cyan": (40, 200, 215),
    "pink": (245, 140, 190),
    "brown": (120, 72, 40),
    "black": (20, 20, 20),
}
BACKGROUNDS = {"white": (246, 246, 246), "grey": (176, 176, 176), "beige": (232, 216, 184)}
SIZES = {"small": 0.11, "large": 0.2}  # radius, of the side
PLACES = {
    "top left": (0.26, 0.26),
    "top right": (0.74, 0.26),
    "bottom left": (0.26, 0.74),
    "bottom right": (0.74, 0.74),
}
PRIVATE_SHAPES, PRIVATE_COLOURS = ("star", "ring"), ("purple", "pink")
PALETTES = ("all", "public")
OVERSAMPLING = 3


@dataclass(frozen=True)
class Thing:
    """One object of a scene."""

    shape: str
    colour: str
    size: str
    place: str


@dataclass(frozen=True)
class Scene:
    """What is drawn; `jitter` seeds the small differences between drawings of one scene."""

    first: Thing
    second: Thing
    background: str
    jitter: tuple[int, ...]


def describe_scenes(
    num: int, seed: int, palette: str = "all", first: int = 0, near_duplicates: float = 0.0
) -> list[Scene]:
    """Describe scenes first to first + num - 1 of a seed.

    Parameters
    ----------
    palette : str
        ``all``, or ``public`` without the private shapes and colours.
    near_duplicates : float
        Share of scenes that draw an earlier scene of the seed once more, slightly differently.
    """
    if palette not in PALETTES:
        raise ValueError(f"palette = {palette!r}: allowed: {', '.join(PALETTES)}")
    return [_describe(i, seed, palette, near_duplicates) for i in range(first, first + num)]


def _describe(index: int, seed: int, palette: str, near_duplicates: float) -> Scene:
    rng = np.random.default_rng([seed, index])
    if index and rng.random() < near_duplicates:
        earlier = _describe(int(rng.integers(index)), seed, palette, near_duplicates)
        return Scene(earlier.first, earlier.second, earlier.background, (seed, index, 1))
    public = palette == "public"
    shapes = [s for s in SHAPES if not (public and s in PRIVATE_SHAPES)]
    colours = [c for c in COLOURS if not (public and c in PRIVATE_COLOURS)]
    places = rng.permutation(list(PLACES))
    things = [
        Thing(
            str(rng.choice(shapes)), str(rng.choice(colours)), str(rng.choice(list(SIZES))), str(p)
        )
        for p in places[:2]
    ]
    return Scene(things[0], things[1], str(rng.choice(list(BACKGROUNDS))), (seed, index, 1))


def relation(a: Thing, b: Thing) -> str:
    """Say where a lies from b; sideways before up and down.

    Examples
    --------
    >>> a = Thing("star", "red", "small", "top left")
    >>> relation(a, Thing("ring", "blue", "large", "bottom right"))
    'left of'
    """
    (ax, ay), (bx, by) = PLACES[a.place], PLACES[b.place]
    if ax != bx:
        return "left of" if ax < bx else "right of"
    return "above" if ay < by else "below"


def captions(scene: Scene) -> tuple[str, ...]:
    """Put a scene into words, five times."""
    a, b = scene.first, scene.second
    return (
        f"a {a.size} {a.colour} {a.shape} and a {b.size} {b.colour} {b.shape} "
        f"on {scene.background}",
        f"a {a.size} {a.colour} {a.shape} {relation(a, b)} a {b.size} {b.colour} {b.shape}",
        f"a {b.colour} {b.shape} {relation(b, a)} a {a.colour} {a.shape} on a {scene.background} "
        "background",
        f"the {a.shape} in the {a.place} is {a.size} and {a.colour} the {b.shape} in the {b.place} "
        f"is {b.size} and {b.colour}",
        f"{a.colour} {a.shape} in the {a.place} {b.colour} {b.shape} in the {b.place} "
        f"{scene.background} paper",
    )


def _words() -> tuple[str, ...]:
    fixed = "a the and on in is left right top bottom of above below background paper"
    return tuple(sorted({*fixed.split(), *SHAPES, *COLOURS, *SIZES, *BACKGROUNDS}))


VOCABULARY = _words()


def render(scene: Scene, size: int = 48) -> Image.Image:
    """Draw a scene, size x size pixels, RGB."""
    rng = np.random.default_rng(scene.jitter)
    side = size * OVERSAMPLING
    tint = np.array(BACKGROUNDS[scene.background]) + rng.integers(-8, 9, 3)
    image = Image.new("RGB", (side, side), tuple(int(v) for v in np.clip(tint, 0, 255)))
    draw = ImageDraw.Draw(image)
    for thing in (scene.first, scene.second):
        x, y = np.array(PLACES[thing.place]) + rng.uniform(-0.05, 0.05, 2)
        radius = SIZES[thing.size] * rng.uniform(0.92, 1.08)
        colour = np.clip(np.array(COLOURS[thing.colour]) + rng.integers(-10, 11, 3), 0, 255)
        _draw(draw, thing.shape, x * side, y * side, radius * side, tuple(int(v) for v in colour))
    return image.resize((size, size), Image.Resampling.BOX)


def _draw(
    draw: ImageDraw.ImageDraw, shape: str, x: float, y: float, r: float, fill: tuple[int, ...]
) -> None:
    box = (x - r, y - r, x + r, y + r)
    if shape == "circle":
        draw.ellipse(box, fill=fill)
    elif shape == "ring":
        draw.ellipse(box, outline=fill, width=max(2, int(r / 2.5)))
    elif shape == "square":
        draw.rectangle((x - r * 0.85, y - r * 0.85, x + r * 0.85, y + r * 0.85), fill=fill)
    elif shape == "bar":
        draw.rectangle((x - r, y - r / 3, x + r, y + r / 3), fill=fill)
    elif shape == "cross":
        draw.rectangle((x - r, y - r / 3.5, x + r, y + r / 3.5), fill=fill)
        draw.rectangle((x - r / 3.5, y - r, x + r / 3.5, y + r), fill=fill)
    else:
        draw.polygon(_polygon(shape, x, y, r), fill=fill)


def _polygon(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    radii = {"triangle": (1.0,) * 3, "diamond": (1.0,) * 4, "star": (1.0, 0.42) * 5}[shape]
    steps = [(q * r, -pi / 2 + 2 * pi * i / len(radii)) for i, q in enumerate(radii)]
    return [(x + q * cos(t), y + q * sin(t)) for q, t in steps]


def scene_pairs(
    num: int,
    seed: int,
    palette: str = "all",
    size: int = 48,
    first: int = 0,
    near_duplicates: float = 0.0,
) -> Pairs:
    """Make pairs of drawn scenes; an image is drawn when it is opened."""
    scenes = describe_scenes(num, seed, palette, first, near_duplicates)
    return Pairs(
        tuple(f"scene-{seed}-{first + i}" for i in range(num)),
        tuple(captions(scene) for scene in scenes),
        tuple(scene.first.shape for scene in scenes),
        lambda i: render(scenes[i], size),
    )
