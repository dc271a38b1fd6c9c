"""Each Triton kernel beside its torch twin, at the sizes of LLaDA-8B and, for grouped heads, Dream-7B.

A case says what must be read and written at least and how many operations its matrix products take: its roofline.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_core.controller.network import Controller
from kernels import attention_drift as drift
from kernels import attention_probs as probs
from kernels import (
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
from kernels.tiles import Run
from kernels.turned_back import turned_back

Outputs = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Case:
    name: str
    kernel: Callable[[], Outputs]
    twin: Callable[[], Outputs]
    bytes: float  # that must be read and written at least
    products: float = 0.0  # floating point operations of the matrix products
    tolerance: float = 2e-2  # bf16 operands
    exact: Callable[[], Outputs] | None = None  # the twin on the same numbers in fp64; None: `twin` is exact enough


@dataclass(frozen=True)
class Sizes:
    rows: int = 1024  # of logits
    slots: int = 32
    length: int = 1024
    block: int = 32
    vocab: int = 126464
    width: int = 4096
    experts: int = 64  # LLaDA-MoE-7B-A1B's, as are the next two
    expert_width: int = 2048
    expert_inner: int = 1024
    heads: tuple[tuple[int, int], ...] = ((32, 32), (28, 4))  # query heads, key/value heads
    d: int = 128


TINY = Sizes(5, 2, 24, 4, 100, 64, experts=3, expert_width=24, expert_inner=16, heads=((2, 2), (7, 1)), d=16)


def signals_fp64(logits: Tensor) -> Outputs:
    """Confidence, entropy, margin and log sum of each row, in fp64."""
    p = logits.double().softmax(-1)
    first, second = p.topk(2, -1).values.unbind(-1)
    return first, torch.special.entr(p).sum(-1), first - second, logits.double().logsumexp(-1)


def wide(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]


def cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    yield from signal_cases(sizes, device, dtype)
    for heads, groups in sizes.heads:
        for rows in (sizes.block, sizes.length):
            yield from attention_cases(sizes, device, dtype, heads, groups, rows, sizes.d)
    yield from attention_cases(sizes, device, dtype, *sizes.heads[-1], sizes.block, sizes.d, keyed=True)
    yield from store_cases(sizes, device, dtype, sizes.d)
    yield from cluster_cases(sizes, device)
    yield from controller_cases(sizes, device)
    yield from moe_cases(sizes, device, dtype)


def signal_cases(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Case]:
    n = sizes.rows
    logits = torch.randn(n, sizes.vocab, device=device).mul_(4).to(dtype)
    logits[:, 5::1000] = float("-inf")
    index, one = torch.arange(n, device=device), torch.ones(n, device=device)
    draw = token_signals.Draw(one, one, index, index, index * 0)
    yield Case(
        "token_signals",
        lambda: token_signals.token_signals_triton(logits, margin=True)[1:],
        lambda: token_signals.token_signals_torch(logits, margin=True)[1:],
        logits.nbytes,
        tolerance=1e-4,
        exact=lambda: signals_fp64(logits),
    )
    yield Case(
        "token_signals, drawn",
        lambda: token_signals.token_signals_triton(logits, draw)[1:],
        lambda: token_signals.token_signals_torch(logits, draw)[1:],
        logits.nbytes,
        tolerance=1e-4,
    )
    h = torch.randn(n, sizes.width, device=device).to(dtype)
    weight = torch.randn(sizes.vocab, sizes.width, device=device).mul_(sizes.width**-0.5).to(dtype)
    blocked = torch.zeros(sizes.vocab, dtype=torch.bool, device=device)
    blocked[5::1000] = True
    yield Case(
        "linear_signals",
        lambda: linear_signals.linear_signals_triton(h, weight, blocked, margin=True)[1:],
        lambda: linear_signals.linear_signals_reference(h, weight, blocked, margin=True)[1:],
        weight.nbytes + h.nbytes,
        2 * n * weight.numel(),
        tolerance=1e-3,
        exact=lambda: signals_fp64((h.double() @ weight.double().T).masked_fill(blocked, float("-inf"))),
    )
    yield Case(
        "linear_signals, drawn",
        lambda: linear_signals.linear_signals_triton(h, weight, blocked, draw)[1:3],
        lambda: linear_signals.linear_signals_reference(h, weight, blocked, draw)[1:3],
        weight.nbytes + h.nbytes,
        2 * n * weight.numel(),
        tolerance=1e-3,
    )


def attention_cases(
    sizes: Sizes, device: str, dtype: torch.dtype, heads: int, groups: int, rows: int, d: int = 128, keyed: bool = False
) -> Iterator[Case]:
    """keyed: each row has a plane of the positions that it may look at."""
    slots, length = sizes.slots, sizes.length
    q = torch.randn(slots * rows, heads, d, device=device).to(dtype)
    k, v = (torch.randn(slots * length + 1, groups, d, device=device).to(dtype) for _ in range(2))
    runs = [(s * rows, (s + 1) * rows, s * length, length) for s in range(slots)]
    keys = torch.arange(length, device=device).expand(len(q), -1) % 3 > 0 if keyed else None
    sized = f"{slots} x {rows} rows, {heads} heads on {groups}, d {d}{', keyed' if keyed else ''}"
    scored = 2.0 * q.numel() * length
    yield Case(
        f"ragged_attention, {sized}",
        lambda: (ragged_attention.ragged_attention_triton(q, k, v, runs, keys),),
        lambda: (ragged_attention.ragged_attention_torch(q, k, v, runs, keys),),
        2 * q.nbytes + k.nbytes + v.nbytes,
        2 * scored,
        exact=lambda: (ragged_attention.ragged_attention_torch(*wide(q, k, v), runs, keys),),
    )
    yield Case(
        f"mean_attention, {sized}",
        lambda: (probs.mean_attention_triton(q, k, runs, length, keys),),
        lambda: (probs.mean_attention_torch(q, k, runs, length, keys),),
        q.nbytes + k.nbytes + 4 * len(q) * length,
        2 * scored,
        exact=lambda: (probs.mean_attention_torch(*wide(q, k), runs, length, keys),),
    )
    yield Case(
        f"attention_received, {sized}",
        lambda: (probs.attention_received_triton(q, k, runs, keys),),
        lambda: (probs.attention_received_torch(q, k, runs, keys),),
        q.nbytes + k.nbytes,
        2 * scored,
        exact=lambda: (probs.attention_received_torch(*wide(q, k), runs, keys),),
    )
    if rows == sizes.block:
        first = torch.arange(slots, device=device) * length
        reach = torch.full_like(first, length)
        few = None if keys is None else keys[:slots]
        yield Case(
            f"ragged_attention in 2 splits, {sized}",
            lambda: (ragged_attention.ragged_attention_triton(q, k, v, runs, keys, splits=2),),
            lambda: (ragged_attention.ragged_attention_torch(q, k, v, runs, keys),),
            2 * q.nbytes + k.nbytes + v.nbytes,
            2 * scored,
            exact=lambda: (ragged_attention.ragged_attention_torch(*wide(q, k, v), runs, keys),),
        )
        yield Case(
            f"attention_probs, {sized.replace(f'{slots} x {rows}', str(slots))}",
            lambda: (probs.attention_probs_triton(q[:slots], k, first, reach, length, few),),
            lambda: (probs.attention_probs_torch(q[:slots], k, first, reach, length, few),),
            k.nbytes + 4 * slots * heads * length,
            exact=lambda: (probs.attention_probs_torch(*wide(q[:slots], k), first, reach, length, few),),
        )
        angle = torch.rand(length, d // 2, device=device) * 6.28
        phases = torch.stack([angle.cos(), angle.sin()])
        yield Case(
            f"attention_probs, keys turned back, {sized.replace(f'{slots} x {rows}', str(slots))}",
            lambda: (probs.attention_probs_triton(q[:slots], k, first, reach, length, few, phases),),
            lambda: (probs.attention_probs_torch(q[:slots], k, first, reach, length, few, phases),),
            k.nbytes + 4 * slots * heads * length,
            exact=lambda: (probs.attention_probs_torch(*bare(q[:slots], k, phases, runs), first, reach, length, few),),
        )
        before = torch.randn(len(q), heads, length, device=device).log_softmax(-1)
        at, past, origin = torch.arange(len(q), device=device), before.clone(), before.clone()
        yield Case(
            f"attention_drift, {sized}",
            lambda: (drift.attention_drift_triton(q, k, runs, before, at, keys).float(),),
            lambda: (drift.attention_drift_torch(q, k, runs, past, at, keys).float(),),
            q.nbytes + k.nbytes + 2 * before.nbytes,
            2 * scored,
            tolerance=1e-3,
            exact=lambda: (drift.attention_drift_torch(*wide(q, k), runs, origin.clone(), at, keys),),
        )
        held, kept = origin.clone(), origin.clone()
        yield Case(
            f"attention_drift, keys turned back, {sized}",
            lambda: (drift.attention_drift_triton(q, k, runs, held, at, keys, phases),),
            lambda: (drift.attention_drift_torch(q, k, runs, kept, at, keys, phases=phases),),
            q.nbytes + k.nbytes + 2 * before.nbytes,
            2 * scored,
            exact=lambda: (drift.attention_drift_torch(*bare(q, k, phases, runs), runs, origin.clone(), at, keys),),
        )


def bare(q: Tensor, k: Tensor, phases: Tensor, runs: list[Run]) -> tuple[Tensor, Tensor]:
    """q, and k turned back by the place in its run, in fp64."""
    k = k.double()
    for *_, first, reach in runs:
        k[first : first + reach] = turned_back(k[first : first + reach], phases.double())
    return q.double(), k


def store_cases(sizes: Sizes, device: str, dtype: torch.dtype, d: int = 128) -> Iterator[Case]:
    n, heads = sizes.slots * sizes.block, sizes.heads[0][0]
    k, v = (torch.randn(n, heads, d, device=device).to(dtype) for _ in range(2))
    phases = torch.randn(2, sizes.length, d // 2, device=device)
    cell, position = torch.randperm(2 * n, device=device)[:n], torch.randint(0, sizes.length, (n,), device=device)
    stores = [torch.zeros(2 * n + 1, heads, d, dtype=dtype, device=device) for _ in range(4)]

    def scattered(way: Callable[..., None], own: list[Tensor], given: tuple[Tensor, ...] = (k, v, phases)) -> Outputs:
        way(*given, position, cell, *own)
        return tuple(own)

    yield Case(
        f"scatter_kv, {n} rows, {heads} heads, d {d}",
        lambda: scattered(scatter_kv.scatter_kv_triton, stores[:2]),
        lambda: scattered(scatter_kv.scatter_kv_torch, stores[2:]),
        2 * (k.nbytes + v.nbytes),
        exact=lambda: scattered(scatter_kv.scatter_kv_torch, wide(*stores[2:]), tuple(wide(k, v, phases))),
    )
    x = torch.randn(n, sizes.width, device=device)
    scale = torch.full((n,), 0.002, device=device)
    codes, block_scale = nvfp4.quantise_torch(x, scale)
    centre, own = torch.randn(8, sizes.width, device=device), torch.arange(n, device=device) % 8
    yield Case(
        "nvfp4.quantise",
        lambda: nvfp4.quantise_triton(x, scale),
        lambda: nvfp4.quantise_torch(x, scale),
        x.nbytes + codes.nbytes + block_scale.nbytes,
        tolerance=0.0,
    )
    yield Case(
        "nvfp4.dequantise_onto",
        lambda: (nvfp4.dequantise_onto_triton(codes, block_scale, scale, centre, own),),
        lambda: (nvfp4.dequantise_onto_torch(codes, block_scale, scale, centre, own),),
        x.nbytes + codes.nbytes + block_scale.nbytes,
        tolerance=0.0,
    )


def cluster_cases(sizes: Sizes, device: str) -> Iterator[Case]:
    clusters = 8
    rows = 3 * clusters * -(-sizes.block // clusters)
    h = torch.nn.functional.normalize(torch.randn(sizes.slots, rows, sizes.width, device=device), dim=-1)
    mean = h[:, :: rows // clusters][:, :clusters].contiguous()
    part = torch.zeros(sizes.slots, rows, dtype=torch.long, device=device)
    owner, label = part[:, :clusters].contiguous(), torch.arange(rows, device=device).expand_as(part) % clusters
    yield Case(
        "cluster.assigned",
        lambda: (cluster.assigned_triton(h, mean, part, owner)[1] * cluster.EQUAL,),
        lambda: (cluster.assigned_torch(h, mean, part, owner)[1] * cluster.EQUAL,),
        h.nbytes,
        tolerance=1e-5,
        exact=lambda: (cluster.assigned_torch(*wide(h, mean, part, owner))[1] * cluster.EQUAL,),
    )
    yield Case(
        "cluster.segment_mean",
        lambda: cluster.segment_mean_triton(h, label, clusters),
        lambda: cluster.segment_mean_torch(h, label, clusters),
        h.nbytes,
        tolerance=1e-5,
        exact=lambda: cluster.segment_mean_torch(h.double(), label, clusters),
    )


def controller_cases(sizes: Sizes, device: str) -> Iterator[Case]:
    n = sizes.slots * sizes.block
    for cell, hidden, layers in (("lstm", 12, 2), ("gru", 14, 2), ("lstm", 64, 1)):
        network = Controller(cell, 4, hidden, layers).to(device, torch.float64).requires_grad_(False)
        weights, packed = network.recurrence, network.recurrence.packed()
        x, state = torch.randn(n, 4, dtype=torch.float64, device=device), network.start(n)
        gate, fresh = torch.zeros_like(x[:, 0]), torch.arange(n, device=device) % 5 > 0
        yield Case(
            f"controller_step, {layers} x {hidden} {cell}",
            lambda x=x, s=state, g=gate, f=fresh, w=weights, p=packed: controller_step.controller_step_triton(
                x, s, g, f, w, p
            ),
            lambda x=x, s=state, g=gate, f=fresh, w=weights: controller_step.controller_step_torch(x, s, g, f, w),
            2 * state.nbytes + x.nbytes + 2 * gate.nbytes,
            tolerance=1e-12,
        )
    noise, unrest = Noise(0.25, 0.01, 0.04, 1.0), course_step.Unrest(4, 2, 3, 4.0, 2)
    rules = course_step.Rules.of(noise, unrest, torch.device(device))
    course = course_step.Course.empty((n,), noise, unrest.memory, torch.device(device))
    y, token = torch.randn(n, dtype=torch.float64, device=device), torch.arange(n, device=device)
    yield Case(
        "course_step",
        lambda: believed(course_step.course_step_triton(course, y, token, token % 5 > 0, rules)),
        lambda: believed(course_step.course_step_torch(course, y, token, token % 5 > 0, rules)),
        n * (2 * (9 * 8 + 2 * unrest.memory + 1) + 17),
        tolerance=1e-12,
    )


def believed(course: course_step.Course) -> Outputs:
    trend = course.trend
    return (trend.level, trend.velocity, trend.p11, trend.p12, trend.p22, *course[1:])


def moe_cases(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Case]:
    width, inner, k = sizes.expert_width, sizes.expert_inner, min(8, sizes.experts)
    gate, up = (torch.randn(sizes.experts, inner, width, device=device).mul(width**-0.5).to(dtype) for _ in range(2))
    down = torch.randn(sizes.experts, width, inner, device=device).mul(inner**-0.5).to(dtype)
    for n in (sizes.slots * sizes.block, sizes.slots * sizes.length):
        x = torch.randn(n, width, device=device).to(dtype)
        expert = torch.rand(n, sizes.experts, device=device).argsort(-1)[:, :k]
        weight = torch.rand(n, k, device=device)
        yield Case(
            f"moe.grouped_mlp, {n} rows, {k} of {sizes.experts} experts",
            lambda x=x, e=expert, w=weight: (moe.grouped_mlp_triton(x, e, w, gate, up, down),),
            lambda x=x, e=expert, w=weight: (moe.grouped_mlp_torch(x, e, w, gate, up, down),),
            gate.nbytes + up.nbytes + down.nbytes + 2 * x.nbytes,
            6.0 * n * k * width * inner,
            exact=lambda x=x, e=expert, w=weight: (moe.grouped_mlp_torch(*wide(x, e, w, gate, up, down)),),
        )
