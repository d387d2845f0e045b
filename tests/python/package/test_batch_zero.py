"""Tests a batch of 0 and calls without heads.

Results of a batch of 0 are empty and have the right shapes, types and gradients. 0 heads are an
error.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER  # noqa: F401

# isort: split
import fdma

attend: Any = fdma.attention
learned: Any = fdma.dynamic_mask_attention
MASKS = [
    None,
    "causal & window(3)",
    fdma.causal() & (fdma.h < 2),
    fdma.padding(lengths=np.zeros(0, np.int32)),
    fdma.compile("causal", 5, 7),
]


def arrays(layout: str = "bhsd", batch: int = 0) -> list[Any]:
    shapes = [(batch, heads, n, dim) for heads, n, dim in ((4, 5, 16), (2, 7, 16), (2, 7, 8))]
    made = [np.ones(shape, np.float16) for shape in shapes]
    return made if layout == "bhsd" else [x.swapaxes(1, 2) for x in made]


@pytest.mark.parametrize("kind", ["numpy", "jax"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_arrays(kind: str, layout: str) -> None:
    given = arrays(layout)
    if kind == "jax":
        jax = pytest.importorskip("jax")
        given = [jax.numpy.asarray(x) for x in given]
    out_shape = (0, 4, 5, 8) if layout == "bhsd" else (0, 5, 4, 8)
    for mask in MASKS:
        bias = np.zeros((0, 2, 7), np.float32) if kind == "numpy" else None
        out, lse = attend(*given, mask, key_bias=bias, layout=layout, return_lse=True)
        assert out.shape == out_shape and lse.shape == (0, 4, 5)
        assert out.dtype == np.float16 and lse.dtype == np.float32
        assert type(out) is type(attend(*given, mask, key_bias=bias, layout=layout))
        assert isinstance(out, np.ndarray) == (kind == "numpy")


@pytest.mark.parametrize("way", ["eager", "operators", "compile"])
def test_tensors_and_gradients(way: str) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    for layout, mask in itertools.product(("bhsd", "bshd"), MASKS):
        if way == "compile" and isinstance(mask, fdma.MaskExpr) and mask.tables:
            continue
        given = [torch.from_numpy(x.copy()).requires_grad_() for x in arrays(layout)]
        bias = torch.zeros(0, 2, 7, requires_grad=True)

        def call(*x: Any, mask: Any = mask, layout: str = layout) -> Any:
            return attend(*x[:3], mask, key_bias=x[3], layout=layout, return_lse=True)

        if way == "compile":
            call = torch.compile(call, backend="aot_eager", fullgraph=True)
        if way == "operators":
            with torch.profiler.profile():
                out, lse = call(*given, bias)
        else:
            out, lse = call(*given, bias)
        assert out.shape == ((0, 4, 5, 8) if layout == "bhsd" else (0, 5, 4, 8))
        assert lse.shape == (0, 4, 5)
        assert out.dtype == torch.float16 and lse.dtype == torch.float32
        grads = torch.autograd.grad(out.float().sum() + lse.sum(), [*given, bias])
        for x, grad in zip([*given, bias], grads, strict=True):
            assert grad.shape == x.shape and grad.dtype == x.dtype
        assert attend(*(x.detach() for x in given), mask, layout=layout).shape == out.shape
    torch._dynamo.reset()


def test_learned_masks() -> None:
    given: list[Any] = [np.ones((0, heads, 7, 8), np.float32) for heads in (4, 2, 2)]
    given += [np.ones((2, 16), np.float32), np.ones(2, np.float32)]
    q, k, v, dt_proj, a_coef = given
    for among in ("causal", fdma.window(3), fdma.compile("causal", 7)):
        out, lse = learned(q, k, v, dt_proj, a_coef, 3, among, return_lse=True)
        assert out.shape == (0, 4, 7, 8) and lse.shape == (0, 4, 7)
    assert fdma.zoh_scores(v, dt_proj, a_coef).shape == (0, 2, 7)
    found = fdma.zoh_scores_backward(np.zeros((0, 2, 7), np.float32), v, dt_proj, a_coef)
    assert [x.shape for x in found] == [v.shape, (2, 16), (2,)]
    assert not found[1].any() and not found[2].any()
    with pytest.raises(ValueError, match="scores: expected at least one batch element"):
        fdma.select_topk(np.zeros((0, 2, 7), np.float32), 3)
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(x.copy()).requires_grad_() for x in (q, k, v, dt_proj, a_coef)]
    grads = torch.autograd.grad(learned(*given, 3).sum(), given)
    assert all(not x.any() and x.shape == y.shape for x, y in zip(grads, given, strict=True))


def test_layers() -> None:
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("fdma.nn")
    x = torch.zeros(0, 6, 32)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    ours = nn.MultiheadAttention(32, 4, batch_first=True)
    for needs in (False, True):
        (out, weights), (other, others) = (
            layer(x, x, x, need_weights=needs) for layer in (ours, theirs)
        )
        assert out.shape == other.shape
        assert weights is others is None or weights.shape == others.shape
    assert nn.DynamicMaskAttention(32, 4, keep_window_size=2)(x).shape == x.shape


def test_what_is_wrong_stays_an_error() -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="mask: it is for 3 batch, the tensors have 0"):
        attend(q, k, v, fdma.compile("causal", 5, 7, batch=3))
    with pytest.raises(ValueError, match="mask: its kv_len is 9, the tensors have 7"):
        attend(q, k, v, fdma.compile("causal", 5, 9))
    with pytest.raises(fdma.MaskSyntaxError):
        attend(q, k, v, "causl")
    with pytest.raises(ValueError, match="the text has tables"):
        attend(q, k, v, "@t[k]")
    with pytest.raises(NotImplementedError, match="q: expected float32"):
        attend(*(x.astype(np.float64) for x in (q, k, v)))
    with pytest.raises(ValueError, match="k: expected batch 0, as q, got 1"):
        attend(q, *arrays(batch=1)[1:])


@pytest.mark.parametrize("batch", [0, 2])
def test_no_heads_are_an_error(batch: int) -> None:
    none, some = (np.zeros((batch, heads, 5, 8), np.float32) for heads in (0, 2))
    with pytest.raises(ValueError, match="q: expected at least 1 head, got 0"):
        attend(none, none, none)
    with pytest.raises(ValueError, match="q: expected at least 1 head, got 0"):
        attend(none, some, some)
    with pytest.raises(ValueError, match="k: expected at least 1 head, got 0"):
        attend(some, none, none)
