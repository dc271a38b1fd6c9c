"""How many builds of each kernel a worker makes while its batches change: what a first call of each shape waits for.

    python -m benchmarks.variants                     # needs Triton and no GPU; nothing is built
    python -m benchmarks.variants "[[1, 32, 500]]"    # for batches of one's own: slots, rows of each, how far they see

Every launch is asked for as Triton asks its cache: by types, by compile-time choices, and by what it takes to be
special of a number (1, a multiple of 16) or of a pointer. One model, one canvas and one set of policies are held fixed;
what varies is what varies from step to step: slots, rows of a slot, how far they see, rows of the head. A kernel whose
count grows with the batches would be built anew in the middle of a job, seconds at a time.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when kernels are imported; nothing can be asked for under it

import torch

from benchmarks.builds import as_if_on
from dllm_core.controller.network import Controller
from kernels import (
    attention_drift,
    attention_probs,
    cluster,
    controller_step,
    course_step,
    linear_signals,
    moe,
    nvfp4,
    ragged_attention,
    scatter_kv,
    token_signals,
)
from kernels.kalman import Noise

MULTIPROCESSORS = 132  # of an H100 or H200
HEADS, GROUPS, D, T, WIDTH, VOCAB, EXPERTS = 28, 4, 128, 512, 256, 126464, 64  # Dream's heads, LLaDA's vocabulary
BATCHES = [(1, 1, 17), (1, 32, 500), (2, 33, 511), (3, 96, 96), (5, 7, 160), (8, 32, 320), (16, 16, 512), (33, 3, 64)]


def launches(slots: int, rows: int, reach: int, dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Every kernel once, for so many slots, each with so many rows that see so far; a step at each `next`."""
    n = slots * rows
    q = torch.zeros(n, HEADS, D, dtype=dtype)
    k = torch.zeros(40 * T + 1, GROUPS, D, dtype=dtype)
    runs = [(s * rows, (s + 1) * rows, s * T, reach) for s in range(slots)]
    index, phases = torch.arange(n), torch.zeros(2, T, D // 2)
    yield ragged_attention.ragged_attention_triton(q, k, k, runs)
    yield attention_probs.mean_attention_triton(q, k, runs, T)
    yield attention_probs.attention_received_triton(q, k, runs)
    first, far = torch.arange(slots) * T, torch.full((slots,), reach)
    yield attention_probs.attention_probs_triton(q[:slots], k, first, far, T, None, phases)
    before = torch.zeros(n, HEADS, T)
    yield attention_drift.attention_drift_triton(q, k, runs, before, index, None, phases)
    yield scatter_kv.scatter_kv_triton(q[:, :GROUPS], q[:, :GROUPS], phases, index % T, index, k, k.clone())
    h, head = torch.zeros(n, WIDTH, dtype=dtype), torch.zeros(VOCAB, WIDTH, dtype=dtype)
    yield linear_signals.linear_signals_triton(h, head, torch.zeros(VOCAB, dtype=torch.bool))
    yield token_signals.token_signals_triton(torch.zeros(n, VOCAB, dtype=dtype).expand(n, -1))
    wide = h.float().view(slots, rows, WIDTH)
    part = torch.zeros(slots, rows, dtype=torch.long)
    yield cluster.assigned_triton(wide, wide[:, :1].expand(-1, 8, -1).contiguous(), part, part.new_zeros(slots, 8))
    yield cluster.segment_mean_triton(wide, part, 8)
    codes, scales = nvfp4.quantise_triton(h.float(), torch.ones(n))
    yield nvfp4.dequantise_onto_triton(codes, scales, torch.ones(n), torch.zeros(8, WIDTH), index % 8)
    expert = index[:, None] % EXPERTS + torch.arange(2)
    gate = torch.zeros(EXPERTS, 64, WIDTH, dtype=dtype)
    yield moe.grouped_mlp_triton(h, expert % EXPERTS, torch.ones(n, 2), gate, gate, gate.mT.contiguous())
    network = Controller("lstm", 4, 12, 2).double().requires_grad_(False)
    x, state = torch.zeros(n, 4, dtype=torch.float64), network.start(n)
    recurrence = network.recurrence
    yield controller_step.controller_step_triton(x, state, x[:, 0], index > 0, recurrence, recurrence.packed())
    noise, unrest = Noise(0.25, 0.01, 0.04, 1.0), course_step.Unrest(4, 2, 3, 4.0, 2)
    course = course_step.Course.empty((n,), noise, 4, torch.device("cpu"))
    rules = course_step.Rules.of(noise, unrest, torch.device("cpu"))
    yield course_step.course_step_triton(course, x[:, 0], index, index > 0, rules)


def variants(batches: list[tuple[int, int, int]] = BATCHES, arch: int = 90) -> dict[str, int]:
    """Kernel -> builds that these batches ask for together."""
    from triton.runtime.jit import JITFunction

    as_if_on(arch)
    asked: dict[str, set[str]] = defaultdict(set)
    compile_, run = JITFunction._do_compile, JITFunction.run
    counted = (token_signals, ragged_attention)
    had = [module.multiprocessors for module in counted]

    def note(self: Any, key: str, *_: Any) -> None:
        asked[self.__name__].add(key)

    JITFunction._do_compile = note
    JITFunction.run = lambda self, *args, grid, warmup, **more: run(self, *args, grid=grid, warmup=True, **more)
    for module in counted:
        module.multiprocessors = lambda _: MULTIPROCESSORS
    try:
        with torch.inference_mode():
            for batch in batches:
                for _ in launches(*batch):
                    pass
    finally:
        JITFunction._do_compile, JITFunction.run = compile_, run
        for module, own in zip(counted, had, strict=True):
            module.multiprocessors = own
    return {name: len(keys) for name, keys in asked.items()}


if __name__ == "__main__":
    counts = variants([tuple(batch) for batch in json.loads(sys.argv[1])] if sys.argv[1:] else BATCHES)
    print(json.dumps(counts, indent=1))
