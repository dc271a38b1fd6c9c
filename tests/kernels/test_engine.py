"""The whole engine on kernels, in the interpreter where there is no GPU, against the engine on their twins."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from dllm_core.cache.none import NoCache
from dllm_core.config import DecodeConfig
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request
from dllm_core.store import LayerStore
from kernels import dispatch
from kernels.dispatch import fused, launched, using
from tests.fakes import engine_of, facts, tiny_model
from tests.fakes_controller import FILTER, write_random

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
CACHES = {
    "none": {},
    "prefix": {},
    "dual": {},
    "dkv": {"refresh_every": 2},
    "entropy": {"tau": 2.8, "recent": 3},
    "dllm": {"prompt_every": 3, "response_every": 2, "ratio": 0.3},
    "elastic": {"gamma": 0.9},
    "d2": {"rollout_p": 0.3, "current_k": 6, "sigma": 3.0, "inflate_w": 3},
    "polestar": {"clusters": 3, "rounds": 1, "refreshed": 2, "capacity": 4, "tau_upd": 0, "burst": 0, "store": "nvfp4"},
}
COMMITS = {
    "top_k": {},
    "threshold": {"tau": 0.3},
    "factor": {"f": 1.6},
    "eb": {"gamma": 2.0},
    "local_leap": {"tau": 0.3, "relaxed": 0.1},
    "klass": {"tau": 0.1, "epsilon": 0.5, "history": 1},
    "credit": {"tau": 0.3},
    "certainty": {"tokens": 2, "sigma": 3.0},
    "polestar": {"tau": 0.3, "early": 0.1, "alpha": 0.05},
    "extrapolate": {"tau_min": 0.15, "c_floor": 0.0, "coverage": 0.2, "horizon": 3, "z": 0.1, "sigma_max": 9.0},
    "tspd": {"controller": "lstm"},
    "learn2pd": {"controller": "filter", "delta": 0.6},
}
USED_BY_ALL = {"_attention_kernel", "_join_kernel"}
KEEPS_KEYS = {"dllm"}  # rows that keep their stored key are not written by the kernel
WHOLE_LOGITS = {"klass", "credit"}  # they adjust them
USED_BY = {
    ("d2", "threshold"): {"_weights_kernel"},
    ("elastic", "threshold"): {"_weights_kernel"},
    ("polestar", "threshold"): {
        "_assign_kernel", "_mean_kernel", "_drift_kernel", "_quantise_kernel", "_dequantise_kernel",
    },
    ("dual", "polestar"): {"_drift_kernel"},
    ("dual", "extrapolate"): {"_course_kernel"},
    ("dual", "tspd"): {"_controller_kernel"},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def controllers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("controllers")
    write_random(folder / "lstm", seed=1)
    write_random(folder / "filter", seed=3, **FILTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


@pytest.fixture
def launches(monkeypatch):
    """How often each kernel is launched."""
    if not dispatch.INTERPRETED:
        pytest.skip("only the interpreter counts launches")
    from triton.runtime.interpreter import InterpretedFunction

    counted, run = Counter(), InterpretedFunction.run
    monkeypatch.setattr(
        InterpretedFunction, "run", lambda self, *a, **k: (counted.update([self.fn.__name__]), run(self, *a, **k))[1]
    )
    return counted


def answers(way: str, cache: str, commit: str, **more):
    settings = DecodeConfig(
        cache={"kind": cache} | CACHES[cache] | more, commit={"kind": commit} | COMMITS[commit], block_length=8
    )
    requests = [
        Request("a", [3, 1, 4, 1, 5, 9, 2], 9),
        Request("b", [6], 4, temperature=1.0, seed=5),
        Request("c", list(range(4)), 10),
    ]
    with using(way):
        engine = engine_of(tiny_model(dtype=torch.float32), settings, slots=2, width=24)
        assert (engine.store.plain is not None) == (way == "twins" and cache == "polestar")  # kernels turn keys back
        return [facts(done) for done in engine.generate(requests)]


PAIRS = [(cache, "threshold") for cache in CACHES] + [("dual", commit) for commit in COMMITS if commit != "threshold"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("cache", "commit"), PAIRS)
def test_kernels_and_twins_give_the_same_tokens(cache, commit, launches):
    want = answers("twins", cache, commit)
    assert not launches
    assert answers("kernels", cache, commit) == want
    head = {"_parts_kernel"} if commit in WHOLE_LOGITS else {"_linear_kernel"}
    writes = set() if cache in KEEPS_KEYS else {"_scatter_kernel"}
    assert (USED_BY_ALL | head | writes | USED_BY.get((cache, commit), set())) <= set(launches)


@pytest.mark.timeout(300)
def test_drift_by_cosine_needs_no_bare_keys_either(launches):
    want = answers("twins", "polestar", "threshold", measure="cosine")
    assert answers("kernels", "polestar", "threshold", measure="cosine") == want
    assert "_drift_kernel" not in launches  # it is the twin that turns them back


class Looks(NoCache):
    """Computes everything, and looks at two rows of each layer over keys without rotary phase."""

    keeps_plain_keys = True
    taps = True

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def after_attend(self, tap, rows, q) -> None:
        few = torch.tensor([0, len(rows) - 1])
        self.seen.append(tap.probs(q[few], rows.slot[few], rows.position[few], plain=True))


def test_weights_over_bare_keys_are_the_same_with_a_copy_of_them_and_without(launches):
    seen = []
    for way in ("twins", "kernels"):
        with using(way):
            engine = engine_of(tiny_model(dtype=torch.float32), DecodeConfig(block_length=8), slots=2, width=24)
            looks = Looks()
            engine.method = replace(engine.method, cache=looks)
            kept = way == "twins"
            engine.store = LayerStore(
                engine.model.shape, engine.cells, torch.float32, plain_keys=True, turns_back=not kept
            )
            assert (engine.store.plain is not None) == kept
            engine.generate([Request("a", [3, 1, 4, 1, 5, 9, 2], 9), Request("b", [6], 4)])
            seen.append(looks.seen)
    assert launches["_weights_kernel"] == len(seen[0]) > 3
    for with_copy, without in zip(*seen, strict=True):
        torch.testing.assert_close(with_copy, without, atol=1e-5, rtol=1e-4)


def test_the_way_is_chosen_for_a_while_and_float64_keeps_its_twins():
    x = torch.zeros(2)
    assert not fused(x)
    with using("kernels"):
        assert fused(x)
        assert launched(x.double())
        assert not fused(x.double())
        with using("twins"):
            assert not fused(x)
        assert fused(x)
    assert not launched(x)


@pytest.mark.parametrize("wish", [{"guidance": 1.5}, {"temperature": 1.0, "top_p": 0.8}], ids=str)
def test_whole_logits_are_made_for_the_rows_that_need_them_and_for_no_other(wish, launches, monkeypatch):
    asked = Counter()
    model, unembed = tiny_model(dtype=torch.float32), Transformer.unembed
    monkeypatch.setattr(Transformer, "unembed", lambda self, x: (asked.update(rows=len(x)), unembed(self, x))[1])
    engine = engine_of(model, DecodeConfig(block_length=8), slots=3, width=24)
    requests = [Request("a", [3, 1, 4], 5, seed=3, **wish), Request("b", [2], 5)]
    with using("twins"):
        want = [facts(done) for done in engine.generate(requests)]
    asked.clear()
    with using("kernels"):
        assert [facts(done) for done in engine.generate(requests)] == want
    assert launches["_linear_kernel"] > 0
    rows = asked["rows"]
    with using("kernels"):
        engine.generate(requests[:1])
    assert asked["rows"] - rows == rows > 0  # the neighbour added none
    asked.clear()
    with using("kernels"):
        engine.generate(requests[1:])
    assert not asked


def test_float64_meets_no_kernel(launches):
    engine = engine_of(tiny_model(), DecodeConfig(block_length=8), slots=2, width=24)
    with using("kernels"):
        engine.generate([Request("a", [3, 1, 4], 5)])
    assert not launches
