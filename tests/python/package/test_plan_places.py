"""A plan on a GPU serves the arrays of every framework there, whichever came first.

Stand-ins for JAX, for its arrays on a GPU and for the GPU itself make this a test of any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fdma_module import fdma as core

# isort: split
import fdma
from fdma.attention.plans import Geometry, Place, plans

GEOMETRY = Geometry(1, 4, 2, 64, 64, "float16", (), 0)


class GpuArray:
    """What attention asks of an array of JAX on a GPU."""

    __module__ = "jaxlib.stand_in"

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = np.dtype(np.float16)

    def devices(self) -> set[Any]:
        return {GpuArray.Device()}

    class Device:
        platform = "gpu"
        local_hardware_id = 0


class OnGpu:
    """A plan that was brought to the GPU."""

    is_captured = False
    nbytes = 100

    def __init__(self, plan: Any, words: dict[str, Any]) -> None:
        self.backend = plan.backend
        self.words = words


@pytest.fixture(name="calls")
def calls_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The preparations and launches that reach the core; jax is importable."""
    calls = SimpleNamespace(prepared=[], launched=[])

    def prepare(plan: Any, **words: Any) -> OnGpu:
        calls.prepared.append(OnGpu(plan, words))
        return calls.prepared[-1]  # type: ignore[no-any-return]

    def attention(q: Any, k: Any, v: Any, plan: Any, **words: Any) -> Any:
        calls.launched.append((plan, words))
        return q, "lse"

    monkeypatch.setattr(core, "prepare", prepare)
    monkeypatch.setattr(core, "attention", attention)
    jax: Any = ModuleType("jax")
    jax.core = SimpleNamespace(Tracer=type("Tracer", (), {}))
    jax.block_until_ready = lambda arrays: arrays
    jax.numpy = SimpleNamespace(from_dlpack=lambda array: array, float16=np.float16)
    monkeypatch.setitem(sys.modules, "jax", jax)
    fdma.clear_plans()
    yield calls
    fdma.clear_plans()


def attend(mask: fdma.BlockMask) -> Any:
    run: Any = fdma.attention
    arrays = [GpuArray(1, 100, heads, 64) for heads in (4, 2, 2)]
    return run(*arrays, mask, layout="bshd", return_lse=True, backend="sm90")


def test_jax_first(calls: SimpleNamespace) -> None:
    mask = fdma.compile("causal", 100)
    for _ in range(2):
        attend(mask)
    (made,) = calls.prepared
    assert made.backend == "sm90" and made.words["device"] == 0 and made.words["waits"]
    assert [plan for plan, _ in calls.launched] == [made, made], "one upload for both calls"
    assert all(words["waits"] and words["stream"] == 0 for _, words in calls.launched)
    # The look-up that a call on tensors of PyTorch makes.
    entry = plans.entry(mask, GEOMETRY, Place(0, lambda: False, lambda: "a stream"))
    assert entry.plan is made and len(calls.prepared) == 1


def test_another_framework_first(calls: SimpleNamespace) -> None:
    mask = fdma.compile("causal", 100)
    entry = plans.entry(mask, GEOMETRY, Place(0, lambda: False, lambda: "a stream"))
    assert entry.plan.words["stream"] == "a stream"
    attend(mask)
    ((plan, words),) = calls.launched
    assert plan is entry.plan and words["waits"] and len(calls.prepared) == 1


def test_another_gpu_has_another_plan(calls: SimpleNamespace) -> None:
    mask = fdma.compile("causal", 100)
    attend(mask)
    other = Geometry(1, 4, 2, 64, 64, "float16", (), 1)
    assert plans.entry(mask, other, Place(1)).plan.words["device"] == 1
    assert len(calls.prepared) == 2
