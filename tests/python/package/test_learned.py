"""Tests learned masks of the package in two frameworks.

The tests cover scores, selection, the state while decoding, and attention.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from fdma_module import definition, random_tensors

# isort: split
import fdma
from fdma.attention.plans import plans

attend: Any = fdma.dynamic_mask_attention
score: Any = fdma.zoh_scores


def inputs(wide: bool = True, batch: int = 2, length: int = 90) -> Any:
    """Returns q, k, v [batch, len, heads, head_dim], dt_proj and a_coef."""
    q, k, v = random_tensors(
        3, batch=batch, q_len=length, kv_len=length, heads_q=4, heads_kv=2, head_dim=16
    )
    random = np.random.default_rng(4)
    dt_proj = random.standard_normal((2, 32 if wide else 16), np.float32) / 4
    return q, k, v, dt_proj, np.array([-1.0, 0.5], np.float32)


def zoh(values: Any, dt_proj: Any, a_coef: Any, mode: str) -> Any:
    values = values.astype(np.float64)
    batch, length, heads, dim = values.shape
    if dt_proj.shape[1] == dim:
        dt = np.einsum("bkhd,hd->bhk", values, dt_proj)
    else:
        dt = np.einsum("bkf,hf->bhk", values.reshape(batch, length, heads * dim), dt_proj)
    log = np.logaddexp(0, dt) * a_coef[:, None]
    return log if mode == "log" else np.exp(log)


def kept_by_sorting(scores: Any, w: int, visible: Any) -> Any:
    """Returns the kept cells [batch, heads_kv, q, k].

    scores is [batch, heads_kv, k] and visible [q, k].
    """
    order = np.argsort(-scores, axis=-1, kind="stable")
    kept = np.zeros((*scores.shape[:2], *visible.shape), bool)
    for at in np.ndindex(scores.shape[:2]):
        ranked = visible[:, order[at]]
        kept[at][:, order[at]] = ranked & (ranked.cumsum(1) <= w)
    return kept


@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("wide", [True, False])
def test_scores(mode: str, wide: bool) -> None:
    _, _, v, dt_proj, a_coef = inputs(wide)
    expected = zoh(v, dt_proj, a_coef, mode)
    got = score(v, dt_proj, a_coef, mode, layout="bshd")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    again = score(v.swapaxes(1, 2), dt_proj, a_coef, mode)
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("wide", [True, False])
def test_gradients_are_the_differences(wide: bool, mode: Any, layout: Any) -> None:
    _, _, v, dt_proj, a_coef = inputs(wide, batch=1, length=7)
    dscores = np.random.default_rng(8).standard_normal((1, 2, 7), np.float32)
    given = v.swapaxes(1, 2) if layout == "bhsd" else v
    found = fdma.zoh_scores_backward(dscores, given, dt_proj, a_coef, mode, layout)
    dvalues = found[0].swapaxes(1, 2) if layout == "bhsd" else found[0]
    arrays = [x.astype(np.float64) for x in (v, dt_proj, a_coef)]

    def loss() -> float:
        return float((zoh(arrays[0], arrays[1], arrays[2], mode) * dscores).sum())

    for array, gradient in zip(arrays, (dvalues, *found[1:]), strict=True):
        assert gradient.dtype == np.float32 and gradient.shape == array.shape
        for at in np.ndindex(array.shape):
            kept = array[at]
            array[at] = kept + 1e-5
            above = loss()
            array[at] = kept - 1e-5
            below = loss()
            array[at] = kept
            assert abs(gradient[at] - (above - below) / 2e-5) < 2e-5, at


@pytest.mark.parametrize(
    "among",
    [
        "causal",
        fdma.causal() & fdma.window(30),
        fdma.causal() & fdma.documents(lengths=[40, 50]),
        fdma.compile("causal & window(30)", 90),
        fdma.compile("causal & padding(lengths=@n)", 90, batch=2, n=[70, 90]),
    ],
    ids=["text", "window", "documents", "compiled", "padded"],
)
def test_selection(among: Any) -> None:
    scores = np.random.default_rng(5).integers(0, 20, (2, 2, 90)).astype(np.float32)
    visible = fdma.compile(among, 90, batch=2) if not isinstance(among, fdma.BlockMask) else among
    mask = fdma.select_topk(scores, 7, among, heads=4)
    cells = np.broadcast_to(visible.to_dense(), (2, 1, 90, 90))
    expected = np.concatenate(
        [kept_by_sorting(scores[b : b + 1], 7, cells[b, 0]) for b in range(2)]
    )
    np.testing.assert_array_equal(mask.to_dense(), expected.repeat(2, axis=1))


@pytest.mark.parametrize("bias", ["exp", "log", "none"])
@pytest.mark.parametrize("drop", [False, True])
def test_attention_equals_the_definition(bias: str, drop: bool) -> None:
    q, k, v, dt_proj, a_coef = inputs()
    if drop:
        v[:, 5] = 1e4  # the first scores underflow to 0; the second explode and are not finite
        dt_proj, a_coef = np.abs(dt_proj), np.array([-1, -2], np.float32)
        if bias == "log":
            pytest.skip("no logarithm is 0")
    scores = np.asarray(score(v, dt_proj, a_coef, "log" if bias == "log" else "exp", "bshd"))
    kept = kept_by_sorting(scores, 11, np.tri(90, dtype=bool)).repeat(2, axis=1)
    if drop:
        assert (scores == 0).any()
        kept &= (scores != 0).repeat(2, axis=1)[:, :, None]
    expected, expected_lse = definition(q, k, v, kept, None, None if bias == "none" else scores)
    out, lse = attend(
        q, k, v, dt_proj, a_coef, 11, bias=bias, layout="bshd", return_lse=True,
        drop_zero_scores=drop,
    )  # fmt: skip
    np.testing.assert_allclose(out, expected, atol=3e-5 * np.abs(expected).max())
    np.testing.assert_allclose(lse, expected_lse, atol=3e-5)


def test_decoding_state_follows_selection() -> None:
    scores = np.random.default_rng(6).integers(0, 9, (2, 3, 60)).astype(np.float32)
    mask = fdma.select_topk(scores, 8)
    cells = mask.to_dense()
    topk = fdma.IncrementalTopk(8, batch=2, heads_kv=3)
    assert (topk.w, topk.kv_len) == (8, 0)
    keys, counts = topk.append(scores[..., :40])
    for step in range(40, 61):
        assert (counts == 8).all()
        for at in np.ndindex(2, 3):
            np.testing.assert_array_equal(keys[at], np.flatnonzero(cells[at][step - 1]))
        if step < 60:
            keys, counts = topk.append(scores[..., step : step + 1])
    assert topk.kv_len == 60 and topk.nbytes > 0
    topk.end_group()
    assert not topk.live_keys()[1].any()


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_decoding_state_is_copied_and_pickled(again: Any) -> None:
    scores = np.random.default_rng(7).integers(0, 9, (2, 3, 60)).astype(np.float32)
    topk = fdma.IncrementalTopk(5, batch=2, heads_kv=3)
    assert again(topk).append(scores[..., :9])[0].shape == (2, 3, 5)  # before the first key, too
    topk.append(scores[..., :30])
    topk.end_group()
    topk.append(scores[..., 30:41])
    other = again(topk)
    assert (other.w, other.kv_len) == (5, 41) and other.nbytes > 0
    for step in range(41, 60):
        for mine, its in zip(
            topk.append(scores[..., step : step + 1]),
            other.append(scores[..., step : step + 1]),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, its)
    other.append(scores[..., :7])  # the copy does not follow the original
    assert (topk.kv_len, other.kv_len) == (60, 67)
    other.end_group()
    assert topk.live_keys()[1].all() and not other.live_keys()[1].any()


def test_decoding_state_of_torch_stays_of_torch() -> None:
    torch = pytest.importorskip("torch")
    topk = fdma.IncrementalTopk(2)
    topk.append(torch.tensor([1.0, 3.0, 2.0]))
    keys, _ = pickle.loads(pickle.dumps(topk)).live_keys()
    assert isinstance(keys, torch.Tensor) and keys.tolist() == [[[1, 2]]]


def test_decoding_state_on_a_gpu_is_not_copied() -> None:
    topk = fdma.IncrementalTopk(2)
    topk._on_gpu = object()  # type: ignore[assignment]
    for again in (copy.deepcopy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="IncrementalTopk: one on a GPU is neither"):
            again(topk)


def test_a_damaged_decoding_state_is_refused() -> None:
    topk = fdma.IncrementalTopk(2)
    topk.append(np.array([1, 3, 2, 5], np.float32))
    state = topk.__getstate__()
    (row,) = state["rows"]
    kept = row["kept"].copy()
    kept[0] = (3, 1)
    for damage in (
        {"w": 0},
        {"w": 1},
        {"q_len": -1},
        {"q_len": 3},
        {"kept": row["kept"][:3]},
        {"kept": kept},
        {"live": row["live"][::-1].copy()},
        {"live": row["live"][:1]},
        {"live": np.array([0, 1], np.uint64)},
        {"waiting": row["live"]},
        {"waiting": row["live"][:1], "waiting_queries": np.array([[4, 9]], np.int32)},
        {"group_end": 2},
        {"last_key": 4},
        {"dropped": np.array([9], np.int32)},
    ):
        other = fdma.IncrementalTopk.__new__(fdma.IncrementalTopk)
        with pytest.raises(ValueError, match=r"state: its|waiting_queries|^w: "):
            other.__setstate__({**state, "rows": [{**row, **damage}]})


def test_wrong_arguments_are_named() -> None:
    q, k, v, dt_proj, a_coef = inputs()
    with pytest.raises(ValueError, match='mode: expected "exp" or "log"'):
        score(v, dt_proj, a_coef, "sqrt", "bshd")
    with pytest.raises(ValueError, match="values: expected 4 dimensions"):
        score(v[0], dt_proj, a_coef)
    with pytest.raises(ValueError, match="bias: expected"):
        attend(q, k, v, dt_proj, a_coef, 11, bias="relu", layout="bshd")
    with pytest.raises(ValueError, match="heads: expected a multiple of 2, got 3"):
        fdma.select_topk(np.zeros((2, 5), np.float32), 1, heads=3)
    with pytest.raises(ValueError, match="NaN"):
        fdma.select_topk(np.array([1, np.nan], np.float32), 1)
    with pytest.raises(NotImplementedError, match="among: a BlockMask of 2 heads"):
        fdma.select_topk(np.zeros((2, 5), np.float32), 1, fdma.compile("k <= q + h", 5, heads=2))
    with pytest.raises(TypeError, match="among: expected a BlockMask"):
        fdma.select_topk(np.zeros(5, np.float32), 1, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity: expected"):
        fdma.IncrementalTopk(4, device=0)
    with pytest.raises(ValueError, match=r"scores: expected .batch, heads_kv, keys. with .1, 2."):
        fdma.IncrementalTopk(4, heads_kv=2).append(np.zeros((1, 5), np.float32))


# ---- PyTorch


@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("wide", [True, False])
def test_gradients_of_scores(mode: Any, wide: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(1)
    _, _, v, dt_proj, a_coef = inputs(wide)
    given = [torch.from_numpy(x).requires_grad_() for x in (v, dt_proj, a_coef)]
    got = score(*given, mode, layout="bshd")
    exact = [x.detach().double().requires_grad_() for x in given]
    rows = exact[0].flatten(2) if wide else exact[0]
    dt = torch.einsum("bkf,hf->bhk" if wide else "bkhd,hd->bhk", rows, exact[1])
    log = torch.nn.functional.softplus(dt) * exact[2][:, None]
    expected = log if mode == "log" else log.exp()
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)
    dscores = torch.randn_like(got)
    grads = torch.autograd.grad(got, given, dscores)
    wanted = torch.autograd.grad(expected, exact, dscores.double())
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad.double(), want, atol=1e-4, rtol=1e-4)
    torch.library.opcheck(torch.ops.fdma.zoh_scores, (*given, mode == "log"))
    detached = [x.detach() for x in given]
    backward = (dscores, *detached, mode == "log", True, False, True)
    torch.library.opcheck(torch.ops.fdma.zoh_scores_backward, backward)
    by_hand = fdma.zoh_scores_backward(
        dscores, detached[0], detached[1], detached[2], mode, layout="bshd"
    )
    assert all(torch.equal(x, y) for x, y in zip(by_hand, grads, strict=True))
    assert torch.autograd.gradcheck(
        lambda *x: score(*x, mode, layout="bshd"),
        [x[:, :3].detach().requires_grad_() if x is given[0] else x for x in given],
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
        nondet_tol=0,
    )
    alone = score(detached[0], given[1], detached[2], mode, layout="bshd")
    (dt_alone,) = torch.autograd.grad(alone, [given[1]], dscores)
    assert torch.equal(dt_alone, grads[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wide", [True, False])
def test_keys_that_nobody_keeps_add_nothing(wide: bool, dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    _, _, v, dt_proj, a_coef = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in inputs(wide))
    dscores = torch.randn(2, 2, 90)
    dscores[:, :, ::3] = 0
    poisoned = v.clone()
    poisoned[:, ::3] = float("nan")
    expected = fdma.zoh_scores_backward(dscores, v, dt_proj, a_coef, layout="bshd")
    got = fdma.zoh_scores_backward(dscores, poisoned, dt_proj, a_coef, layout="bshd")
    for x, y, given in zip(got, expected, (v, dt_proj, a_coef), strict=True):
        assert x.dtype == given.dtype and torch.equal(x, y)
    assert not got[0][:, ::3].any()


@pytest.mark.parametrize("bias", ["exp", "log", "none"])
def test_attention_of_tensors_and_its_gradients(bias: str) -> None:
    torch: Any = pytest.importorskip("torch")
    # The gradient of a_coef sums terms of both signs, so the sum may be small for some dout.
    torch.manual_seed(1)
    arrays = inputs()
    expected = attend(*arrays, 11, bias=bias, layout="bshd")
    given = [torch.from_numpy(x).requires_grad_() for x in arrays]
    out = attend(*given, 11, bias=bias, layout="bshd")
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-6)
    dout = torch.randn_like(out)
    try:
        grads = torch.autograd.grad(out, given, dout, allow_unused=True)
    except NotImplementedError as error:
        pytest.skip(f"no gradients yet: {error}")
    q, k, v, dt_proj, a_coef = exact = [x.detach().double().requires_grad_() for x in given]
    log = torch.nn.functional.softplus(torch.einsum("bkf,hf->bhk", v.flatten(2), dt_proj))
    log = log * a_coef[:, None]
    scores = log if bias == "log" else log.exp()
    kept = fdma.select_topk(scores.float(), 11, heads=4).to_dense()
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) / 4
    if bias != "none":
        logits = logits + scores.repeat_interleave(2, 1)[:, :, None]
    weights = logits.masked_fill(~torch.from_numpy(kept), -torch.inf).softmax(-1)
    by_definition = torch.einsum("bhqk,bkhd->bqhd", weights, v.repeat_interleave(2, 2))
    wanted = torch.autograd.grad(by_definition, exact, dout.double(), allow_unused=True)
    for name, grad, want in zip(["q", "k", "v", "dt_proj", "a_coef"], grads, wanted, strict=True):
        if want is None:
            assert grad is None or not grad.any(), name
        else:
            bound = 2e-5 * max(1.0, want.abs().max().item())
            assert (grad - want).abs().max() < bound, name


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("bias", ["exp", "log", "none"])
def test_gradients_are_those_of_the_steps(bias: str, layout: str) -> None:
    torch: Any = pytest.importorskip("torch")
    arrays = [x.swapaxes(1, 2) if layout == "bhsd" and x.ndim == 4 else x for x in inputs()]
    given = [torch.from_numpy(np.array(x)).requires_grad_() for x in arrays]
    q, k, v, dt_proj, a_coef = given
    out, lse = attend(*given, 11, bias=bias, layout=layout, return_lse=True, scale=0.3)
    scores = score(v, dt_proj, a_coef, "log" if bias == "log" else "exp", layout)
    mask = fdma.select_topk(scores, 11, heads=4)
    added = None if bias == "none" else scores
    run: Any = fdma.attention
    steps, steps_lse = run(q, k, v, mask, key_bias=added, scale=0.3, layout=layout, return_lse=True)
    torch.testing.assert_close(out, steps, atol=1e-6, rtol=1e-5)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), given, (dout, dlse), allow_unused=True)
    wanted = torch.autograd.grad((steps, steps_lse), given, (dout, dlse), allow_unused=True)
    for grad, want in zip(got, wanted, strict=True):
        assert (grad is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(grad, want, atol=5e-5, rtol=1e-4)


def test_gradients_of_keys_that_nobody_keeps() -> None:
    torch: Any = pytest.importorskip("torch")
    for wide in (False, True):
        given = [torch.from_numpy(x).requires_grad_() for x in inputs(wide)]
        scores = score(*given[2:], layout="bshd").detach()
        kept = fdma.select_topk(scores, 3).to_dense().any(2)  # [batch, heads_kv, kv_len]
        kept = torch.from_numpy(kept).transpose(1, 2)
        assert not kept.all()
        out = attend(*given, 3, layout="bshd")
        dk, dv = torch.autograd.grad(out, given[1:3], torch.ones_like(out))
        assert (dk[~kept] == 0).all() and (dv[kept] != 0).all()
        # A value without a weight may still reach the scores of another head, which are kept.
        reaches = kept.any(2, keepdim=True).expand_as(kept) if wide else kept
        assert (dv[~reaches] == 0).all()
        if wide:
            assert (dv[reaches] != 0).all()


def test_gradients_by_finite_differences() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(3)
    arrays = [torch.from_numpy(x) for x in inputs()]
    given = [x.clone().requires_grad_() for x in arrays]
    out = attend(*given, 20, layout="bshd")
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, given, dout)
    step = 4e-3
    for i, grad in enumerate(grads):
        direction = torch.randn_like(arrays[i])
        sides: list[Any] = []
        for sign in (1, -1):
            moved = [x + sign * step * direction if j == i else x for j, x in enumerate(arrays)]
            made = attend(*moved, 20, layout="bshd")
            if i in (2, 3, 4):  # the scores change, but the selection must not
                kinds = (arrays, moved)
                a, b = (score(*x[2:], layout="bshd") for x in kinds)
                masks = [fdma.select_topk(x, 20).to_dense() for x in (a, b)]
                if (masks[0] != masks[1]).any():
                    sides = []
                    break
            sides.append((made.double() * dout).sum())
        if not sides:
            continue
        slope = ((sides[0] - sides[1]) / (2 * step)).item()
        expected = (grad.double() * direction).sum().item()
        assert slope == pytest.approx(expected, rel=2e-2, abs=2e-2), i


def test_tensors_of_decoding() -> None:
    torch: Any = pytest.importorskip("torch")
    topk = fdma.IncrementalTopk(3)
    keys, counts = topk.append(torch.tensor([1.0, 5.0, 2.0, 4.0], requires_grad=True))
    assert torch.equal(keys, torch.tensor([[[1, 2, 3]]], dtype=torch.int32))
    assert counts.tolist() == [[3]]


def test_prepared_calls_lie_among_the_plans() -> None:
    fdma.clear_plans()
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, h, 40, 16)).astype(np.float32) for h in (4, 2, 2))
    dt_proj, a_coef = (
        random.standard_normal((2, 32)).astype(np.float32),
        np.array([-1, -2], np.float32),
    )
    for w in (8, 9, 8):
        fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, w)
    assert len(plans) == 2
    kinds = {type(entry.plan).__name__ for entry in plans._entries.values()}
    assert kinds == {"DynamicMaskAttention"}
    fdma.clear_plans()
    assert len(plans) == 0 and plans.nbytes == 0
