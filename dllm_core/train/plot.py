"""A calibration plot as SVG: how sure the network is against how often it is right, and what each delta costs."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from dllm_core.train.calibrate import Bin, Gauge

SIDE, MARGIN, GAP = 260, 46, 70  # pixels: of a panel, around it, between two
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
BLUE, RED, GREY = "#1f5fa8", "#b3312c", "#888888"
Point = tuple[float, float]  # both from 0 to 1


class Panel:
    """A square with axes from 0 to 1 (times `top` upwards)."""

    def __init__(self, left: int, title: str, x: str, y: str, top: float = 1.0) -> None:
        self.left, self.top = left, top
        right, bottom, middle = left + SIDE, MARGIN + SIDE, left + SIDE // 2
        self.drawn = [
            f'<rect x="{left}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{GREY}"/>',
            text(middle, MARGIN - 14, title),
            text(middle, bottom + 36, x),
            text(left - 36, MARGIN + SIDE // 2, y, turned=True),
        ]
        for tick in TICKS:
            across, up = left + SIDE * tick, bottom - SIDE * tick
            self.drawn += [text(across, bottom + 16, f"{tick:g}"), text(left - 16, up + 4, f"{tick * top:.3g}")]
            self.drawn.append(f'<path d="M{left} {up:.1f}H{right}" stroke="{GREY}" stroke-width="0.3"/>')

    def line(self, points: Sequence[Point], colour: str, dashed: bool = False) -> None:
        where = " ".join("{:.1f},{:.1f}".format(*self.place(point)) for point in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.drawn.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')

    def dots(self, points: Sequence[Point], colour: str) -> None:
        for point in points:
            x, y = self.place(point)
            self.drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')

    def place(self, point: Point) -> Point:
        return self.left + SIDE * point[0], MARGIN + SIDE * (1 - min(point[1] / self.top, 1.0))


def text(x: float, y: float, words: str, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{turn}>{escape(words)}</text>'


def calibration_plot(bins: Sequence[Bin], measured: Sequence[Gauge], delta: float, limit: float) -> str:
    """bins, measured: on the test prompts; delta: the one chosen; limit: of false fixes."""
    most = max([limit, *(each.false_fixes for each in measured)])
    sure = Panel(MARGIN + 10, "calibration", "score, mean of a tenth", "share right")
    sure.line([(0.0, 0.0), (1.0, 1.0)], GREY, dashed=True)
    sure.line([(each.score, each.right) for each in bins], BLUE)
    sure.dots([(each.score, each.right) for each in bins], BLUE)
    cost = Panel(sure.left + SIDE + GAP, "false fixes", "delta", "share of fixes", most)
    cost.line([(0.0, limit), (1.0, limit)], GREY, dashed=True)
    cost.line([(each.delta, each.false_fixes) for each in measured], RED)
    soon = Panel(cost.left + SIDE + GAP, "commit rate", "delta", "fixes per observation")
    soon.line([(each.delta, each.commit_rate) for each in measured], BLUE)
    for panel, top in ((cost, most), (soon, 1.0)):
        panel.line([(delta, 0.0), (delta, top)], GREY, dashed=True)
    width, height = soon.left + SIDE + MARGIN, SIDE + 2 * MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = 'font-family="sans-serif" font-size="11"'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([f"{head} {style}>", paper, *sure.drawn, *cost.drawn, *soon.drawn, "</svg>", ""])
