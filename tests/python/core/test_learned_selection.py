"""Tests learned selection in Python against two independent definitions.

Scores, masks and decoding are covered. The first definition is that of DESIGN: for each query the
visible keys are sorted by score. The second is Dynamic Mask Attention as it was published: the `w`
largest entries of a dense matrix of scores are scattered into zeros for each query, and attention
over the keys that are not zero adds them to the logits. Both are written in NumPy, in float64 where
rounding matters.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from fdma_module import Tensor, definition, fdma, random_tensors, round_bf16


def softplus(x: Tensor) -> Tensor:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def zoh(values: Tensor, dt_proj: Tensor, a_coef: Tensor, mode: str = "exp") -> Tensor:
    """Returns the scores in float64, [batch, heads_kv, kv_len]."""
    values, dt_proj, a_coef = (x.astype(np.float64) for x in (values, dt_proj, a_coef))
    batch, kv_len, heads, head_dim = values.shape
    if dt_proj.shape[1] == head_dim:
        dt = np.einsum("bkhd,hd->bhk", values, dt_proj)
    else:
        dt = np.einsum("bki,hi->bhk", values.reshape(batch, kv_len, heads * head_dim), dt_proj)
    log = softplus(dt) * a_coef[None, :, None]
    return log if mode == "log" else np.exp(log)


def by_sorting(scores: Tensor, w: int, visible: Tensor) -> Tensor:
    """Returns the w keys of each row of visible [q, k] first by (score descending, index)."""
    order = np.lexsort((np.arange(scores.size), -(scores + 0.0)))
    ranked = visible[:, order]
    kept = np.zeros_like(visible)
    kept[:, order] = ranked & (np.cumsum(ranked, axis=1) <= w)
    return kept


def published(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, w: int, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns (out, mask) of Dynamic Mask Attention as published.

    scores is [batch, heads_kv, kv_len]. A key that the selection leaves at zero is dropped; a
    selected key whose own score is zero is dropped, too.
    """
    head_dim = q.shape[3]
    group = q.shape[2] // k.shape[2]
    per_head = np.repeat(scores, group, axis=1)
    biases = np.where(visible, per_head[:, :, None, :], -np.inf)
    if w < k.shape[1]:
        # The largest scores come first; among equal ones the first key. The publication allows any
        # order.
        chosen = np.argsort(-biases, axis=-1, kind="stable")[..., :w]
        picked = np.zeros_like(biases)
        np.put_along_axis(picked, chosen, np.take_along_axis(biases, chosen, axis=-1), axis=-1)
        biases = np.where(np.isfinite(picked) & (picked != 0), picked, -np.inf)
    else:
        biases = np.where(biases != 0, biases, -np.inf)
    keys, held = (np.repeat(x, group, axis=2).astype(np.float64) for x in (k, v))
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), keys) / np.sqrt(head_dim) + biases
    kept = np.isfinite(logits)
    shift = np.max(np.where(kept, logits, -1e300), axis=-1, keepdims=True)
    weights = np.where(kept, np.exp(np.where(kept, logits - shift, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", weights / np.where(total > 0, total, 1), held)
    return out, kept


@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scores_are_the_formula(dtype: str, is_wide: bool, mode: Literal["exp", "log"]) -> None:
    random = np.random.default_rng(1)
    values = random.standard_normal((2, 131, 3, 40), np.float32)
    dt_proj = random.standard_normal((3, 120 if is_wide else 40), np.float32) / 8
    a_coef = np.array([-1.5, -0.1, 0.5], np.float32)
    given: Any = values
    if dtype == "float16":
        given = values = values.astype(np.float16)
    elif dtype == "bfloat16":
        bits, values = round_bf16(values)
        given = fdma.bfloat16_from_bits(bits)
    scores = np.asarray(fdma.zoh_scores(given, dt_proj, a_coef, mode=mode))
    assert scores.dtype == np.float32 and scores.shape == (2, 3, 131)
    np.testing.assert_allclose(scores, zoh(values, dt_proj, a_coef, mode), rtol=2e-5)
    out = np.full((2, 3, 131), 7, np.float32)
    assert fdma.zoh_scores(given, dt_proj, a_coef, mode=mode, num_threads=1, out=out) is out
    np.testing.assert_array_equal(out, scores)


def test_scores_refuse_what_does_not_fit() -> None:
    values = np.zeros((1, 4, 2, 8), np.float32)
    weights, a_coef = np.zeros((2, 8), np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="mode: expected exp or log, got 'tanh'"):
        fdma.zoh_scores(values, weights, a_coef, mode="tanh")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="dt_proj: expected"):
        fdma.zoh_scores(values, weights[:, :7], a_coef)
    with pytest.raises(NotImplementedError, match=r"a_coef: .* float64"):
        fdma.zoh_scores(values, weights, a_coef.astype(np.float64))
    with pytest.raises(ValueError, match="scores: expected"):
        fdma.zoh_scores(values, weights, a_coef, out=np.zeros((1, 4, 2), np.float32))
    with pytest.raises(ValueError, match="out: expected memory of its own"):
        fdma.zoh_scores(values, weights, a_coef, out=values[:, 0, :, :4])


KINDS = ["random", "tied", "constant", "rising", "falling", "infinite", "signed zeros"]


def scores_of_kind(kind: str, shape: tuple[int, ...]) -> Tensor:
    random = np.random.default_rng(len(kind))
    values = random.standard_normal(shape).astype(np.float32)
    if kind == "tied":
        values = np.round(values)
    elif kind == "constant":
        values[...] = 0.5
    elif kind in ("rising", "falling"):
        values = np.sort(values, axis=-1)
        values = values if kind == "rising" else np.ascontiguousarray(values[..., ::-1])
    elif kind == "infinite":
        values[..., ::3], values[..., 1::5] = np.inf, -np.inf
    elif kind == "signed zeros":
        values = np.where(values > 0, 0.0, -0.0).astype(np.float32)
    return values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(67, 67), (20, 90), (90, 20), (1, 130)])
