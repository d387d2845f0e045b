"""Tests PyTorch's modes on a Hopper GPU: no call is wrong in silence, and none waits."""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or not torch.cuda.is_available(),
    reason="no GPU of compute capability 9.0",
)
attend: Any = fdma.attention
TOKENS = 1024


def tensors(batch: int = 2) -> list[Any]:
    torch.manual_seed(5)
    shape = batch, 8, TOKENS, 64
    return [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in range(3)]


def gradients(q: Any, k: Any, v: Any, **options: Any) -> list[Any]:
    out = attend(q, k, v, "causal", **options)
    return list(torch.autograd.grad(out.float().square().sum(), (q, k, v)))


@pytest.mark.parametrize("by_operators", [False, True])
def test_second_gradients_are_refused(by_operators: bool) -> None:
    q, k, v = tensors()
    with torch.profiler.profile() if by_operators else torch.enable_grad():
        (g,) = torch.autograd.grad(attend(q, k, v, "causal").sum(), q, create_graph=True)
    assert g.requires_grad
    with pytest.raises(NotImplementedError, match="second gradients"):
        torch.autograd.grad(g.square().sum(), k)


def test_deterministic_algorithms_are_heeded() -> None:
    given = tensors()
    torch.use_deterministic_algorithms(True)
    try:
        runs = [gradients(*given) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    asked = gradients(*given, deterministic=True)
    for run in runs:
        assert all(torch.equal(a, b) for a, b in zip(run, asked, strict=True))


def test_a_mask_of_one_head_is_refused_for_several() -> None:
    q, k, v = tensors()
    mask = fdma.compile("k <= q & q - k < 64 * (h + 1)", TOKENS)
    with pytest.raises(ValueError, match="heads=8"):
        attend(q, k, v, mask)
    assert attend(q, k, v, fdma.compile(mask.spec, TOKENS, heads=8)).isfinite().all()


def test_checkpoints_under_modes() -> None:
    given = tensors()
    expected = gradients(*given, deterministic=True)
    for mode in (torch.profiler.profile(), torch.device("cuda")):
        with mode:
            out = checkpoint(
                lambda q, k, v: attend(q, k, v, "causal", deterministic=True),
                *given,
                use_reentrant=False,
            )
            got = torch.autograd.grad(out.float().square().sum(), given)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


def test_empty_batches_and_threads() -> None:
    q, k, v = tensors(batch=0)
    out, lse = attend(q, k, v, "causal", return_lse=True, num_threads=1)
    assert out.shape == q.shape and lse.shape == (0, 8, TOKENS)
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_masks_of_static_caches_wait_for_nothing_after_the_first_token() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from test_hf import llama, pair, prompt
    from transformers import StaticCache

    _, model = pair(llama)
    model = model.cuda().bfloat16()
    tokens = prompt().cuda()
    cache = StaticCache(config=model.config, max_cache_len=48)

    def step(begin: int, end: int) -> None:
        with torch.no_grad():
            model(tokens[:, begin:end], past_key_values=cache)

    step(0, 20)
    step(20, 21)
    step(21, 22)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(22, 23)
        step(23, 24)
    finally:
        torch.cuda.set_sync_debug_mode("default")
