"""Tests fdma.attention on NumPy arrays: results in float64, plans, and names in errors."""

from __future__ import annotations

import gc
import threading
from typing import Any

import fdma_module
import numpy as np
import pytest
from fdma_module import definition

# isort: split
import fdma
from fdma.attention.plans import Entry, Geometry, Plans

attend: Any = fdma.attention
SPECS = ["true", "causal", "causal & (window(40) | sink(4))", "k <= q & h < 3", "~(k < 500)"]


def arrays(
    seed: int = 0, q_len: int = 150, kv_len: int = 200, heads: int = 4, dim_v: int = 32
) -> Any:
    return fdma_module.random_tensors(
        seed, batch=2, q_len=q_len, kv_len=kv_len, heads_q=heads, heads_kv=2, head_dim=32,
        head_dim_v=dim_v,
    )  # fmt: skip


def cells(mask: fdma.BlockMask) -> Any:
    return mask.to_dense()


@pytest.mark.parametrize("spec", SPECS)
def test_equals_the_definition(spec: str) -> None:
    q, k, v = arrays(dim_v=48)
    bias = np.random.default_rng(1).standard_normal((2, 2, 200)).astype(np.float32)
    mask = fdma.compile(spec, 150, 200, 2, 4)
    expected, expected_lse = definition(q, k, v, cells(mask), 0.3, bias)
    for given in (mask, spec, fdma.MaskExpr.parse(spec)):
        out, lse = attend(
            q,
            k,
            v,
            given,
            key_bias=bias,
            scale=0.3,
            layout="bshd",
            return_lse=True,
            deterministic=True,
        )
        np.testing.assert_allclose(out, expected, atol=2e-5)
        np.testing.assert_allclose(lse, expected_lse, atol=2e-5)
    heads_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    for some in (heads_first, [np.ascontiguousarray(x) for x in heads_first]):
        out = attend(*some, mask, key_bias=bias, scale=0.3)
        np.testing.assert_allclose(out.swapaxes(1, 2), expected, atol=2e-5)


def test_without_a_mask_every_key_counts() -> None:
    q, k, v = arrays()
    expected, _ = definition(q, k, v, np.ones((1, 1, 150, 200), bool))
    np.testing.assert_allclose(attend(q, k, v, layout="bshd"), expected, atol=2e-5)


def test_expressions_with_arrays_are_read_at_each_call() -> None:
    q, k, v = arrays(q_len=200)
    ids = np.zeros(200, np.int64)
    mask = fdma.documents(ids=ids)
    before = attend(q, k, v, mask, layout="bshd")
    ids[100:] = 1
    after = attend(q, k, v, mask, layout="bshd")
    assert not np.allclose(before, after)
    expected, _ = definition(q, k, v, (ids[:, None] == ids)[None, None])
    np.testing.assert_allclose(after, expected, atol=2e-5)


def test_rows_past_lengths_give_zero() -> None:
    q, k, v = arrays(q_len=200)
    mask = fdma.compile("causal", [120, 200], [120, 200])
    out, lse = attend(q, k, v, mask, layout="bshd", return_lse=True)
    assert not out[0, 120:].any() and (lse[0, :, 120:] == -np.inf).all()
    alone = attend(q[:1, :120], k[:1, :120], v[:1, :120], "causal", layout="bshd")
    np.testing.assert_array_equal(out[:1, :120], alone)


def test_broadcast_bias_and_any_strides() -> None:
    q, k, v = arrays()
    bias = np.linspace(-1, 1, 200)[None, None]
    full = np.broadcast_to(bias.astype(np.float32), (2, 2, 200))
    expected, _ = definition(q, k, v, np.ones((1, 1, 150, 200), bool), None, full)
    turned = np.asfortranarray(q)
    out = attend(turned, k[:, ::1], v, None, key_bias=bias, layout="bshd")
    np.testing.assert_allclose(out, expected, atol=2e-5)


def test_no_queries_and_no_keys() -> None:
    q, k, v = arrays()
    assert attend(q[:, :0], k, v, layout="bshd").shape == (2, 0, 4, 32)
    out, lse = attend(q, k[:, :0], v[:, :0], layout="bshd", return_lse=True)
    assert not out.any() and (lse == -np.inf).all()