def test_masks_are_the_definition(kind: str, q_len: int, kv_len: int) -> None:
    scores = scores_of_kind(kind, (2, 2, kv_len))
    pos = np.arange(q_len)[:, None] + kv_len - q_len
    keys = np.arange(kv_len)[None, :]
    among = {
        "causal": keys <= pos,
        "causal & window(9)": (keys <= pos) & (pos - keys < 9),
        "causal | prefix(5)": (keys <= pos) | (keys < 5),
        "k % 3 == 1": np.broadcast_to(keys % 3 == 1, (q_len, kv_len)),
        "false": np.zeros((q_len, kv_len), bool),
    }
    for text, visible in among.items():
        for w in (1, 2, 127, 128, 129, kv_len, kv_len + 1):
            mask = fdma.compile(
                f"topk(@s, {w}, among={text})",
                q_len=q_len,
                kv_len=kv_len,
                batch=2,
                heads=4,
                tables={"s": scores},
            )
            cells = fdma.to_dense(mask)
            for b in range(2):
                for h in range(4):
                    expected = by_sorting(scores[b, h // 2], w, visible)
                    np.testing.assert_array_equal(cells[b, h], expected, f"{text}, w {w}")


@pytest.mark.parametrize(("w", "a"), [(1, -1.0), (16, -1.0), (64, -0.2), (200, -1.0), (24, -300.0)])
def test_attention_is_that_of_the_published_reference(w: int, a: float) -> None:
    q, k, v = random_tensors(
        seed=w, batch=2, q_len=96, kv_len=96, heads_q=4, heads_kv=2, head_dim=16
    )
    random = np.random.default_rng(w)
    dt_proj = random.standard_normal((2, 32)).astype(np.float32) / 4
    a_coef = np.array([a, a / 2], np.float32)
    scores = np.asarray(fdma.zoh_scores(v, dt_proj, a_coef))
    if a == -300.0:  # most scores vanish in float32, and their keys are dropped
        assert 0.2 < np.mean(scores == 0) < 1
    visible = np.tril(np.ones((96, 96), bool))
    expected, kept = published(q, k, v, scores, w, visible)
    mask = fdma.compile(
        f"causal & @alive[b, h // 2, k] & topk(@s, {w})",
        q_len=96,
        batch=2,
        heads=4,
        tables={"s": scores, "alive": scores != 0},
    )
    np.testing.assert_array_equal(fdma.to_dense(mask), kept)
    out, _ = fdma.attention(q, k, v, mask, score=(scores,))
    np.testing.assert_allclose(np.asarray(out), expected, atol=2e-6)
    cells = definition(q, k, v, kept, key_bias=scores)[0]
    np.testing.assert_allclose(cells, expected, atol=1e-12)


@pytest.mark.parametrize("w", [1, 2, 31, 32, 33, 100])
def test_incremental_selection_is_the_definition_after_every_append(w: int) -> None:
    for kind in KINDS:
        scores = scores_of_kind(kind, (75,))
        topk = fdma.IncrementalTopk(w)
        at = 0
        for count in (20, 1, 1, 13, 0, 40):
            topk.append(scores[at : at + count])
            at += count
            visible = np.tril(np.ones((at, at), bool))
            expected = by_sorting(scores[:at], w, visible)
            bounds = np.asarray(topk.intervals())
            rows = np.arange(at)[:, None]
            np.testing.assert_array_equal((bounds[:, 0] <= rows) & (rows < bounds[:, 1]), expected)
            live = np.asarray(topk.live_keys())
            np.testing.assert_array_equal(live, np.flatnonzero(expected[-1]))
            assert topk.num_live_keys == live.size == min(w, at)
            assert (topk.w, topk.q_len, topk.kv_len) == (w, at, at)


def test_incremental_selection_by_documents_and_by_among() -> None:
    scores = scores_of_kind("random", (60,))
    topk, told = fdma.IncrementalTopk(4), fdma.IncrementalTopk(4)
    begin = 0
    for length in (7, 1, 30, 22):
        end = begin + length
        topk.append(scores[begin:end])
        topk.end_group()
        among = np.stack([np.arange(begin, end), np.full(length, end)], axis=1).astype(np.int32)
        told.append(scores[begin:end], among)
        begin = end
    documents = fdma.compile(
        "causal & documents(lengths=@n) & topk(@s, 4)",
        q_len=60,
        tables={"n": np.array([7, 1, 30, 22]), "s": scores},
    )
    bounds = np.asarray(topk.intervals())
    rows = np.arange(60)[:, None]
    cells = (bounds[:, 0] <= rows) & (rows < bounds[:, 1])
    np.testing.assert_array_equal(cells, fdma.to_dense(documents)[0, 0])
    np.testing.assert_array_equal(np.asarray(told.intervals()), bounds)
    assert np.asarray(topk.live_keys()).size == 0
    assert fdma.OPEN_END == 2**31 - 1


def test_incremental_selection_refuses_what_it_cannot_follow() -> None:
    with pytest.raises(ValueError, match="w: expected at least 1, got 0"):
        fdma.IncrementalTopk(0)
    topk = fdma.IncrementalTopk(3)
    one = np.ones(1, np.float32)
    topk.append(one)
    with pytest.raises(ValueError, match=r"scores\[0\]: is NaN"):
        topk.append(one * np.nan)
    with pytest.raises(ValueError, match="scores: expected float32"):
        topk.append(np.ones(1))
    with pytest.raises(ValueError, match="among: expected 1 intervals"):
        topk.append(one, np.zeros((2, 2), np.int32))
    with pytest.raises(ValueError, match="num_queries: expected one query per key"):
        topk.append(one, num_queries=4)
    with pytest.raises(NotImplementedError, match="ends apart from key 0"):
        topk.append(one, np.array([[1, 2]], np.int32))  # this mask is a window
    assert topk.kv_len == 1


def test_decoding_from_a_trimmed_cache() -> None:
    w, length = 24, 120
    q, k, v = random_tensors(
        seed=9, batch=1, q_len=length, kv_len=length, heads_q=1, heads_kv=1, head_dim=16
    )
    scores = np.asarray(
        fdma.zoh_scores(v, np.ones((1, 16), np.float32), np.array([-1], np.float32))
    )
    topk = fdma.IncrementalTopk(w)
    for t in range(length):
        topk.append(scores[0, 0, t : t + 1])
        live = np.asarray(topk.live_keys())
        assert live.size <= w
        full = fdma.compile(
            f"causal & topk(@s, {w})", q_len=1, kv_len=t + 1, tables={"s": scores[0, 0, : t + 1]}
        )
        cached = fdma.compile("causal", q_len=1, kv_len=live.size)
        step = q[:, t : t + 1]
        expected = fdma.attention(
            step, k[:, : t + 1], v[:, : t + 1], full, score=(scores[:, :, : t + 1],)
        )
        got = fdma.attention(
            step, k[:, live], v[:, live], cached, score=(np.ascontiguousarray(scores[:, :, live]),)
        )
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
