"""Tests that a mask written with b or h for one element or head is refused for several."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import fdma_module  # noqa: F401  (skips this file where the build has no package)
import numpy as np
import pytest

fdma = pytest.importorskip("fdma")

REFUSED_HEADS = (
    "mask: it was written with h and compiled for one head, the tensors have 4; compile it with "
    "heads=4"
)
TEXT = "window(h + 1)"


def tensors(batch: int = 1, heads: int = 4) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal((batch, heads, 64, 16), np.float32) for _ in range(3)]


def is_alone(mask: Any) -> tuple[bool, bool]:
    """Returns whether the mask holds for one batch element only, and for one head only."""
    core = mask._core
    return core.is_per_batch, core.is_per_head


def width(n: int) -> Any:
    return np.arange(1, n + 1)


def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k < h + 1


@pytest.mark.parametrize(
    "made",
    [
        lambda heads: fdma.compile(TEXT, 64, heads=heads),
        lambda heads: fdma.compile(fdma.window(fdma.h + 1), 64, heads=heads),
        lambda heads: fdma.compile("window(@w[h])", 64, heads=heads, w=width(heads)),
        lambda heads: fdma.compile(by_head, 64, heads=heads),
        lambda heads: fdma.compile(by_head, 64, heads=heads, sample=True),
        lambda heads: fdma.compile(TEXT, 64, heads=heads, format="bcsr"),
        lambda heads: fdma.compile(
            "window(h + 1) & topk(@s, 9)", 64, heads=heads, s=np.ones(64, np.float32)
        ),
    ],
    ids=["text", "expression", "table", "traced", "sampled", "format", "learned"],
)
def test_a_mask_of_one_head_is_refused_for_several(made: Callable[[int], Any]) -> None:
    q, k, v = tensors()
    assert is_alone(made(1)) == (False, True)
    with pytest.raises(ValueError, match=REFUSED_HEADS):
        fdma.attention(q, k, v, made(1))
    fdma.attention(q[:, :1], k[:, :1], v[:, :1], made(1))
    fdma.attention(q, k, v, made(4))


def test_a_plan_that_is_known_by_its_cells_does_not_let_it_in() -> None:
    q, k, v = tensors()
    shared = fdma.compile("window(1)", 64)
    fdma.attention(q, k, v, shared)
    own = fdma.compile(TEXT, 64)
    assert own.content_hash == shared.content_hash
    for _ in range(2):
        with pytest.raises(ValueError, match=REFUSED_HEADS):
            fdma.attention(q, k, v, own)


def test_tensors_of_pytorch_are_refused_alike() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, tensors())
    fdma.attention(q, k, v, fdma.compile("window(1)", 64))
    own = fdma.compile(TEXT, 64)
    for layout in ("bhsd", "bshd"):
        given = [x if layout == "bhsd" else x.transpose(1, 2) for x in (q, k, v)]
        with pytest.raises(ValueError, match=REFUSED_HEADS):
            fdma.attention(*given, own, layout=layout)


@pytest.mark.parametrize(
    "made",
    [
        lambda: fdma.compile("k <= q + b", 64),
        lambda: fdma.compile(fdma.padding([60]), 64),
        lambda: fdma.compile(fdma.prefix([60]), 64),
        lambda: fdma.compile(fdma.documents(ids=np.zeros((1, 64), int)), 64),
        lambda: fdma.compile(lambda b, h, q, k: k < q + b, 64),
        lambda: fdma.compile(lambda b, h, q, k: k < q + b, 64, sample=True),
        lambda: fdma.compile("causal & topk(@s, 9)", 64, s=np.ones((1, 1, 64), np.float32)),
    ],
    ids=["text", "padding", "prefix", "ids", "traced", "sampled", "learned"],
)
def test_a_mask_of_one_element_is_refused_for_several(made: Callable[[], Any]) -> None:
    assert is_alone(made()) == (True, False)
    with pytest.raises(
        ValueError, match=r"compiled for one, the tensors have 3; compile it with batch=3"
    ):
        fdma.attention(*tensors(3, 2), made())
    fdma.attention(*tensors(1, 2), made())


@pytest.mark.parametrize(
    "mask",
    [
        lambda: fdma.compile("causal & window(9)", 64),
        lambda: fdma.compile(fdma.documents(lengths=[30, 34]), 64),
        lambda: fdma.compile(fdma.bits(np.ones((1, 1, 64, 64), bool)), 64),
        lambda: fdma.BlockMask.from_dense(np.ones((1, 1, 64, 64), bool)),
        lambda: fdma.from_hf_mask(np.ones((1, 1, 64, 64), bool)),
        lambda: fdma.compile("causal & topk(@s, 9)", 64, s=np.ones((1, 64), np.float32)),
        lambda: fdma.compile(lambda b, h, q, k: q >= k, 64, sample=True),
        lambda: fdma.compile(TEXT, 64, heads=4).crop(heads=2),
        lambda: fdma.compile(TEXT, 64, heads=4).crop(q=slice(64), heads=2),
        lambda: fdma.compile("k <= q + b", 64, batch=2).crop(batch=1),
    ],
)
def test_what_serves_all_still_does(mask: Callable[[], Any]) -> None:
    assert is_alone(mask()) == (False, False)
    fdma.attention(*tensors(3, 4), mask())


def test_sampling_asks_what_the_function_looks_at() -> None:
    torch = pytest.importorskip("torch")
    widths = np.array([3, 5, 7])
    offsets = torch.tensor([3, 5, 7])

    def sampled(function: Any, **shape: int) -> tuple[bool, bool]:
        return is_alone(fdma.compile(function, 8, sample=True, **shape))

    for function in (
        lambda b, h, q, k: q - k < offsets[h],
        lambda b, h, q, k: q - k < widths[h],
        lambda b, h, q, k: torch.where(h > 1, q >= k, q > k),
        lambda b, h, q, k: (q - k < widths[1]) & (np.asarray(h) > -1),
        lambda b, h, q, k: (widths[1] > 0) & (q + h.astype(np.int64) >= k),
    ):
        assert sampled(function) == (False, True)
    for function in (
        lambda b, h, q, k: q - k < offsets[k % 3],
        lambda b, h, q, k: q - k < widths[k % 3],
        lambda b, h, q, k: (q >= k) & h.new_ones((), dtype=torch.bool),
        lambda b, h, q, k: (q >= k) & (h.ndim >= 0) & (widths[0] > 0),
    ):
        assert sampled(function) == (False, False)
    several = fdma.compile(by_head, 8, heads=3, sample=True)
    assert several.heads == 3 and several == fdma.compile("q - k < h + 1", 8, heads=3)


def test_sampling_takes_it_for_both_where_it_cannot_tell() -> None:
    widths = np.array([3, 5, 7])

    def strict(b: Any, h: Any, q: Any, k: Any) -> Any:
        if type(h) is not np.ndarray:
            raise TypeError("arrays only")
        return q - k < widths[0]

    assert is_alone(fdma.compile(strict, 8, sample=True)) == (True, True)


@pytest.mark.parametrize("operation", ["__and__", "__or__", "__xor__", "__sub__"])
def test_set_algebra_refuses_one_for_several(operation: str) -> None:
    one, four = fdma.compile(TEXT, 64), fdma.compile("causal", 64, heads=4)
    refusal = "combine: one mask was written with h .* the other has 4; compile it with heads=4"
    for a, b in ((one, four), (four, one)):
        with pytest.raises(ValueError, match=refusal):
            getattr(a, operation)(b)
    shared = fdma.compile("causal", 64)
    assert is_alone(getattr(one, operation)(shared)) == (False, True)
    assert is_alone(getattr(shared, operation)(one)) == (False, True)


def test_what_is_made_of_it_is_alone_too(tmp_path: Any) -> None:
    pytest.importorskip("h5py")
    mask = fdma.compile(TEXT, 64)
    path = tmp_path / "mask.h5"
    mask.save(path)
    others = [
        mask.to_format("bcsr"),
        mask.to_format("segment", block=64),
        mask.crop(q=slice(32)),
        mask.crop(),
        mask.shift(1, 2),
        mask.transpose(),
        ~mask,
        fdma.BlockMask.concatenate([mask, mask]),
        fdma.BlockMask.from_arrays(mask.arrays()),
        pickle.loads(pickle.dumps(mask)),
        copy.deepcopy(mask),
        fdma.load(path),
        fdma.load(path, isolate=True),
    ]
    for other in others:
        assert is_alone(other) == (False, True)


def test_estimates_refuse_it() -> None:
    mask = fdma.compile(TEXT, 64)
    with pytest.raises(ValueError, match=REFUSED_HEADS):
        fdma.estimate(mask, heads=4)
    assert fdma.estimate(mask, heads=1).time_ms > 0


def test_among_of_one_head_is_refused_for_several() -> None:
    one = fdma.compile("causal & window(h + 4)", 64)
    scores = np.random.default_rng(1).random((1, 2, 64), np.float32)
    refusal = "among: it was written with h .* compile it with heads="
    with pytest.raises(ValueError, match=refusal):
        fdma.select_topk(scores, 5, one)
    q, k, v = tensors()
    dt_proj, a_coef = np.ones((2, 16), np.float32), np.array([-1, -2], np.float32)
    with pytest.raises(ValueError, match=refusal):
        fdma.dynamic_mask_attention(q, k[:, :2], v[:, :2], dt_proj, a_coef, 5, one)


@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_among_means_the_query_head(heads_kv: int) -> None:
    q, k, v = tensors()
    k, v = k[:, :heads_kv], v[:, :heads_kv]
    random = np.random.default_rng(2)
    dt_proj = random.standard_normal((heads_kv, 16), np.float32)
    a_coef = -random.random(heads_kv, np.float32)
    scores = fdma.zoh_scores(v, dt_proj, a_coef)
    among = "causal & window(8 * h + 4)"
    found = fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 5, among)
    mask = fdma.select_topk(scores, 5, among, heads=4)
    np.testing.assert_allclose(found, fdma.attention(q, k, v, mask, key_bias=scores), atol=1e-6)
    cells = fdma.compile(among, 64, heads=4).to_dense()
    assert not (mask.to_dense() & ~cells).any()
    assert (mask.to_dense().sum(-1) == np.minimum(cells.sum(-1), 5)).all()


def test_earlier_names_refuse_it() -> None:
    flash_dmattn = pytest.importorskip("flash_dmattn")
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in tensors())
    attend = flash_dmattn.flash_dmattn_func_auto(backend="cpu")
    alone = flash_dmattn.create_sparse_mask(TEXT, seqlen_q=64)
    with pytest.raises(ValueError, match=REFUSED_HEADS):
        attend(query=q, key=k, value=v, sparse_mask=alone)
    four = flash_dmattn.create_sparse_mask(TEXT, seqlen_q=64, heads=4)
    attend(query=q, key=k, value=v, sparse_mask=four)
    with pytest.raises(ValueError, match="pattern: it was written with h"):
        flash_dmattn.DynamicMask(64, 64, heads=4, max_keys=64).update(fdma.compile(TEXT, 64))
