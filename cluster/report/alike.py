"""Whether runs may be compared: they should have answered the same rows with the same gold answers, and so many."""

from collections import Counter
from collections.abc import Sequence

from cluster.report.run import Run
from cluster.wording import counted


def unlike(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run whose rows are not those of the first."""
    found = []
    for run in runs[1:]:
        ours, theirs = problems(runs[0]), problems(run)
        if ours != theirs:
            shared = (ours & theirs).total()
            found.append(
                f"{run.letter} has {counted(theirs.total(), 'row')}, of which {runs[0].letter}'s "
                f"{ours.total():,} hold {shared:,} with the same id, prompt and gold answer: the two are not comparable"
            )
    return found


def problems(run: Run) -> Counter[tuple[str, str, str]]:
    return Counter((row.id, row.prompt, str(row.gold)) for row in run.rows)
