"""Runs for a page, without a job: rows of known figures, and a parser that says what is on a page."""

from collections import Counter
from html.parser import HTMLParser

from cluster.report.run import Details, Row, Run
from cluster.reports import Tally
from cluster.summary import RunFacts, Summary

VOID = {"meta", "input", "br", "hr", "img", "link"}


def make_row(
    id: str, right: bool | None = True, details: bool = True, told: Details | None = None, **changes: object
) -> Row:
    """Three tokens: the first two fixed at forward 1 by `calm`, the last at 2 by `surest`."""
    told = told or (([1, 1, 2], ["calm", "calm", "surest"], [0.9, 0.8, 0.5]) if details else None)
    values = {
        "id": id, "prompt": "what?", "text": "a b c", "tokens": [7, 8, 9], "reason": "eos", "error": None,
        "forwards": 2, "full_passes": 1,
        "confidence": 0.7, "worker": "w", "gold": "a b c", "group": "easy", "right": right, "details": told,
    }  # fmt: skip
    return Row(**values | changes)


def make_run(letter: str, rows: list[Row], tokens_per_second: float = 100.0, **settings: str) -> Run:
    tokens, forwards = sum(len(row.tokens) for row in rows), sum(row.forwards for row in rows)
    total = Tally(
        rows=len(rows), errors=sum(row.error is not None for row in rows), answer_tokens=tokens, forwards=forwards,
        commits={"calm": 2 * len(rows), "surest": len(rows)},
    )  # fmt: skip
    facts = RunFacts(1, len(rows), int(10 * tokens_per_second), 12.0, 2.0)
    summary = Summary(f"out/{letter}", len(rows), 1, total, facts)
    told = {"decode.cache.kind": "dual", "output.path": f"out/{letter}", **settings}
    return Run(letter, f"run-{letter}", told, "no-model", summary, [], rows)


class Parsed(HTMLParser):
    """Counts tags and classes, keeps text outside of style and script, and notes what is not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags, self.classes, self.text = Counter[str](), Counter[str](), list[str]()
        self.outside: list[str] = []  # addresses that a browser would fetch, and handlers that it would run
        self.open: list[str] = []
        self.broken: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attrs)
        self.classes.update((given.get("class") or "").split())
        self.outside += [f"{tag} {key}" for key in given if key in ("src", "href", "action") or key.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)
