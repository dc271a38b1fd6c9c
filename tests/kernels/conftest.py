"""What a kernel leaves unwritten must not look like an answer: fresh memory is full of NaN, or of a large number."""

import pytest
import torch

GARBAGE = 0x7B  # of integers; a bool is True


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(make):
        def wrapped(*sizes, **options):
            out = make(*sizes, **options)
            return out.fill_(float("nan") if out.is_floating_point() else GARBAGE)

        return wrapped

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, filled(getattr(torch, name)))
