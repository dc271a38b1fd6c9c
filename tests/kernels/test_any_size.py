"""Every kernel against its twin in fp64 at sizes that nobody chose: no rows, one, one key, tiles that are not full.

Fresh memory is full of NaN (`conftest.py`), so what a kernel leaves unwritten shows. Rows are in fp32 or bf16, some
hold NaN, and tensors may be views whose rows lie apart. What a kernel cannot take it names, in each kernel's own tests.
Examples that fail are not made smaller: that takes minutes in the interpreter.
"""

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllm_core.controller.network import Controller
from kernels.attention_drift import attention_drift_torch, attention_drift_triton
from kernels.attention_probs import (
    attention_probs_torch,
    attention_probs_triton,
    attention_received_torch,
    attention_received_triton,
    mean_attention_torch,
    mean_attention_triton,
)
from kernels.cluster import EQUAL, assigned_torch, assigned_triton, segment_mean_torch, segment_mean_triton
from kernels.controller_step import controller_step_reference, controller_step_triton
from kernels.course_step import Course, Rules, Unrest, course_step_torch, course_step_triton
from kernels.kalman import Noise
from kernels.linear_signals import linear_signals_triton
from kernels.moe import grouped_mlp_reference, grouped_mlp_triton
from kernels.nvfp4 import dequantise_onto_torch, dequantise_onto_triton, quantise_torch, quantise_triton
from kernels.ragged_attention import ragged_attention_reference, ragged_attention_triton
from kernels.scatter_kv import scatter_kv_torch, scatter_kv_triton
from kernels.token_signals import token_signals_torch, token_signals_triton
from tests.kernels.cases import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
NAN, INF = float("nan"), float("inf")
FAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
PHASES = (Phase.explicit, Phase.generate)
seeds, types = st.integers(0, 10**6), st.sampled_from([torch.float32, torch.bfloat16])


def draws(generator: torch.Generator, *sizes: int, dtype=torch.float32, apart: bool = False) -> Tensor:
    """Standard normal numbers; apart: the rows lie further from each other than they are long."""
    x = torch.randn(*sizes[:-1], sizes[-1] + 5 * apart, generator=generator)
    return x.to(DEVICE, dtype)[..., : sizes[-1]]


def near(got: Tensor, want: Tensor, far: float) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=far, rtol=far, equal_nan=True)


@settings(max_examples=10, phases=PHASES)
@given(
    seeds, types, st.booleans(), st.booleans(), st.sampled_from([(7, 1, 64), (2, 2, 128), (2, 1, 24)]),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 18)), max_size=3),
)  # fmt: skip
@example(71155, torch.float32, False, False, (7, 1, 64), [(1, 1)])
def test_attention_and_what_looks_at_it(seed, dtype, apart, keyed, heads, slots):
    """Slots of (reach, rows); the last row of all is NaN or, with keys, may look at nothing."""
    (heads, groups, d), generator = heads, torch.Generator().manual_seed(seed)
    runs, start, cell = [], 0, 2
    for reach, rows in slots:
        runs.append((start, start + rows, cell, reach))
        start, cell = start + rows, cell + reach + 1
    q = draws(generator, start, heads, d, dtype=dtype, apart=apart)
    k, v = (draws(generator, cell + 1, groups, d, dtype=dtype, apart=apart) for _ in range(2))
    first, reach = (torch.tensor([run[i] for run in runs for _ in range(run[1] - run[0])], dtype=torch.long,
                                 device=DEVICE) for i in (2, 3))  # fmt: skip
    width, keys = 43, None
    if keyed:  # rows of one run look at the same; a whole tile may be left out, or all there is
        keys = torch.ones(start, width, dtype=torch.bool, device=DEVICE)
        for a, b, *_ in runs:
            keys[a:b] = torch.rand(width, generator=generator).to(DEVICE) < 0.6
            keys[a:b, : 16 * int(torch.randint(3, (1,), generator=generator))] = False
    elif start:
        q[-1] = NAN
    far, wide = FAR[dtype], (q.double(), k.double())
    want = attention_probs_torch(*wide, first, reach, width, keys)
    near(ragged_attention_triton(q, k, v, runs, keys, splits=1 + seed % 2),
         ragged_attention_reference(*wide, v.double(), first, reach, keys), far)  # fmt: skip
    few = slice(start - 2, None) if start > 2 else slice(None)
    some = None if keys is None else keys[few]
    near(attention_probs_triton(q[few], k, first[few], reach[few], width, some, block_keys=16), want[few], 2e-5)
    near(mean_attention_triton(q, k, runs, width, keys, 16, 16), mean_attention_torch(*wide, runs, width, keys), 2e-5)
    near(attention_received_triton(q, k, runs, keys, 16, 16), attention_received_torch(*wide, runs, keys), 1e-4)
    before = torch.randn(start, heads, width, generator=generator).log_softmax(-1).to(DEVICE)
    kept, at = before.clone(), torch.arange(start, device=DEVICE).flip(0)
    near(attention_drift_triton(q, k, runs, before, at, keys), attention_drift_torch(*wide, runs, kept, at, keys), 1e-4)
    lost = kept.isnan().flatten(1).any(1)  # what stands past the reach of a row that is NaN nobody promised
    assert torch.equal(before.isnan().flatten(1).any(1), lost)
    near(before[~lost], kept[~lost], 2e-4)


