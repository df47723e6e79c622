"""Charts as SVG text: the same data give the same bytes, so a committed chart can be compared with its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from moet_w2.plot import Axis, Points

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 64, 52
_LABEL = 180
"""Room that the words beside a bar need."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Told apart without full colour vision."""


def lines(title: str, series: Mapping[str, Points], x: Axis, y: Axis) -> str:
    """One line with a dot at each point for each series; points in ascending order of x."""

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x.low) / (x.high - x.low)
        up = (point[1] - y.low) / (y.high - y.low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    parts = [_text(_LEFT, 20, title, size=15), _text(_LEFT, _TOP - 8, y.label)]
    for tick in x.ticks(8):
        at, _ = place((tick, y.low))
        parts += [_rule(at, _TOP, at, HEIGHT - _BOTTOM), _text(at, HEIGHT - _BOTTOM + 16, f"{tick:g}", "middle")]
    for tick in y.ticks():
        _, at = place((x.low, tick))
        parts += [_rule(_LEFT, at, WIDTH - _RIGHT, at), _text(_LEFT - 6, at + 4, f"{tick:,g}", "end")]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12, x.label, "middle"))
    for number, (name, points) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        placed = [place(point) for point in points]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{color}"/>' for across, down in placed]
        parts += _key(number, name, color, len(series))
    return _whole(parts, HEIGHT)


def waterfall(title: str, rows: Mapping[str, Sequence[tuple[str, float]]], x: Axis) -> str:
    """Bars laid end to end: for each row its phases with their lengths, in order."""
    names = list(dict.fromkeys(name for phases in rows.values() for name, _ in phases))
    colors = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
    scale = (WIDTH - _LEFT - _RIGHT) / (x.high - x.low)
    parts, down = [_text(_LEFT, 20, title, size=15)], 40
    for row, phases in rows.items():
        parts.append(_text(_LEFT, down + 12, row))
        down, start = down + 20, 0.0
        for name, length in phases:
            at, wide = _LEFT + start * scale, max(length * scale, 1.0)
            parts.append(f'<rect x="{at:.1f}" y="{down}" width="{wide:.1f}" height="14" fill="{colors[name]}"/>')
            words = f"{name} {length:.1f} s"
            if WIDTH - at - wide > _LABEL:
                parts.append(_text(at + wide + 4, down + 11, words))
            elif wide > _LABEL:
                parts.append(_text(at + 4, down + 11, words, fill="#ffffff"))
            else:
                parts.append(_text(at - 4, down + 11, words, "end"))
            down, start = down + 18, start + length
        down += 8
    for tick in x.ticks(8):
        at = _LEFT + tick * scale
        parts += [_rule(at, 34, at, down), _text(at, down + 16, f"{tick:g}", "middle")]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, down + 34, x.label, "middle"))
    return _whole(parts, down + 46)


def _key(number: int, name: str, color: str, many: int) -> list[str]:
    at = _LEFT + number * (WIDTH - _LEFT - _RIGHT) / max(many, 2)
    mark = f'<rect x="{at:.1f}" y="28" width="18" height="4" fill="{color}"/>'
    return [mark, _text(at + 24, 34, name)]


def _text(at: float, down: float, words: str, anchor: str = "start", size: int = 12, fill: str = "") -> str:
    color = f' fill="{fill}"' if fill else ""
    return f'<text x="{at:.1f}" y="{down:.1f}" font-size="{size}" text-anchor="{anchor}"{color}>{escape(words)}</text>'


def _rule(left: float, top: float, right: float, bottom: float) -> str:
    return f'<path d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}" stroke="#dedede"/>'


def _whole(parts: Sequence[str], height: int) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="#282828">'
    paper = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"
