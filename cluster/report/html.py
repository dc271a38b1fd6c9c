"""Pieces of HTML as text. Whatever comes from data goes through `text` or an attribute of `tag`, which escape it."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

Html = NewType("Html", str)  # safe to stand in a page; plain str is not


def text(value: object) -> Html:
    return Html(escape(str(value), quote=True))


def tag(name: str, *inside: Html, **attributes: object) -> Html:
    """class_ is class, data_tip is data-tip; an attribute that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{''.join(inside)}</{name}>")


def joined(pieces: Iterable[Html]) -> Html:
    return Html("".join(pieces))


def table(
    head: Sequence[str], rows: Sequence[Sequence[object]], caption: str, marked: Sequence[bool] = (), about: str = ""
) -> Html:
    """Cells are text unless they are Html already made by `cell`; the first of each row is its heading. marked: rows
    that are to be seen.
    """
    lines = []
    for i, row in enumerate(rows):
        first, *rest = (value if isinstance(value, Cell) else Cell(text(value)) for value in row)
        cells = joined(tag("td", each.inside, class_=each.kind) for each in rest)
        marks = "marked" if i < len(marked) and marked[i] else None
        lines.append(tag("tr", tag("th", first.inside, scope="row"), cells, class_=marks))
    first_row = rows[0] if rows else ()
    kinds = [value.kind if isinstance(value, Cell) else None for value in first_row] or [None] * len(head)
    names = tag(
        "tr", joined(tag("th", text(name), scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True))
    )
    shown = tag("table", tag("caption", text(caption)), tag("thead", names), tag("tbody", joined(lines)))
    note = tag("p", text(about), class_="note") if about else Html("")
    return joined([tag("div", shown, class_="wide", tabindex=0, role="region", aria_label=caption), note])


class Cell:
    """A cell with a class, or with HTML inside."""

    def __init__(self, inside: Html, kind: str | None = None) -> None:
        self.inside, self.kind = inside, kind


def number(value: float | None, digits: int = 2, share: bool = False) -> Cell:
    """Right-aligned; a dash where there is none."""
    if value is None:
        return Cell(text("\N{EN DASH}"), "n")
    shown = f"{100 * value:.{digits}f}" if share else f"{value:,.{digits}f}"
    return Cell(text(shown), "n")


def figure(drawing: Html, caption: str, data: Html) -> Html:
    """A plot, what it shows, and the table of what is in it."""
    behind = tag("details", tag("summary", text("as a table")), data)
    return tag("figure", drawing, tag("figcaption", text(caption)), behind)


def section(title: str, *inside: Html) -> Html:
    return tag("section", tag("h2", text(title)), *inside)
