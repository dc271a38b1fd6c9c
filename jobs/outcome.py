"""What the user sees when a job has ended: one table of numbers, what to look out for, and the first answers."""

from typing import Any

from cluster.config import JobConfig
from cluster.summary import Summary
from cluster.wording import counted

SHOWN = 100  # characters of a text


def outcome_text(summary: Summary, first: list[dict[str, Any]], config: JobConfig) -> str:
    """first: rows of the result."""
    total, run, prefix = summary.total, summary.run, config.output.column_prefix
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(total.finish_reasons.items()))
    fixed = ", ".join(f"{count:,} {rule}" for rule, count in sorted(total.commits.items()))
    rows = [
        (
            "rows",
            f"{total.rows:,} from {counted(summary.input_rows, 'input row')} in {counted(summary.shards, 'shard')}",
        ),
        ("finished by", reasons or "nothing to do"),
        (
            "tokens",
            f"{counted(total.answer_tokens, 'answer token')} after {counted(total.input_tokens, 'prompt token')}",
        ),
        ("forwards", f"{total.forwards:,}, of which {total.full_passes:,} full passes"),
        ("fixed by", fixed or "nothing"),
        ("tokens/forward", f"{summary.tokens_per_forward:.2f}"),
        ("computed/token", f"{summary.rows_computed_per_token:,.1f} positions"),
        (
            "tokens/second",
            f"{run.tokens_per_second:,.0f} without loading, {run.tokens_per_second_with_load:,.0f} with it "
            f"({run.answer_tokens:,} tokens in {run.seconds:.1f} s, {run.load_seconds:.1f} s of them to load)"
            if run.answer_tokens
            else "this run has decoded nothing",
        ),
        ("deciding", f"{summary.decision_share:.1%} of the time was spent in policies"),
        ("cost", summary.spent.in_words(total.answer_tokens, config.cluster.price_per_hour)),
        *runs_row(summary),
        ("workers lost", f"{run.workers_lost}"),
        ("output", summary.output),
    ]
    lines = [f"  {name:<15} {value}" for name, value in rows]
    lines += [f"warning: {sentence}" for sentence in summary.warnings]
    if total.errors:
        lines.append(f"{counted(total.errors, 'row')} with an error; column {prefix}error says why")
    for row in first:
        answer, prompt = row[f"{prefix}generated_text"], row.get(config.input.prompt_column or "")
        lines += ["", f"  {row[f'{prefix}request_id']}"]
        if prompt is not None:
            lines.append(f"    prompt  {clipped(str(prompt))}")
        shown = f"error   {row[f'{prefix}error']}" if answer is None else f"answer  {clipped(answer)}"
        lines.append(f"    {shown}")
    return "\n".join(lines)


def runs_row(summary: Summary) -> list[tuple[str, str]]:
    """Nothing to say of a job that was done in one go."""
    spent, run = summary.spent, summary.run
    if spent.runs < 2:
        return []
    killed = f"; {counted(spent.untold, 'run')} ended without an account" if spent.untold else ""
    last = f"the last did {counted(run.shards, 'shard')} with {counted(run.rows, 'row')}"
    return [("runs", f"{spent.runs}, of which {last}{killed}")]


def clipped(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= SHOWN else one_line[: SHOWN - 3] + "..."
