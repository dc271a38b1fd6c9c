"""The recurrences against PyTorch's own, and what `unroll` owes to training."""

import pytest
import torch
from torch import nn

from dllm_core.controller.network import Controller, Filter


def pytorchs(ours: Controller, cell: str, inputs: int) -> nn.LSTM | nn.GRU:
    """PyTorch's recurrence with the same weights."""
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    theirs = kind(inputs, ours.hidden, len(ours.layers), batch_first=True, dtype=torch.float64)
    for name, parameter in theirs.named_parameters():  # weight_ih_l0, ...
        kind_of_weight, number = name.rsplit("_l", 1)
        parameter.data.copy_(getattr(ours.layers[int(number)], kind_of_weight))
    return theirs


@pytest.mark.parametrize(("inputs", "hidden", "layers"), [(4, 12, 2), (1, 1, 1), (3, 5, 3)])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_step_by_step_equals_pytorchs_recurrence(cell, inputs, hidden, layers):
    torch.manual_seed(0)
    ours = Controller(cell, inputs, hidden, layers).double()
    theirs, x = pytorchs(ours, cell, inputs), torch.randn(7, 9, inputs, dtype=torch.float64)
    expected = ours.head(theirs(x)[0])[..., 0]  # [7, 9]
    torch.testing.assert_close(ours.unroll(x, torch.ones(7, 9, dtype=torch.bool)), expected, rtol=0, atol=1e-14)
    state = ours.start(7)
    for n in range(9):
        logit, state = ours.step(x[:, n], state)
        torch.testing.assert_close(logit, expected[:, n], rtol=0, atol=1e-14)


def test_positions_may_lie_in_a_plane():
    torch.manual_seed(0)
    ours = Controller()
    x, state = torch.randn(3, 5, 4), torch.randn(2, 3, 5, 24)
    logit, after = ours.step(x, state)
    flat, flat_after = ours.step(x.flatten(0, 1), state.flatten(1, 2))
    torch.testing.assert_close(logit.flatten(), flat)
    torch.testing.assert_close(after.flatten(1, 2), flat_after)


def test_the_usual_sizes_have_about_two_thousand_weights():
    def weights(network: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    assert weights(Controller()) == 2125
    assert weights(Controller("gru", hidden=14)) == 2115
    assert weights(Filter()) == 2112


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_what_is_not_observed_changes_nothing_and_gives_no_gradient(cell):
    torch.manual_seed(0)
    ours = Controller(cell)
    x = torch.randn(2, 6, 4)
    mask = torch.tensor([[True, False, True, True, False, True], [True, True, False, False, False, False]])
    holes = torch.where(mask[..., None], x, float("nan"))
    logits = ours.unroll(holes, mask)
    assert (logits[~mask] == 0).all()
    together = ours.unroll(x[:1, mask[0]], torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(logits[:1, mask[0]], together)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in ours.parameters())


def test_the_filter_is_two_layers_with_a_relu_between():
    ours = Filter(block_length=2, hidden=2)
    with torch.no_grad():
        ours.inner.weight.copy_(torch.tensor([[1.0, -1.0], [-2.0, 0.0]]))
        ours.inner.bias.copy_(torch.tensor([0.5, 0.5]))
        ours.outer.weight.copy_(torch.tensor([[1.0, 1.0], [3.0, 0.0]]))
        ours.outer.bias.copy_(torch.tensor([0.0, -1.0]))
    assert ours(torch.tensor([[1.0, 0.25]])).tolist() == [[1.25, 2.75]]  # inner: 1.25, and -1.5 becomes 0
