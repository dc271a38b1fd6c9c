import pytest
import torch

from dllm_core.controller.network import Controller
from kernels.controller_step import (
    controller_step,
    controller_step_reference,
    controller_step_torch,
    controller_step_triton,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
CELLS = pytest.mark.parametrize("cell", ["lstm", "gru"])
SIZES = [(0, 4, 3, 1), (1, 1, 1, 1), (5, 4, 12, 2), (33, 3, 5, 3), (16, 4, 17, 2)]  # n, F, U, layers


def case(cell: str, rows: int, inputs: int, hidden: int, layers: int):
    generator = torch.Generator().manual_seed(rows)
    network = Controller(cell, inputs, hidden, layers).double().requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    state = torch.randn(layers, rows, network.state_width, generator=generator, dtype=torch.float64)
    gate = torch.rand(rows, generator=generator, dtype=torch.float64)
    fresh = torch.rand(rows, generator=generator) < 0.7
    return x, state, gate, fresh, network.recurrence


def by_kernel(x, state, gate, fresh, network):
    return controller_step_triton(x, state, gate, fresh, network, network.packed())


WAYS = pytest.mark.parametrize("way", [controller_step_torch, by_kernel])


@WAYS
@CELLS
@pytest.mark.parametrize(("rows", "inputs", "hidden", "layers"), SIZES)
def test_a_step_is_what_the_formula_says(rows, inputs, hidden, layers, cell, way):
    given = case(cell, rows, inputs, hidden, layers)
    for got, want in zip(way(*given), controller_step_reference(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


@WAYS
@CELLS
def test_what_was_not_read_stays_and_a_nan_stays_where_it_is(cell, way):
    x, state, gate, _, network = case(cell, 20, 4, 5, 2)
    fresh = torch.arange(20) % 3 > 0
    want = way(x, state, gate, fresh, network)
    x[~fresh], x[4] = float("nan"), float("nan")
    got = way(x, state, gate, fresh, network)
    assert torch.equal(got[0][~fresh], gate[~fresh])
    assert torch.equal(got[1][:, ~fresh], state[:, ~fresh])
    assert got[0].isnan().nonzero()[:, 0].tolist() == [4]
    others = torch.arange(20) != 4
    assert torch.equal(got[1][:, others], want[1][:, others])


@CELLS
def test_a_position_does_not_depend_on_its_company(cell):
    x, state, gate, fresh, network = case(cell, 40, 4, 12, 2)
    together = by_kernel(x, state, gate, fresh, network)
    for n in (0, 15, 16, 39):
        one = slice(n, n + 1)
        alone = by_kernel(x[one], state[:, one], gate[one], fresh[one], network)
        assert torch.equal(alone[0], together[0][one])
        assert torch.equal(alone[1], together[1][:, one])


@CELLS
def test_far_out_numbers_do_not_overflow(cell):
    x, state, gate, fresh, network = case(cell, 4, 4, 5, 2)
    got = by_kernel(x * 1e6, state, gate, fresh, network)
    want = controller_step_reference(x * 1e6, state, gate, fresh, network)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-13)


def test_planes_go_through_as_they_are_and_what_cannot_is_named():
    x, state, gate, fresh, network = case("lstm", 12, 4, 5, 2)
    packed = network.packed()
    want = controller_step_torch(x, state, gate, fresh, network)
    plane = x.view(3, 4, -1), state.view(2, 3, 4, -1), gate.view(3, 4), fresh.view(3, 4)
    for way in (controller_step, controller_step_triton):
        got = way(*plane, network, packed)
        torch.testing.assert_close(got[0].flatten(), want[0], rtol=0, atol=1e-13)
        torch.testing.assert_close(got[1].flatten(1, 2), want[1], rtol=0, atol=1e-13)
    strided = controller_step_triton(
        x, state.transpose(1, 2).contiguous().transpose(1, 2), gate, fresh, network, packed
    )
    torch.testing.assert_close(strided[1], want[1], rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="must be float64"):
        controller_step_triton(x.float(), state, gate, fresh, network, packed)
    large = case("gru", 2, 4, 65, 1)
    with pytest.raises(ValueError, match="at most, got 65"):
        controller_step_triton(*large, large[-1].packed())
