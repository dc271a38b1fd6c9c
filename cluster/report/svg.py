"""Plots as SVG in the colours of the page (classes, so that light, dark and paper are the style sheet's business).

A frame has two linear axes with round ticks. Marks carry a title, which is what a pointer and a screen reader get.
"""

import math
from collections.abc import Sequence

from cluster.report.html import Html, joined, tag, text

WIDTH, HEIGHT = 460, 300  # units of the drawing
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 44  # margins


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below low to at or above high."""
    reach = high - low or abs(high) or 1.0
    rough = reach / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil((low + reach) / step - 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


class Frame:
    """Axes, and where a point of the data lies between them."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        size: tuple[int, int] | None = None,
    ) -> None:
        self.width, self.height = size or (WIDTH, HEIGHT)
        self.xs, self.ys = ticks(*x), ticks(*y, about=4 if self.height < HEIGHT else 5)
        self.names, self.marks = names, list[Html]()
        self.dots: list[tuple[float, float, str]] = []  # place and label

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.xs[0]) / (self.xs[-1] - self.xs[0])
        up = (y - self.ys[0]) / (self.ys[-1] - self.ys[0])
        inner, high = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + inner * across, 1), round(TOP + high * (1 - up), 1)

    def dot(self, x: float, y: float, title: str, label: str = "", kind: str = "dot") -> None:
        at, up = self.place(x, y)
        self.marks.append(tag("circle", tag("title", text(title)), cx=at, cy=up, r=5, class_=kind, tabindex=0))
        self.dots.append((at, up, label))

    def whisker(self, x: float, low: float, high: float) -> None:
        (at, bottom), (_, top) = self.place(x, low), self.place(x, high)
        self.marks.append(tag("path", d=f"M{at} {top}V{bottom}", class_="whisker"))

    def line(self, points: Sequence[tuple[float, float]], kind: str = "front") -> None:
        where = " ".join("{},{}".format(*self.place(*point)) for point in points)
        self.marks.append(tag("polyline", points=where, class_=kind))

    def bar(self, left: float, right: float, high: float, title: str, kind: str = "bar") -> None:
        """Upright, from the bottom, a hair apart from its neighbours."""
        (x0, base), (x1, top) = self.place(left, self.ys[0]), self.place(right, high)
        width, tall = max(round(x1 - x0 - 1.5, 1), 0.5), round(base - top, 1)
        self.marks.append(
            tag("rect", tag("title", text(title)), x=x0 + 0.75, y=top, width=width, height=tall, class_=kind)
        )

    def _labels(self) -> list[Html]:
        """Each beside its dot, at the first of the places around it where no other dot or label is."""
        taken = [(x - 6, x + 6, y - 6, y + 6) for x, y, _ in self.dots]
        found = []
        for x, y, label in self.dots:
            wide = 9 * len(label)
            boxes = [(x + dx, x + dx + wide, y + dy - 10, y + dy) for dx, dy in around(wide)]
            free = (box for box in boxes if not any(overlap(box, other) for other in taken))
            box = next(free, boxes[0])
            taken.append(box)
            found.append(tag("text", text(label), x=round(box[0], 1), y=round(box[3], 1), class_="label"))
        return found

    def drawn(self, title: str) -> Html:
        (left, base), (right, top) = self.place(self.xs[0], self.ys[0]), self.place(self.xs[-1], self.ys[-1])
        axes = []
        for tick in self.ys:
            _, up = self.place(self.xs[0], tick)
            axes.append(tag("path", d=f"M{left} {up}H{right}", class_="grid"))
            axes.append(tag("text", text(f"{tick:,g}"), x=left - 7, y=up + 4, class_="tick end"))
        for tick in self.xs:
            at, _ = self.place(tick, self.ys[0])
            axes.append(tag("path", d=f"M{at} {base}v4", class_="axis"))
            axes.append(tag("text", text(f"{tick:,g}"), x=at, y=base + 17, class_="tick"))
        axes.append(tag("path", d=f"M{left} {base}H{right}", class_="axis"))
        middle, high = (left + right) / 2, (base + top) / 2
        axes.append(tag("text", text(self.names[0]), x=middle, y=self.height - 6, class_="name"))
        turned = f"rotate(-90 12 {high})"
        axes.append(tag("text", text(self.names[1]), x=12, y=high, transform=turned, class_="name"))
        return drawing(self.width, self.height, title, *axes, *self.marks, *self._labels())


Box = tuple[float, float, float, float]  # left, right, top, bottom


def around(wide: int) -> list[tuple[float, float]]:
    """Offsets of a label's lower left corner from its dot, near ones first."""
    near = [(8.0, -5.0), (8.0, 15.0), (-8.0 - wide, -5.0), (-8.0 - wide, 15.0), (-wide / 2, -10.0), (-wide / 2, 20.0)]
    return [*near, *((dx, dy + shift) for shift in (-14.0, 14.0, -28.0, 28.0) for dx, dy in near)]


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def drawing(width: float, height: float, title: str, *inside: Html) -> Html:
    named = tag("title", text(title))
    return tag("svg", named, joined(inside), viewBox=f"0 0 {width} {height}", width=width, height=height, role="img")


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Those that no other point beats or equals in both, better being more; from left to right. Of equal points the
    first stands.
    """
    best, front = -math.inf, []
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i)):
        if points[i][1] > best:
            best = points[i][1]
            front.append(i)
    return front[::-1]


def histogram(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """Counts between neighbouring edges, the last bin with its upper edge; what lies outside goes into the end bins."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        place = sum(edge <= value for edge in edges[1:-1])
        counts[place] += 1
    return counts
