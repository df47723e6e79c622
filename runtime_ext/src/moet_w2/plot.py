"""Line charts as PNG files, with nothing but the imaging library that vLLM brings along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 1000, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 60, 70
_INK, _GRID, _PAPER = (40, 40, 40), (222, 222, 222), (255, 255, 255)
# Blue, vermilion, bluish green, reddish purple: told apart without full colour vision.
_COLORS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167))

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis: its label and the range that it shows."""

    label: str
    low: float
    high: float

    def ticks(self, most: int = 6) -> list[float]:
        """At most so many round numbers within the range, evenly apart."""
        power = 10 ** math.floor(math.log10((self.high - self.low) / most))
        for factor in (1, 2, 5, 10, 20):
            step = factor * power
            numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
            if len(numbers) <= most:
                break
        return [number * step for number in numbers]


def axis(label: str, values: Sequence[float], low: float | None = None, high: float | None = None) -> Axis:
    """An axis over finite values, or over a given end of the range; never empty."""
    finite = [value for value in values if math.isfinite(value)]
    bottom = low if low is not None else min(finite, default=0.0)
    top = high if high is not None else max(finite, default=1.0)
    return Axis(label, bottom, top if top > bottom else bottom + 1.0)


def lines(path: Path, title: str, series: Mapping[str, Points], x: Axis, y: Axis, marks: bool = False) -> None:
    """Draw one line for each series.

    Args:
        path: PNG file to write.
        title: above the chart.
        series: name -> points in ascending order of x; a point that is not finite breaks the line.
        x, y: the axes.
        marks: a dot at each point.

    Raises:
        OSError: the file cannot be written.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), _PAPER)
    draw = ImageDraw.Draw(image)
    text, small = ImageFont.load_default(18), ImageFont.load_default(14)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x.low) / (x.high - x.low)
        up = (point[1] - y.low) / (y.high - y.low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    for tick in x.ticks():
        at, _ = place((tick, y.low))
        draw.line([(at, _TOP), (at, HEIGHT - _BOTTOM)], _GRID)
        draw.text((at, HEIGHT - _BOTTOM + 8), f"{tick:g}", _INK, small, anchor="ma")
    for tick in y.ticks():
        _, at = place((x.low, tick))
        draw.line([(_LEFT, at), (WIDTH - _RIGHT, at)], _GRID)
        draw.text((_LEFT - 8, at), f"{tick:g}", _INK, small, anchor="rm")
    draw.text((_LEFT, 18), title, _INK, text)
    draw.text(((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 34), x.label, _INK, small, anchor="ma")
    draw.text((_LEFT, _TOP - 18), y.label, _INK, small)
    for number, (name, points) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        for run in _runs(points):
            placed = [place(point) for point in run]
            if len(placed) > 1:
                draw.line(placed, color, width=2, joint="curve")
            for across, down in placed if marks or len(placed) == 1 else ():
                draw.ellipse([across - 4, down - 4, across + 4, down + 4], color)
        right = WIDTH - _RIGHT - 180 * (len(series) - number) + 20
        draw.line([(right, _TOP - 10), (right + 24, _TOP - 10)], color, width=3)
        draw.text((right + 30, _TOP - 10), name, _INK, small, anchor="lm")
    image.save(path, "PNG", optimize=True)


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """Stretches of finite points."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[0]) and math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