@settings(max_examples=20, phases=PHASES)
@given(seeds, types, st.booleans(), st.integers(0, 4), st.integers(2, 300), st.integers(1, 5), st.booleans())
def test_signals_of_logits(seed, dtype, apart, rows, vocab, parts, broken):
    logits = draws(torch.Generator().manual_seed(seed), rows, vocab, dtype=dtype, apart=apart) * 4
    logits[:, seed % vocab :][:, :64] = -INF  # a tile that nobody may take
    logits[:, 0] = 0.5
    if broken and rows:
        logits[-1, vocab // 2] = NAN
    got = token_signals_triton(logits, margin=True, parts=parts, block=32)
    want = token_signals_torch(logits, margin=True)
    whole = ~want.confidence.isnan()
    assert torch.equal(got.token[whole], want.token[whole])
    for fast, slow in zip(got[1:], want[1:], strict=True):
        near(fast[whole], slow[whole], 1e-5)
    assert torch.equal(got.confidence.isnan(), ~whole)


@settings(max_examples=12, phases=PHASES)
@given(seeds, types, st.booleans(), st.integers(0, 20), st.integers(1, 70), st.integers(2, 150), st.booleans())
def test_signals_of_hidden_rows(seed, dtype, apart, rows, width, vocab, broken):
    generator = torch.Generator().manual_seed(seed)
    h = draws(generator, rows, width, dtype=dtype, apart=apart)
    weight = draws(generator, vocab, width, dtype=dtype, apart=apart)
    blocked = torch.arange(vocab, device=DEVICE) // 32 == seed % 3  # a whole tile, perhaps all there is
    blocked[0] = False
    if broken and rows:
        h[-1, 0] = NAN
    got = linear_signals_triton(h, weight, blocked, margin=True, block_vocab=32)
    logits = (h.double() @ weight.double().T).masked_fill(blocked, -INF)
    p = logits.softmax(-1)
    confidence = p.max(-1).values
    near(got.confidence, confidence, 1e-4)
    near(got.entropy, torch.special.entr(p).sum(-1), 1e-3)
    near(got.log_sum, logits.logsumexp(-1), 1e-3)
    whole = ~confidence.isnan()
    near(p.gather(1, got.token[:, None])[whole, 0], confidence[whole], 1e-4)  # where two are nearly equal, either


@settings(max_examples=15, phases=PHASES)
@given(seeds, types, st.booleans(), st.integers(0, 5), st.sampled_from([1, 4, 7]), st.sampled_from([2, 6, 64, 128]))
def test_keys_and_values_into_their_cells(seed, dtype, apart, rows, heads, d):
    generator = torch.Generator().manual_seed(seed)
    k, v = (draws(generator, rows, heads, d, dtype=dtype, apart=apart) for _ in range(2))
    if rows:
        k[-1], v[-1] = NAN, NAN
    phases = draws(generator, 2, 9, d // 2, apart=apart)
    position = torch.randint(9, (rows,), generator=generator).to(DEVICE)
    cell = torch.randperm(8, generator=generator)[:rows].to(DEVICE)
    stores = [draws(generator, 8, heads, d, dtype=dtype, apart=apart) for _ in range(2)]
    want = [store.clone() for store in stores]
    scatter_kv_triton(k, v, phases, position, cell, *stores)
    scatter_kv_torch(k, v, phases, position, cell, *want)
    for got, right in zip(stores, want, strict=True):
        near(got, right, 1e-6 if dtype == torch.float32 else 2e-2)  # the interpreter cuts where bf16 is rounded
    untouched = torch.ones(8, dtype=torch.bool, device=DEVICE).index_fill(0, cell, False)
    assert torch.equal(stores[0][untouched], want[0][untouched])
    assert torch.equal(stores[1].isnan(), want[1].isnan())


@settings(max_examples=12, phases=PHASES)
@given(seeds, st.booleans(), st.integers(0, 3), st.integers(1, 40), st.integers(1, 80), st.integers(1, 17))
def test_clusters(seed, apart, slots, rows, width, clusters):
    generator = torch.Generator().manual_seed(seed)
    h = draws(generator, slots, rows, width, apart=apart)
    unit, mean = torch.nn.functional.normalize(h, dim=-1), draws(generator, slots, clusters, width, apart=apart)
    part = torch.randint(-1, 2, (slots, rows), generator=generator).to(DEVICE)
    owner = torch.randint(2, (slots, clusters), generator=generator).to(DEVICE)
    label, likeness = assigned_triton(unit, mean, part, owner)
    nearest, most = assigned_torch(unit, mean, part, owner)
    near(likeness * EQUAL, most * EQUAL, 1e-5)
    near_enough = (unit @ torch.nn.functional.normalize(mean, dim=-1).mT).gather(2, label[..., None])[..., 0]
    told = most > -INF
    near(near_enough[told], (most * EQUAL)[told], 1e-5)  # where two are equal to rounding, either
    assert torch.equal(label[~told], nearest[~told])
    for got, want in zip(segment_mean_triton(h, part, clusters), segment_mean_torch(h, part, clusters), strict=True):
        near(got, want, 1e-5)


@settings(max_examples=12, phases=PHASES)
@given(seeds, types, st.booleans(), st.integers(0, 3), st.integers(1, 5), st.booleans())
def test_four_bits(seed, dtype, apart, rows, blocks, broken):
    generator = torch.Generator().manual_seed(seed)
    x = draws(generator, rows, 16 * blocks, dtype=dtype, apart=apart)
    if broken and rows:
        x[-1, 3] = NAN
    scale = torch.rand(rows, generator=generator).add(0.01).to(DEVICE) / 1000
    got, want = quantise_triton(x, scale, blocks=2), quantise_torch(x, scale)
    assert all(torch.equal(fast, slow) for fast, slow in zip(got, want, strict=True))
    centre, own = draws(generator, 3, 16 * blocks, apart=apart), torch.arange(rows, device=DEVICE) % 3
    restored = dequantise_onto_triton(*got, scale, centre, own, blocks=2)
    assert torch.equal(restored.nan_to_num(9.0), dequantise_onto_torch(*want, scale, centre, own).nan_to_num(9.0))


@settings(max_examples=8, phases=PHASES)
@given(seeds, types, st.booleans(), st.integers(0, 18), st.integers(1, 3), st.integers(3, 5), st.integers(1, 40))
def test_experts(seed, dtype, apart, rows, chosen, experts, width):
    generator = torch.Generator().manual_seed(seed)
    x = draws(generator, rows, width, dtype=dtype, apart=apart)
    if rows:
        x[-1, 0] = NAN
    expert = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :chosen].to(DEVICE)
    weight = torch.rand(rows, chosen, generator=generator).to(DEVICE)
    gate, up = (draws(generator, experts, 9, width, dtype=dtype, apart=apart) * width**-0.5 for _ in range(2))
    down = draws(generator, experts, width, 9, dtype=dtype, apart=apart) / 3
    got = grouped_mlp_triton(x, expert, weight, gate, up, down, block_rows=16, block_out=16, block_in=16)
    wide = (part.double() for part in (x, weight, gate, up, down))
    x64, weight64, *matrices = wide
    near(got, grouped_mlp_reference(x64, expert, weight64, *matrices), 3 * FAR[dtype])


@settings(max_examples=8, phases=PHASES)
@given(seeds, st.sampled_from(["lstm", "gru"]), st.integers(0, 18), st.integers(1, 5), st.integers(1, 17),
       st.integers(1, 3))  # fmt: skip
def test_a_controllers_step(seed, cell, rows, inputs, hidden, layers):
    generator = torch.Generator().manual_seed(seed)
    network = Controller(cell, inputs, hidden, layers).double().to(DEVICE).requires_grad_(False).recurrence
    wide = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(inputs, rows, **wide).to(DEVICE).T  # columns for rows
    state = torch.randn(layers, rows, hidden * (2 if cell == "lstm" else 1), **wide).to(DEVICE)
    gate, fresh = torch.rand(rows, **wide).to(DEVICE), (torch.rand(rows, generator=generator) < 0.6).to(DEVICE)
    if rows:
        x[-1] = NAN
    got = controller_step_triton(x, state, gate, fresh, network, network.packed())
    for fast, slow in zip(got, controller_step_reference(x, state, gate, fresh, network), strict=True):
        near(fast, slow, 1e-12)


@settings(max_examples=8, phases=PHASES)
@given(seeds, st.lists(st.integers(0, 7), min_size=1, max_size=3), st.integers(1, 5))
def test_a_courses_step(seed, places, memory):
    generator = torch.Generator().manual_seed(seed)
    noise = Noise(0.25, 0.01, 0.04, 1.0)
    rules = Rules.of(noise, Unrest(memory, 1, 1, 4.0, 2), torch.device(DEVICE))
    fast = slow = Course.empty(tuple(places), noise, memory, torch.device(DEVICE))
    for _ in range(3):
        y = torch.randn(*places, generator=generator, dtype=torch.float64).to(DEVICE)
        token = torch.randint(2, tuple(places), generator=generator).to(DEVICE)
        seen = (torch.rand(*places, generator=generator) < 0.7).to(DEVICE)
        fast, slow = course_step_triton(fast, y, token, seen, rules), course_step_torch(slow, y, token, seen, rules)
    for got, want in zip((*vars_of(fast), *fast[1:]), (*vars_of(slow), *slow[1:]), strict=True):
        near(got, want, 1e-12)


def vars_of(course: Course) -> tuple[Tensor, ...]:
    trend = course.trend
    return trend.level, trend.velocity, trend.p11, trend.p12, trend.p22