def test_float16() -> None:
    q, k, v = (x.astype(np.float16) for x in arrays())
    expected, _ = definition(q, k, v, cells(fdma.compile("causal", 150, 200)))
    out = attend(q, k, v, "causal", layout="bshd")
    assert out.dtype == np.float16
    np.testing.assert_allclose(out, expected, atol=3e-3)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, 'layout: expected "bhsd" or "bshd"', {"layout": "sbhd"}),
        (ValueError, "scale: expected a finite number other than 0", {"scale": 0}),
        (ValueError, "scale: expected a finite number", {"scale": float("nan")}),
        (ValueError, 'backend: expected "auto", "cpu" or "sm90"', {"backend": "cuda"}),
        (ValueError, 'backend: "sm90" computes on a GPU, q is on the host', {"backend": "sm90"}),
        (TypeError, "mask: expected a BlockMask, a MaskExpr.*got int", {"mask": 3}),
        (TypeError, r"mask: .*got function; fdma.compile takes", {"mask": lambda b, h, q, k: q}),
        (ValueError, r"mask: the text has tables \(@n\)", {"mask": "documents(lengths=@n)"}),
        (ValueError, "mask: its q_len is 100, the tensors have 150", {"mask": "small"}),
        (ValueError, "bias: expected .* = .2, 2, 200.", {"key_bias": np.zeros((2, 4, 200))}),
        (TypeError, "bias: expected floating", {"key_bias": np.zeros((1, 1, 200), np.int64)}),
    ],
)
def test_wrong_arguments_are_named(error: Any, message: str, changes: dict[str, Any]) -> None:
    q, k, v = arrays()
    if changes.get("mask") == "small":
        changes = {"mask": fdma.compile("causal", 100, 200)}
    with pytest.raises(error, match=message):
        attend(q, k, v, **{"layout": "bshd", **changes})


def test_wrong_tensors_are_named() -> None:
    q, k, v = arrays()
    for message, some in (
        ("q: expected 4 dimensions", (q[0], k, v)),
        ("k: expected batch 2", (q, k[:1], v[:1])),
        ("k: expected head_dim 32", (q, k[..., :16], v)),
        ("v: expected", (q, k, v[:, :10])),
        ("k: expected a number of heads that divides the 3", (q[:, :, :3], k, v)),
        ("k: expected float32", (q, k.astype(np.float16), v)),
    ):
        with pytest.raises(ValueError, match=message):
            attend(*some, layout="bshd")
    with pytest.raises(NotImplementedError, match=r"q: expected float32, .* got float64"):
        attend(*(x.astype(np.float64) for x in (q, k, v)), layout="bshd")
    with pytest.raises(TypeError, match="q: expected a tensor of PyTorch or an array"):
        attend([1.0], k, v)


# ---- plans


def geometry(heads: int) -> Geometry:
    return Geometry(1, heads, heads, 16, 16, "float32", (), None)


def test_plans_are_bounded_and_found_by_content() -> None:
    store = Plans(max_plans=3)
    forgotten: list[int] = []
    store.when_forgotten.append(lambda: forgotten.append(len(store)))
    masks = [fdma.compile(f"causal & window({w})", 64) for w in range(1, 6)]
    first = store.get(0, masks[0], geometry(1))
    assert store.of_call(0) is first and store.of_call(1) is None
    again = fdma.compile("causal & window(1)", 64)
    assert store.get("again", again, geometry(1)) is first and len(store) == 1
    for i, mask in enumerate(masks[1:], 1):
        store.get(i, mask, geometry(1))
        assert store.get(0, masks[0], geometry(1)) is first  # used last but one, so it stays
    assert len(store) == 3 and store.of_call(1) is None
    kept = store.of_call(0)
    assert kept is first and len(forgotten) == 2
    store.clear()
    assert len(store) == 0 and store.of_call(0) is None


def test_captured_plans_stay_and_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = fdma.compile("causal", 64)
    store = Plans(max_bytes=1)
    first = store.get(1, mask, geometry(1))
    monkeypatch.setattr(Entry, "is_pinned", property(lambda entry: entry.plan is first))
    for heads in range(2, 6):
        store.get(heads, mask, geometry(heads))
    assert len(store) == 2 and store.nbytes > 1
    assert store.get(1, mask, geometry(1)) is first


def test_threads_share_plans() -> None:
    q, k, v = arrays(q_len=200)
    masks = [f"causal & window({w})" for w in range(3, 11)]
    expected = {mask: attend(q, k, v, mask, layout="bshd") for mask in masks}
    fdma.clear_plans()
    failures: list[str] = []

    def work(turn: int) -> None:
        for i in range(24):
            mask = masks[(i + turn) % len(masks)]
            if not np.array_equal(attend(q, k, v, mask, layout="bshd"), expected[mask]):
                failures.append(mask)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_masks_are_not_kept_by_calls() -> None:
    import weakref

    q, k, v = arrays(q_len=200)
    mask = fdma.compile("causal & window(77)", 200)
    attend(q, k, v, mask, layout="bshd")
    gone = weakref.ref(mask)
    del mask
    gc.collect()
    assert gone() is None


# ---- other frameworks


def test_jax_arrays() -> None:
    jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
    q, k, v = arrays()
    expected = attend(q, k, v, "causal", layout="bshd")
    given = [jax.numpy.asarray(x) for x in (q, k, v)]
    out, lse = attend(*given, "causal", layout="bshd", return_lse=True)
    assert isinstance(out, jax.Array) and lse.shape == (2, 4, 150)
    np.testing.assert_array_equal(np.asarray(out), expected)
    out = attend(*(x.swapaxes(1, 2) for x in given), "causal")
    np.testing.assert_array_equal(np.asarray(out).swapaxes(1, 2), expected)
    with pytest.raises(NotImplementedError, match="q: a tracer of JAX"):
        jax.jit(lambda x: attend(x, given[1], given[2], layout="bshd"))(given[0])
