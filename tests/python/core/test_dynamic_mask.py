"""Tests DynamicMaskAttention of fdma._fdma on host arrays and CUDA tensors against float64."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from fdma_module import Tensor, definition, fdma, random_tensors

try:
    import torch as imported_torch
except ImportError:
    imported_torch = None
torch: Any = imported_torch
HAS_GPU = torch is not None and "sm90" in fdma.available_backends()
Bias = Literal["exp", "log", "none"]
needs_gpu = pytest.mark.skipif(
    not HAS_GPU, reason="no GPU of compute capability 9.0, or PyTorch is not installed"
)


def selected(scores: Tensor, width: int, visible: Tensor) -> Tensor:
    """Returns which keys each query keeps, by definition, for each row of scores.

    scores is [batch, heads_kv, k] and visible [q, k]. A query keeps its `width` visible keys with
    the highest scores; among equal scores the first keys come first.
    """
    mask = np.zeros((*scores.shape[:2], *visible.shape), bool)
    for index in np.ndindex(*scores.shape[:2]):
        order = np.argsort(-scores[index], kind="stable")
        for query, seen in enumerate(visible):
            best = [key for key in order if seen[key]][:width]
            mask[(*index, query, best)] = True
    return mask


def expected(
    tensors: tuple[Tensor, ...], scores: Tensor, width: int, visible: Tensor, bias: str
) -> tuple[Tensor, Tensor]:
    q, k, v = tensors
    group = q.shape[2] // k.shape[2]
    mask = np.repeat(selected(scores, width, visible), group, axis=1)
    return definition(q, k, v, mask, key_bias=None if bias == "none" else scores)


def scores_by_definition(v: Tensor, dt_proj: Tensor, a_coef: Tensor, mode: str) -> Tensor:
    if dt_proj.shape[1] == v.shape[3]:
        dt = np.einsum("bkhd,hd->bhk", v.astype(float), dt_proj)
    else:
        dt = np.einsum("bkc,hc->bhk", v.reshape(*v.shape[:2], -1).astype(float), dt_proj)
    log = np.logaddexp(0, dt) * a_coef[None, :, None]
    return np.asarray(log if mode == "log" else np.exp(log))


@pytest.mark.parametrize("bias", ["exp", "log", "none"])
@pytest.mark.parametrize("wide", [False, True])
def test_one_call_is_scores_selection_and_attention(bias: Bias, wide: bool) -> None:
    q, k, v = random_tensors(1, 2, 60, 90, 4, 2, 16, 16)
    rng = np.random.default_rng(2)
    dt_proj = rng.standard_normal((2, 32 if wide else 16)).astype(np.float32)
    a_coef = np.array([-0.5, -1.5], np.float32)
    held = fdma.DynamicMaskAttention(
        11,
        q_len=60,
        kv_len=90,
        batch=2,
        heads_q=4,
        heads_kv=2,
        head_dim=16,
        bias=bias,
        backend="cpu",
    )
    out, lse, scores, kept = held.run(
        q, k, v, dt_proj, a_coef, return_scores=True, return_kept=True
    )
    made = np.asarray(scores)
    by_definition = scores_by_definition(v, dt_proj, a_coef, "log" if bias == "log" else "exp")
    np.testing.assert_allclose(made, by_definition, rtol=1e-4)
    visible = np.arange(90)[None, :] <= np.arange(60)[:, None] + 30
    reference = expected((q, k, v), made, 11, visible, bias)
    np.testing.assert_allclose(np.asarray(out), reference[0], atol=1e-5)
    np.testing.assert_allclose(np.asarray(lse), reference[1], atol=1e-5)
    mask = held.to_mask(kept)
    assert mask.num_heads == 4
    again, _ = fdma.attention(q, k, v, mask, score=(None if bias == "none" else scores,))
    np.testing.assert_array_equal(np.asarray(again), np.asarray(out))


def test_lengths_given_scores_and_outputs() -> None:
    q, k, v = random_tensors(3, 2, 50, 70, 2, 1, 8, 8)
    scores = np.random.default_rng(4).standard_normal((2, 1, 70)).astype(np.float32)
    held = fdma.DynamicMaskAttention(
        5, q_len=[50, 20], kv_len=[70, 33], heads_q=2, heads_kv=1, head_dim=8, backend="cpu"
    )
    out = np.zeros((2, 50, 2, 8), np.float32)
    same, lse, given, kept = held.run(q, k, v, scores=scores, out=out, return_scores=True)
    assert same is out
    assert given is scores
    assert kept is None
    visible = np.arange(33)[None, :] <= np.arange(20)[:, None] + 13
    short = (q[1:, :20], k[1:, :33], v[1:, :33])
    reference = expected(short, scores[1:, :, :33], 5, visible, "exp")
    np.testing.assert_allclose(out[1:, :20], reference[0], atol=1e-5)
    assert not out[1, 20:].any()
    assert np.isneginf(np.asarray(lse)[1, :, 20:]).all()


def test_masks_that_need_several_intervals_run_on_the_host() -> None:
    q, k, v = random_tensors(5, 1, 64, 64, 2, 2, 8, 8)
    scores = np.random.default_rng(6).standard_normal((1, 2, 64)).astype(np.float32)
    among = fdma.compile("causal & window(20)", q_len=64)
    held = fdma.DynamicMaskAttention(
        4, among=among, heads_q=2, head_dim=8, bias="none", backend="cpu"
    )
    out, _, _, _ = held.run(q, k, v, scores=scores)
    back = np.arange(64)[:, None] - np.arange(64)[None, :]
    reference = expected((q, k, v), scores, 4, (back >= 0) & (back < 20), "none")
    np.testing.assert_allclose(np.asarray(out), reference[0], atol=1e-5)
    with pytest.raises(NotImplementedError, match="kept: key"):
        held.run(q, k, v, scores=scores, return_kept=True)


def test_keys_whose_score_is_zero_can_be_dropped() -> None:
    q, k, v = random_tensors(7, 1, 32, 32, 1, 1, 8, 8)
    scores = np.where(np.arange(32) % 2, 1.0, 0.0).astype(np.float32)[None, None]
    held = fdma.DynamicMaskAttention(
        32, q_len=32, heads_q=1, head_dim=8, drop_zero_scores=True, backend="cpu"
    )
    out, lse, _, _ = held.run(q, k, v, scores=scores)
    mask = (np.arange(32) <= np.arange(32)[:, None]) & (np.arange(32) % 2 == 1)
    reference = definition(q, k, v, mask[None, None], key_bias=scores)
    np.testing.assert_allclose(np.asarray(out), reference[0], atol=1e-5)
    assert np.isneginf(np.asarray(lse)[0, 0, 0])


def test_what_does_not_fit_is_refused_by_name() -> None:
    causal = fdma.compile("causal", q_len=16)
    options: dict[str, Any] = {"heads_q": 2, "head_dim": 8, "backend": "cpu"}
    no_bias: Any = "sum"
    with pytest.raises(ValueError, match="keep_window_size: expected at least 1, got 0"):
        fdma.DynamicMaskAttention(0, q_len=16, **options)
    with pytest.raises(ValueError, match="among: expected either a mask"):
        fdma.DynamicMaskAttention(4, **options)
    with pytest.raises(ValueError, match="among: expected either a mask"):
        fdma.DynamicMaskAttention(4, among=causal, q_len=16, **options)
    with pytest.raises(ValueError, match="bias: expected exp, log or none, got 'sum'"):
        fdma.DynamicMaskAttention(4, q_len=16, bias=no_bias, **options)
    with pytest.raises(ValueError, match="among: a mask of 1 x 3"):
        three = fdma.compile("causal", q_len=16, heads=3)
        fdma.DynamicMaskAttention(4, among=three, **options)
    held = fdma.DynamicMaskAttention(4, q_len=16, **options)
    assert (held.backend, held.device, held.workspace_nbytes) == ("cpu", -1, 0)
    q, k, v = random_tensors(8, 1, 16, 16, 2, 2, 8, 8)
    with pytest.raises(ValueError, match="scores: expected either scores, or dt_proj and a_coef"):
        held.run(q, k, v)
    with pytest.raises(ValueError, match=r"scores: expected float32 \[batch, heads_kv, kv_len\]"):
        held.run(q, k, v, scores=np.zeros((1, 2, 15), np.float32))
    with pytest.raises(ValueError, match="q: expected 4 dimensions"):
        held.run(q[0], k, v, scores=np.zeros((1, 2, 16), np.float32))
    with pytest.raises(ValueError, match="NaN"):
        held.run(q, k, v, scores=np.full((1, 2, 16), np.nan, np.float32))


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU of compute capability 9.0")
def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        fdma.DynamicMaskAttention(
            4, q_len=16, heads_q=1, head_dim=64, dtype="bfloat16", backend="sm90"
        )


def on_gpu(*shape: int, seed: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(torch.bfloat16)


@needs_gpu
@pytest.mark.parametrize("reading", ["gather", "scan", "automatic"])
def test_on_a_gpu_eager_and_captured(reading: Literal["gather", "scan", "automatic"]) -> None:
    q, k, v = on_gpu(1, 600, 4, 64, seed=1), *(on_gpu(1, 600, 2, 64, seed=s) for s in (2, 3))
    dt_proj, a_coef = on_gpu(2, 64, seed=4) / 8, -torch.ones(2, device="cuda")
    held = fdma.DynamicMaskAttention(
        100,
        q_len=600,
        heads_q=4,
        heads_kv=2,
        head_dim=64,
        dtype="bfloat16",
        backend="sm90",
        reading=reading,
    )
    out, lse, scores, kept = held.run(
        q, k, v, dt_proj, a_coef, return_scores=True, return_kept=True
    )
    out, lse, scores = (torch.from_dlpack(x) for x in (out, lse, scores))
    visible = np.tril(np.ones((600, 600), bool))
    host = tuple(x.float().cpu().numpy() for x in (q, k, v))
    reference = expected(host, scores.cpu().numpy(), 100, visible, "exp")
    np.testing.assert_allclose(out.float().cpu().numpy(), reference[0], atol=3e-2)
    np.testing.assert_allclose(lse.cpu().numpy(), reference[1], atol=1e-3)
    assert not held.saw_nan()
    assert held.to_mask(kept).num_heads == 4

    graph, captured = torch.cuda.CUDAGraph(), torch.empty_like(out)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        held.run(q, k, v, dt_proj, a_coef, out=captured, return_lse=False)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, out)
    v[0, 5] = float("nan")
    held.run(q, k, v, dt_proj, a_coef)
    assert held.saw_nan()


@needs_gpu
@pytest.mark.parametrize("reading", ["gather", "scan"])
def test_on_a_gpu_stages_go_on_with_what_others_left(reading: Literal["gather", "scan"]) -> None:
    """There are more work tiles than multiprocessors; every launch counts them from 0."""
    size = (2, 4096, 4, 64)
    q, k, v = (on_gpu(*size, seed=seed) for seed in (1, 2, 3))
    scores = on_gpu(2, 4, 4096, seed=4).float()
    out, lse = torch.empty_like(q), torch.empty((2, 4, 4096), device="cuda")
    held = fdma.DynamicMaskAttention(
        300,
        q_len=4096,
        batch=2,
        heads_q=4,
        heads_kv=4,
        head_dim=64,
        dtype="bfloat16",
        backend="sm90",
        reading=reading,
    )
    held.run(q, k, v, scores=scores, out=out, lse=lse)
    whole = out.clone(), lse.clone()

    def expect_the_same(first: Literal["lists", "attention"]) -> None:
        out.fill_(float("nan"))
        held.run(q, k, v, scores=scores, stages=(first, "attention"), out=out, lse=lse)
        assert torch.equal(out, whole[0]) and torch.equal(lse, whole[1])

    expect_the_same("attention")
    expect_the_same("attention")
    for _ in range(2):
        held.run(q, k, v, scores=scores, stages=("lists", "lists"), out=out, lse=lse)
    expect_the_same("attention")
    expect_the_same("lists")


@needs_gpu
def test_on_a_gpu_masks_of_several_intervals_name_the_host() -> None:
    among = fdma.compile("causal & window(20)", q_len=64)
    with pytest.raises(NotImplementedError, match="backend = cpu"):
        fdma.DynamicMaskAttention(
            4, among=among, heads_q=2, head_dim=64, dtype="bfloat16", backend="sm90"
        )
