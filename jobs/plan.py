"""Print what a job would do and take, without starting a worker or writing anything.

python jobs/plan.py --config job.yaml [--name value ...]        the same as jobs/generate.py ... --plan
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.forecast import Forecast, forecast
from cluster.job import Job, Standing
from cluster.memory import DEVICES
from cluster.prospect import Prospect, examine
from cluster.wording import counted
from dllm_core.config import DecodeConfig
from dllm_core.models.load import ModelDescription
from jobs.cli import OK, guarded, parse, say
from jobs.place import placed, submitted

BARS, BINS = 40, 10
REASONS = 8  # shown, at most


def plan_text(found: Forecast, standing: Standing | None = None, warnings: Sequence[tuple[str, str]] = ()) -> str:
    """standing: how far the job is; warnings: kind and sentence."""
    resumed = "  (begun already: what is finished is kept)" if found.begun else ""
    kept = f", {size(found.policy_bytes)} kept by policies" if found.policy_bytes else ""
    per_row = f", {found.samples} answers each" if found.samples > 1 else ""
    lines = [
        f"input    {counted(found.rows, 'row')} in {counted(found.files, 'file')}{per_row}",
        f"shards   {found.shards:,} on {counted(found.workers, 'worker')}{resumed}",
        *([f"done     {standing_text(standing)}"] if found.begun and standing is not None else []),
        f"slots    {found.slots} of up to {counted(found.width, 'position')}; {found.positions:,} in all",
        f"decode   {method_text(found.decode)}",
        f"model    {model_text(found.model, found.dtype, found.packing)}",
        f"memory   per worker {size(found.weight_bytes)} weights, {size(found.kv_bytes)} keys and values, "
        f"{size(found.logit_bytes)} logits{kept}",
        f"fits     {fits_text(found)}",
        f"if not   {less_text(found)}",
    ]
    if found.sampled:
        failed = len(found.too_long) + sum(found.refused.values())
        of = "all rows" if found.sampled == found.rows else f"a sample of {counted(found.sampled, 'row')}"
        without = found.sampled - len(found.lengths)
        of += f", without {counted(without, 'row')} that cannot be read" if without else ""
        lines += ["", f"prompt tokens of {of}:", *histogram(found.lengths), ""]
        lines.append(
            f"{failed:,} of {counted(found.sampled, 'row')} looked at cannot be decoded and will be error rows"
        )
        lines += refusals(found)
    lines += [f"warning: {sentence}" for _, sentence in warnings]
    return "\n".join(lines)


def standing_text(found: Standing) -> str:
    done = f"{found.done:,} of {counted(found.shards, 'shard')}"
    if found.again:
        done += f"; {counted(found.again_rows, 'row')} with an error in {found.again:,} others to be decoded again"
    elif found.finished:
        done = f"all of it ({counted(found.shards, 'shard')}): a run would only report on it"
    if found.errors:
        done += f"; {counted(found.errors, 'row')} with an error, which --retry-errors decodes again"
    return done


def model_text(model: ModelDescription, dtype: str, packing: str = "dtype") -> str:
    """What was recognised in the model's folder."""
    shape, ends = model.shape, ", ".join(map(str, model.eos_ids))
    millions, experts = model.parameters / 1e6, ""
    parameters = f"{millions / 1000:.3g} B" if millions >= 1000 else f"{millions:.3g} M"
    if model.experts is not None:
        experts = f", {counted(model.experts.count, 'expert')} of which a row passes {model.experts.chosen}"
    sees = f"sees blocks of {shape.causal}" if shape.causal else "sees both ways"
    says = "; a row says the next position" if model.shift else ""
    packed = "" if packing == "dtype" else f", of which {100 * model.packable // model.parameters} % in {packing}"
    template = "a chat template" if model.has_template else "no chat template: input.mode raw"
    return (
        f"{model.family}: {counted(shape.layers, 'layer')} of {shape.hidden:,}, {counted(shape.heads, 'head')} on "
        f"{shape.kv_heads:,}{experts}, {shape.vocab:,} ids; {parameters} parameters in {dtype}{packed}; "
        f"{sees}{says}; mask {model.mask_id}, ends {ends}; {template}"
    )


def fits_text(found: Forecast) -> str:
    counts = ", ".join(f"{found.memory.slots_on(gib)} on {gib} GiB" for gib in DEVICES)
    return f"slots of {counted(found.width, 'position')}, {size(found.memory.slot)} each: {counts}"


def less_text(found: Forecast) -> str:
    """What happens where the estimate was too low."""
    least = 2 if found.decode.guidance > 0 else 1
    if found.slots <= least:
        return "a row that memory does not hold becomes an error row, and the others go on"
    return (
        f"a worker whose memory runs out goes on with half of its {counted(found.slots, 'slot')}, down to {least}; "
        "rows begin anew with the same answers, and one that fits not even alone becomes an error row"
    )


def method_text(decode: DecodeConfig) -> str:
    """The three policies, each with the settings that are not its defaults, and how much is decoded."""
    parts = []
    for name in ("cache", "commit", "frontier"):
        policy = getattr(decode, name)
        usual = type(policy).model_fields
        changed = {
            setting: value
            for setting, value in policy
            if value != usual[setting].get_default(call_default_factory=True)
        }
        settings = ", ".join(f"{setting} {value}" for setting, value in changed.items())
        parts.append(f"{name} {policy.kind}" + (f" ({settings})" if settings else ""))
    tokens, block = counted(decode.max_new_tokens, "token"), counted(decode.block_length, "position")
    return f"{', '.join(parts)}; {tokens} in blocks of {block}"


def refusals(found: Forecast) -> list[str]:
    """Why rows will be error rows, the commonest first; those that are too long are one reason."""
    reasons = list(found.refused.items())
    if found.too_long:
        longest = f"the longest prompt has {counted(max(found.too_long), 'token')}, a slot holds {found.width:,}"
        reasons.append((f"too long with what is to be generated; {longest}", len(found.too_long)))
    reasons.sort(key=lambda reason: -reason[1])
    lines = [f"  {count:>6,}  {reason}" for reason, count in reasons[:REASONS]]
    if rest := reasons[REASONS:]:
        lines.append(f"  {sum(count for _, count in rest):>6,}  of {counted(len(rest), 'other reason')}, not shown")
    return lines


def histogram(lengths: list[int]) -> list[str]:
    if not lengths:
        return ["  none could be read"]
    low, high = min(lengths), max(lengths)
    step = max(1, -(-(high - low + 1) // BINS))
    counts = [0] * (-(-(high - low + 1) // step))
    for length in lengths:
        counts[(length - low) // step] += 1
    top = max(counts)
    return [
        f"  {low + i * step:>6} to {low + (i + 1) * step - 1:<6} {count:>6} {'#' * -(-BARS * count // top)}".rstrip()
        for i, count in enumerate(counts)
    ]


def size(number: int) -> str:
    for unit in ("B", "kiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024  # type: ignore[assignment]
    return f"{number:.3g} {unit}"


def shown(prospect: Prospect, retry_errors: bool) -> str:
    """The plan of a run of this command."""
    return plan_text(forecast(prospect), Job(prospect, retry_errors=retry_errors).standing(), prospect.warnings)


def main(words: Sequence[str]) -> int:
    asked = parse(words, "jobs/plan.py", "Show what a job would do and take.", plan=True)
    say(shown(examine(placed(asked.config, submitted(os.environ))), asked.retry_errors))
    return OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
