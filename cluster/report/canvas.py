"""Sample answers as they came about: each token with its forward, rule and confidence, and a slider over forwards.

Needs the columns of `output.token_details`. The same rows are shown for all runs that have them: half of them among
the wrong answers (the least sure first, or the least sure of all where nothing is scored), the rest spread evenly.
Without scripts, and on paper, an answer stands there whole, coloured by the order of its tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from cluster.report.html import Html, number, section, table, tag, text
from cluster.report.run import Details, Row, Run
from cluster.report.spread import colour, key_of, rules_of

SHOWN = 1500  # characters of a prompt or a gold answer
TOKENS = 512  # of an answer
COLOURINGS = ("forward", "rule", "confidence")
Pieces = Callable[[int], str]  # token -> its text

HOWTO = (
    "The stronger its colour, the later a token was fixed. Move a slider to see the canvas at an earlier forward; "
    "point at a token for its forward, rule and confidence."
)


def samples_section(runs: Sequence[Run], pieces: Sequence[Pieces], count: int, room: int) -> Html:
    """pieces: of each run's tokenizer; room: bytes that the section may take. Samples that find none are left out and
    counted.
    """
    detailed = [(run, shown) for run, shown in zip(runs, pieces, strict=True) if any(row.details for row in run.rows)]
    if not detailed:
        return section(
            "Answers as they came about", tag("p", text("Set output.token_details: true in a job to see this."))
        )
    ids = choose([run for run, _ in detailed], count)
    names, shown, left_out = rules_of(runs), list[Html](), 0
    for place, id in enumerate(ids, 1):
        sample = _sample(place, id, detailed, names)
        room -= len(sample.encode())
        if room < 0:
            left_out = len(ids) - len(shown)
            break
        shown.append(sample)
    choice = tag("p", text("Colour: "), *(_radio(kind) for kind in COLOURINGS), class_="choice")
    rest = [tag("p", text(f"{left_out} more would not have fitted on this page."), class_="note")] if left_out else []
    keys = tag("div", key_of(names), class_="rule-key")
    return tag(
        "section", tag("h2", text("Answers as they came about")), tag("p", text(HOWTO)), choice, keys, *shown, *rest,
        class_="samples by-forward", id="samples",
    )  # fmt: skip


def _radio(kind: str) -> Html:
    checked = " checked" if kind == COLOURINGS[0] else ""
    return tag("label", Html(f'<input type="radio" name="colour" value="{kind}"{checked}>'), text(f" {kind}"))


def choose(runs: Sequence[Run], count: int) -> list[str]:
    """Ids of rows that every one of these runs has answered."""
    known: defaultdict[str, list[Row]] = defaultdict(list)
    for run in runs:
        for row in run.rows:
            if row.details is not None and row.tokens:
                known[row.id].append(row)
    whole = [id for id, rows in known.items() if len(rows) == len(runs)]
    surest = sorted(whole, key=lambda id: min(row.confidence or 0.0 for row in known[id]))
    wrong = [id for id in surest if any(row.right is False for row in known[id])]
    first = (wrong or surest)[: (count + 1) // 2]
    rest = [id for id in whole if id not in first]
    missing = min(count - len(first), len(rest))
    return first + [rest[i * len(rest) // missing] for i in range(missing)]


def _sample(place: int, id: str, runs: Sequence[tuple[Run, Pieces]], rules: Sequence[str]) -> Html:
    rows = [next(row for row in run.rows if row.id == id) for run, _ in runs]
    facts = [tag("h3", text(f"{place}. {id}"))]
    for title, value in (("Prompt", rows[0].prompt), ("Gold answer", rows[0].gold)):
        if value not in (None, ""):
            facts.append(tag("p", tag("b", text(title)), text(f" {cut(str(value))}"), class_="said"))
    drawn = [_canvas(run, row, shown, rules) for (run, shown), row in zip(runs, rows, strict=True)]
    return tag("article", *facts, *drawn)


def cut(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}\N{HORIZONTAL ELLIPSIS}"


def _canvas(run: Run, row: Row, pieces: Pieces, rules: Sequence[str]) -> Html:
    every: Details = row.details or ([], [], [])
    forwards, by, sure = every[0][:TOKENS], every[1][:TOKENS], every[2][:TOKENS]
    last = row.forwards
    verdict = {None: "", True: ", right", False: ", wrong"}[row.right]
    said = f"Run {run.letter}: {len(row.tokens)} tokens in {last} forwards{verdict}"
    if len(row.tokens) > TOKENS:
        said += f"; the first {TOKENS} are shown"
    tokens = []
    for token, forward, rule, confidence in zip(row.tokens, forwards, by, sure, strict=False):
        part = pieces(token)
        shade = f"--f:{forward / last:.2f};--c:{confidence:.2f}"
        told = {"data_f": forward, "data_c": f"{confidence:.3f}", "data_r": rule}
        tokens.append(
            tag(
                "span",
                text(part.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n")),
                class_=f"t {colour(rules, rule)}",
                style=shade,
                **told,
            )
        )
    label = f"forward of sample {row.id}, run {run.letter}"
    slider = Html(f'<input type="range" min="0" max="{last}" value="{last}" aria-label="{text(label)}">')
    play = tag("button", text("play"), type="button")
    readout = tag("span", class_="readout", aria_live="polite")
    output = tag("output", text(f"forward {last} of {last}"))
    controls = tag("div", play, slider, output, readout, class_="controls")
    lines = []
    for forward in sorted(set(forwards)):
        here = [i for i, each in enumerate(forwards) if each == forward]
        fixed = " ".join(pieces(row.tokens[i]).strip() for i in here)
        used = ", ".join(dict.fromkeys(by[i] for i in here))
        lines.append([forward, number(len(here), 0), used, number(min(sure[i] for i in here), 3), fixed])
    data = table(["forward", "tokens", "rule", "least confidence", "what was fixed"], lines, said)
    whole = tag("details", tag("summary", text("as a table")), data)
    return tag("div", tag("h4", text(said)), controls, tag("div", *tokens, class_="tokens"), whole, class_="canvas")
