"""Curves as SVG pictures, by hand: two panels, time and bus bandwidth over size."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from benchmarks.collectives.results import Measurement, size_name

_WIDTH, _HEIGHT = 1000, 430
_PANEL_WIDTH, _PANEL_HEIGHT = 410, 300
_TOP, _LEFTS = 50, (70, 570)
_LEGEND_COLUMNS = 5
# Told apart by people who do not see all colours: Okabe and Ito's palette, and some more.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800")
_COLORS += ("#999999", "#7a4a1d", "#5b2a86", "#c00030")
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold;font-size:14px}"
    ".g{stroke:#ddd;fill:none}.a{stroke:#666;fill:none}.c{fill:none;stroke-width:2}"
)


class _LogScale:
    """From values to pixels by the logarithm; the ends are powers of `base` around all values."""

    def __init__(self, values: list[float], base: int, start: float, end: float):
        low = math.floor(math.log(min(values), base) + 1e-9)
        high = math.ceil(math.log(max(values), base) - 1e-9)
        self._low, self._high = low, max(high, low + 1)
        self._base, self._start, self._end = base, start, end

    def __call__(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self, most: int) -> list[float]:
        step = max(1, math.ceil((self._high - self._low) / most))
        return [float(self._base) ** e for e in range(self._low, self._high + 1, step)]


def _time_label(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= unit * 0.999:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0e} s"


def _bandwidth_label(bandwidth: float) -> str:
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bandwidth >= unit * 0.999:
            return f"{bandwidth / unit:.0f} {name}"
    return f"{bandwidth:.0f} B/s"


def _panel(
    left: int,
    title: str,
    curves: dict[str, list[Measurement]],
    value: Callable[[Measurement], float],
    label: Callable[[float], str],
) -> list[str]:
    points = [m for curve in curves.values() for m in curve]
    right, bottom = left + _PANEL_WIDTH, _TOP + _PANEL_HEIGHT
    x = _LogScale([m.size_in_bytes for m in points], 2, left, right)
    y = _LogScale([value(m) for m in points], 10, bottom, _TOP)
    parts = [f'<text class="t" x="{left}" y="{_TOP - 12}">{escape(title)}</text>']
    for size in x.ticks(7):
        at = x(size)
        parts.append(f'<path class="g" d="M{at:.1f} {_TOP}V{bottom}"/>')
        name = size_name(int(size))
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{name}</text>')
    for tick in y.ticks(10):
        at = y(tick)
        parts.append(f'<path class="g" d="M{left} {at:.1f}H{right}"/>')
        parts.append(
            f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{label(tick)}</text>'
        )
    parts.append(f'<path class="a" d="M{left} {_TOP}V{bottom}H{right}"/>')
    for color, curve in zip(_COLORS * 4, curves.values(), strict=False):
        dots = [(x(m.size_in_bytes), y(value(m))) for m in curve]
        line = "L".join(f"{px:.1f} {py:.1f}" for px, py in dots)
        parts.append(f'<path class="c" stroke="{color}" d="M{line}"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{color}"/>' for px, py in dots
        ]
    return parts


def _legend(names: list[str]) -> list[str]:
    parts = []
    for number, (color, name) in enumerate(zip(_COLORS * 4, names, strict=False)):
        x = _LEFTS[0] + number % _LEGEND_COLUMNS * 180
        y = _TOP + _PANEL_HEIGHT + 42 + number // _LEGEND_COLUMNS * 20
        parts.append(f'<rect x="{x}" y="{y}" width="18" height="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 23}" y="{y + 7}">{escape(name)}</text>')
    return parts


def draw(title: str, curves: dict[str, list[Measurement]]) -> str:
    """The text of an SVG file with a curve for each system, of one point at least."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
    ]
    parts += _panel(_LEFTS[0], title + ": time", curves, lambda m: m.seconds, _time_label)
    parts += _panel(_LEFTS[1], "bus bandwidth", curves, lambda m: m.bus_bandwidth, _bandwidth_label)
    parts += _legend(list(curves))
    return "\n".join(parts + ["</svg>", ""])
