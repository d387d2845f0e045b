"""fdma.plan: the same results as fdma.attention, by the same plans; what a plan refuses by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdma_module import definition, random_tensors

# isort: split
import fdma
from fdma.attention import plans as plan_cache

SHAPE: Any = {"q": (2, 4, 150, 32), "k": (2, 2, 200, 32), "v": (2, 2, 200, 24)}


def arrays(dtype: Any = np.float32, q_len: int = 150, kv_len: int = 200) -> list[Any]:
    """q, k, v [batch, heads, len, head_dim]."""
    tensors = random_tensors(
        5, batch=2, q_len=q_len, kv_len=kv_len, heads_q=4, heads_kv=2, head_dim=32, head_dim_v=24
    )
    return [np.ascontiguousarray(x.swapaxes(1, 2)).astype(dtype) for x in tensors]


@pytest.fixture(name="torch")
def imported_torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    fdma.clear_plans()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_runs_as_attention_does(layout: Any) -> None:
    q, k, v = arrays()
    mask = fdma.causal() & (fdma.window(40) | fdma.sink(4))
    bias = np.random.default_rng(2).standard_normal((2, 2, 200)).astype(np.float32)
    if layout == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    expected, expected_lse = fdma.attention(
        q, k, v, mask, key_bias=bias, scale=0.3, layout=layout, return_lse=True
    )
    plan = fdma.plan(mask, q=q, k=k, v=v, layout=layout, key_bias=True)
    words: Any = {"key_bias": bias, "softmax_scale": 0.3}
    out, lse = plan.run(q, k, v, **words, return_lse=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    np.testing.assert_array_equal(plan.run(q, k, v, **words, num_threads=1), expected)
    into, lse_into = np.full_like(out, np.nan), np.full_like(lse, np.nan)
    given = plan.run(q, k, v, **words, out=into, lse=lse_into, return_lse=True)
    assert given[0] is into and given[1] is lse_into
    np.testing.assert_array_equal(into, expected)
    np.testing.assert_array_equal(lse_into, expected_lse)


def test_attention_finds_the_plan_and_the_plan_survives_the_cache() -> None:
    q, k, v = arrays()
    plan = fdma.plan("causal", **SHAPE)
    assert len(plan_cache.plans) == 1
    out = fdma.attention(q, k, v, "causal")
    assert len(plan_cache.plans) == 1, "attention looks up what fdma.plan made"
    core = plan._forward.plan
    fdma.clear_plans()
    assert len(plan_cache.plans) == 0
    np.testing.assert_array_equal(plan.run(q, k, v), out)
    (entry,) = plan_cache.plans._entries.values()
    assert entry.plan is core, "run finds the plan that the object kept"
    assert fdma.plan("causal", **SHAPE)._forward is plan._forward


def test_shows_itself() -> None:
    plan = fdma.plan("causal", **SHAPE)
    assert plan.shape == (2, 4, 2, 150, 200, 32, 24)
    assert (plan.shape.heads, plan.shape.head_dim_v) == (4, 24)
    assert (plan.backend, plan.device, plan.dtype) == ("cpu", "cpu", "float32")
    assert (plan.layout, plan.score, plan.is_closed_form) == ("bhsd", (), False)
    assert plan.mask == fdma.compile("causal", 150, 200, 2, 4)
    assert plan.nbytes > 0 and plan.num_work_tiles > 0 and len(plan.tile) == 2
    assert repr(plan) == (
        "<AttentionPlan cpu, float32, batch 2, heads 4 over 2, 150 x 200, head_dim 32 (values 24), "
        f"tile {plan.tile[0]} x {plan.tile[1]}, {plan.num_work_tiles} work tiles, "
        f"{plan.nbytes:,} bytes>"
    )
    both = fdma.plan("causal", **SHAPE, gradients=True)
    assert both.nbytes > plan.nbytes
    assert plan.predict().device == "cpu"
    said = fdma.plan("causal", **SHAPE, dtype="bfloat16").predict("h200")
    assert said.device == "h200" and said.time_ms > 0
    choices = plan.explain().splitlines()
    assert choices[0] == "costs by cpu, 8 workers"
    assert choices[1].startswith("choice columns: scan ") and "; not gather " in choices[1]
    with pytest.raises(TypeError, match=r"AttentionPlan: fdma\.plan makes them"):
        fdma.AttentionPlan()


def test_a_shorter_mask_sets_rows_past_lengths() -> None:
    q, k, v = arrays(kv_len=150)
    mask = fdma.compile("causal", [100, 150])
    plan = fdma.plan(mask, q=q, k=k, v=v)
    expected, expected_lse = fdma.attention(q, k, v, mask, return_lse=True)
    into = np.full_like(expected, np.nan)
    out, lse = plan.run(q, k, v, out=into, return_lse=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def cells(q_len: int, kv_len: int, q: int, k: int) -> Any:
    """Causal cells of lengths (q, k) in tensors of (q_len, kv_len)."""
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    return (keys <= rows + k - q) & (rows < q) & (keys < k)


def test_closed_forms_take_lengths() -> None:
    q, k, v = arrays()
    plan = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    assert plan.is_closed_form and "tile 128 x 128, closed form, " in repr(plan)
    whole, lse = plan.run(q, k, v, return_lse=True)
    expected, expected_lse = fdma.attention(q, k, v, "causal", return_lse=True)
    np.testing.assert_allclose(whole, expected, atol=1e-6)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-6)
    q_lens, kv_lens = np.array([20, 150], np.int32), np.array([30, 170], np.int32)
    into = np.full_like(whole, np.nan)
    for out in (None, into):
        given, lse = plan.run(
            q, k, v, q_lens=q_lens, kv_lens=kv_lens, out=out, return_lse=True, softmax_scale=0.5
        )
        mask = np.stack([cells(150, 200, *x)[None] for x in zip(q_lens, kv_lens, strict=True)])
        rows_first = [x.swapaxes(1, 2) for x in (q, k, v)]
        wanted, wanted_lse = definition(rows_first[0], rows_first[1], rows_first[2], mask, 0.5)
        np.testing.assert_allclose(given, wanted.swapaxes(1, 2), atol=1e-5)
        np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)
    assert (given[0, :, 20:] == 0).all() and (lse[0, :, 20:] == -np.inf).all()
    for mask_given in (fdma.compile("causal", 150, 200), None):
        assert fdma.plan(mask_given, **SHAPE, closed_form=True).run(q, k, v).shape == whole.shape


def test_closed_forms_take_documents() -> None:
    q, k, v = arrays(q_len=200)
    plan = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    borders = np.array([0, 70, 130, 200], np.int32)
    packed = fdma.compile(fdma.causal() & fdma.documents(cu_seqlens=borders), 200)
    expected = fdma.attention(q, k, v, packed)
    np.testing.assert_allclose(plan.run(q, k, v, cu_seqlens_q=borders), expected, atol=1e-6)
    np.testing.assert_allclose(plan.run(q, k, v, cu_seqlens_k=borders), expected, atol=1e-6)
    both = plan.run(q, k, v, cu_seqlens_q=borders, cu_seqlens_k=borders.copy())
    np.testing.assert_allclose(both, expected, atol=1e-6)
    each = np.array([[0, 70, 200], [0, 10, 200]], np.int32)
    out = plan.run(q, k, v, cu_seqlens_q=each)
    alone = fdma.attention(q[1:, :, :10], k[1:, :, :10], v[1:, :, :10], "causal")
    np.testing.assert_allclose(out[1:, :, :10], alone, atol=1e-6)
    with pytest.raises(NotImplementedError, match="cu_seqlens_k: expected cu_seqlens_q itself"):
        plan.run(q, k, v, cu_seqlens_q=borders, cu_seqlens_k=borders[:3])


INT = np.zeros(2, np.int32)


@pytest.mark.parametrize(
    ("error", "message", "made", "changes"),
    [
        (ValueError, r"q: expected \[2, 4, 150, 32\], for which the plan was made, got \[1, ",
         {}, {"q": lambda q: q[:1]}),
        (ValueError, r"v: expected \[2, 2, 200, 24\], for which", {}, {"v": lambda v: v[..., :8]}),
        (ValueError, "k: expected float32, for which the plan was made, got float16",
         {}, {"k": lambda k: k.astype(np.float16)}),
        (ValueError, "key_bias: expected None; ", {}, {"key_bias": np.zeros((2, 2, 200))}),
        (ValueError, "key_bias: expected one", {"key_bias": True}, {}),
        (ValueError, r"key_bias: expected 3 dimensions \[batch, heads_kv, kv_len\]",
         {"key_bias": True}, {"key_bias": np.zeros((2, 4, 200))}),
        (ValueError, "softmax_scale: expected a finite number", {}, {"softmax_scale": 0.0}),
        (ValueError, "q_lens: expected None; .*closed_form=True", {}, {"q_lens": INT}),
        (ValueError, "cu_seqlens_k: expected None; .*closed form", {}, {"cu_seqlens_k": INT}),
        (ValueError, "kv_lens: expected an int32 array, got int64",
         {"closed_form": True}, {"kv_lens": np.zeros(2, np.int64)}),
        (ValueError, "q_lens: expected an int32 array, got list",
         {"closed_form": True}, {"q_lens": [1, 2]}),
        (ValueError, r"q_lens: expected \[batch\] = \[2\]",
         {"closed_form": True}, {"q_lens": np.zeros(3, np.int32)}),
        (NotImplementedError, "cu_seqlens_q: the plan has 150 queries and 200 keys",
         {"closed_form": True}, {"cu_seqlens_q": INT}),
        (ValueError, r"out: expected float32 \[2, 4, 150, 24\], got float32 \[2, 4, 150, 32\]",
         {}, {"out": np.zeros((2, 4, 150, 32), np.float32)}),
        (ValueError, r"lse: expected float32 \[2, 4, 150\], got float64",
         {}, {"lse": np.zeros((2, 4, 150)), "return_lse": True}),
        (ValueError, "lse: expected None with return_lse=False",
         {}, {"lse": np.zeros((2, 4, 150), np.float32)}),
        (TypeError, "out: expected an array like q, got list", {}, {"out": [1]}),
    ],
)  # fmt: skip
def test_runs_refuse_by_name(error: Any, message: str, made: Any, changes: Any) -> None:
    given = dict(zip("qkv", arrays(), strict=True))
    plan = fdma.plan("causal", **SHAPE, **made)
    for name, change in changes.items():
        given[name] = change(given[name]) if callable(change) else change
    run: Any = plan.run
    with pytest.raises(error, match=message):
        run(**given)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, "q: expected a tensor, an array or a shape, got float", {"q": 3.0}),
        (ValueError, "q: expected 4 dimensions", {"q": (1, 2, 3)}),
        (ValueError, "k: expected head_dim 32", {"k": (2, 2, 200, 8), "v": (2, 2, 200, 8)}),
        (ValueError, "q: expected at least 1 batch element",
         {"q": (0, 4, 150, 32), "k": (0, 2, 200, 32), "v": None}),
        (ValueError, "dtype: expected float32, float16 or bfloat16, got 'float64'",
         {"dtype": "float64"}),
        (ValueError, 'device: expected "cpu" or "cuda:0"', {"device": "tpu"}),
        (ValueError, 'layout: expected "bhsd"', {"layout": "sbhd"}),
        (ValueError, "mask: its q_len is 100", {"mask": fdma.compile("causal", 100, 200)}),
        (TypeError, "k: expected a shape, as q, got ndarray", {"k": np.zeros((2, 2, 200, 32))}),
        (NotImplementedError, "parametric", {"closed_form": True, "mask": "k <= q * 3"}),
        (NotImplementedError, "parametric",
         {"closed_form": True, "mask": fdma.compile("k <= q * 3", 150, 200)}),
    ],
)  # fmt: skip
def test_plans_refuse_by_name(error: Any, message: str, changes: Any) -> None:
    make: Any = fdma.plan
    with pytest.raises(error, match=message):
        make(**{"mask": "causal", **SHAPE, **changes})


def test_plans_of_arrays_take_what_these_say() -> None:
    q, k, v = arrays(np.float16)
    plan = fdma.plan(None, q=q, k=k, v=v)
    assert plan.dtype == "float16"
    np.testing.assert_array_equal(plan.run(q, k, v), fdma.attention(q, k, v))
    make: Any = fdma.plan
    with pytest.raises(ValueError, match="dtype: expected None with tensors"):
        make(None, q=q, k=k, v=v, dtype="float16")
    with pytest.raises(ValueError, match="k: expected float16, as q, got float32"):
        make(None, q=q, k=k.astype(np.float32), v=v)
    with pytest.raises(TypeError, match="k: expected an array like q, got tuple"):
        make(None, q=q, k=k.shape, v=v)


# PyTorch


def tensors(torch: Any) -> list[Any]:
    return [torch.from_numpy(x) for x in arrays()]


def test_gradients_are_those_of_attention(torch: Any) -> None:
    given = tensors(torch)
    plan = fdma.plan("causal & window(50)", q=given[0], k=given[1], v=given[2], gradients=True)
    assert len(plan_cache.plans) == 2

    def gradients(call: Any) -> Any:
        leaves = [x.clone().requires_grad_() for x in given]
        out, lse = call(*leaves)
        return torch.autograd.grad(out.square().sum() + lse.sum(), leaves)

    expected = gradients(
        lambda q, k, v: fdma.attention(q, k, v, "causal & window(50)", return_lse=True)
    )
    got = gradients(lambda q, k, v: plan.run(q, k, v, return_lse=True))
    assert len(plan_cache.plans) == 2, "the gradients were planned, too"
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)


def test_plans_serve_any_framework_of_their_place(torch: Any) -> None:
    given = arrays()
    plan = fdma.plan("causal", **SHAPE)
    out = plan.run(*(torch.from_numpy(x) for x in given))
    np.testing.assert_array_equal(out.numpy(), plan.run(*given))
    with pytest.raises(NotImplementedError, match="q: is on meta"):
        plan.run(*(torch.from_numpy(x).to("meta") for x in given))
    with pytest.raises(TypeError, match="q: expected a tensor of PyTorch or an array"):
        plan.run([1], given[1], given[2])


def test_torch_compile(torch: Any) -> None:
    given = tensors(torch)
    plan = fdma.plan("causal", q=given[0], k=given[1], v=given[2])

    def layer(q: Any, k: Any, v: Any) -> Any:
        return plan.run(q * 2, k, v).transpose(1, 2).flatten(2)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    leaves = [x.clone().requires_grad_() for x in given]
    compiled(*leaves).square().sum().backward()
    others = [x.clone().requires_grad_() for x in given]
    out = fdma.attention(others[0] * 2, others[1], others[2], "causal")
    out.square().sum().backward()
    for x, y in zip(leaves, others, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_outputs_and_lengths_of_tensors(torch: Any) -> None:
    q, k, v = tensors(torch)
    plan = fdma.plan("causal", q=q, k=k, v=v)
    expected, expected_lse = fdma.attention(q, k, v, "causal", return_lse=True)
    out, lse = torch.full_like(expected, torch.nan), torch.full_like(expected_lse, torch.nan)
    plan.run(q, k, v, out=out, lse=lse, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    odd = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert torch.equal(plan.run(*odd, out=out), expected)
    closed = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    lengths = torch.tensor([100, 7], dtype=torch.int32)
    short = closed.run(q, k, v, q_lens=lengths)
    assert (short[1, :, 7:] == 0).all() and short[0, :, :100].any()
    host = fdma.plan("causal", **SHAPE, closed_form=True).run(
        q.numpy(), k.numpy(), v.numpy(), q_lens=lengths.numpy()
    )
    np.testing.assert_array_equal(short.numpy(), host)
    leaf = q.clone().requires_grad_()
    into: Any = {"out": out}
    for made, words in ((plan, into), (closed, into), (closed, {**into, "q_lens": lengths})):
        with pytest.raises(NotImplementedError, match=r"q: runs into given memory .*no_grad"):
            made.run(leaf, k, v, **words)
        with torch.no_grad():
            made.run(leaf, k, v, **words)


# Gradients of runs in closed form


def gradients_of(torch: Any, run: Any, given: list[Any], **words: Any) -> list[Any]:
    """The gradients of q, k, v and the bias, if there is one, through the result and the lse."""
    leaves = [x.clone().requires_grad_() for x in given]
    out, lse = run(*leaves, **words, return_lse=True)
    assert out.requires_grad and lse.requires_grad
    seen = lse > -torch.inf
    random = torch.Generator().manual_seed(3)
    weights = torch.randn(out.shape, generator=random, dtype=torch.float32).to(out.dtype)
    loss = (out * weights).sum() + torch.where(seen, lse, 0).sum() / 7
    return list(torch.autograd.grad(loss, leaves))


def expect_gradients(torch: Any, got: list[Any], expected: list[Any], limit: float = 2e-5) -> None:
    for name, x, y in zip(("q", "k", "v", "bias"), got, expected, strict=False):
        assert (x - y).abs().max() <= limit * max(1.0, y.abs().max().item()), name
    assert len(got) == len(expected) and all(x.abs().max() > 0 for x in expected)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "spec",
    ["causal", "causal & window(40)", "prefix(30)", "causal & (window(9) | sink(4))", "true"],
)
def test_gradients_in_closed_form(torch: Any, spec: str, has_bias: bool, layout: Any) -> None:
    given = tensors(torch)
    if layout == "bshd":
        given = [x.transpose(1, 2).contiguous() for x in given]
    plan = fdma.plan(
        spec, q=given[0], k=given[1], v=given[2], layout=layout, key_bias=has_bias, closed_form=True
    )
    if has_bias:
        random = np.random.default_rng(4)
        given.append(torch.from_numpy(random.standard_normal((2, 2, 200)).astype(np.float32)))
    attend: Any = fdma.attention

    def run(q: Any, k: Any, v: Any, bias: Any = None, **words: Any) -> Any:
        return plan.run(q, k, v, key_bias=bias, softmax_scale=0.3, **words)

    def by_mask(mask: Any) -> list[Any]:
        return gradients_of(
            torch,
            lambda q, k, v, bias=None, **words: attend(
                q, k, v, mask, key_bias=bias, scale=0.3, layout=layout, **words
            ),
            given,
        )

    expect_gradients(torch, gradients_of(torch, run, given), by_mask(spec))
    q_lens, kv_lens = [150, 61], [170, 83]
    short = gradients_of(
        torch,
        run,
        given,
        q_lens=torch.tensor(q_lens, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
    )
    expect_gradients(torch, short, by_mask(fdma.compile(spec, q_lens, kv_lens)))
    axis = 2 if layout == "bhsd" else 1
    for x, lengths in zip(short[:3], (q_lens, kv_lens, kv_lens), strict=True):
        for element, length in zip(x.transpose(1, axis), lengths, strict=True):
            assert not element[length:].any(), "rows past a length have gradients of 0"
    if has_bias:
        assert not short[3][1, :, 83:].any()
    only_keys = gradients_of(torch, run, given, kv_lens=torch.tensor([150, 199], dtype=torch.int32))
    expect_gradients(torch, only_keys, by_mask(fdma.compile(spec, [150, 150], [150, 199])))


def test_gradients_of_documents(torch: Any) -> None:
    given = [torch.from_numpy(x) for x in arrays(q_len=200)]
    plan = fdma.plan(
        "causal & window(50)", q=given[0], k=given[1], v=given[2], closed_form=True, gradients=True
    )
    assert (
        plan.nbytes
        > fdma.plan(
            "causal & window(50)", q=given[0], k=given[1], v=given[2], closed_form=True
        ).nbytes
    )
    assert len(plan_cache.plans) == 2
    attend: Any = fdma.attention
    for borders in ([0, 70, 130, 200], [0, 200], [0, 20, 20, 111]):
        ends = np.array(borders, np.int32)
        mask = fdma.compile(fdma.causal() & fdma.window(50) & fdma.documents(cu_seqlens=ends), 200)
        expected = gradients_of(
            torch, lambda q, k, v, mask=mask, **words: attend(q, k, v, mask, **words), given
        )
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            words = {name: torch.from_numpy(ends)}
            expect_gradients(torch, gradients_of(torch, plan.run, given, **words), expected)
    each = torch.tensor([[0, 70, 200], [0, 10, 150]], dtype=torch.int32)
    lengths = torch.tensor([200, 150], dtype=torch.int32)
    got = gradients_of(torch, plan.run, given, cu_seqlens_q=each, q_lens=lengths, kv_lens=lengths)
    for b in range(2):
        mask = fdma.compile(
            fdma.causal() & fdma.window(50) & fdma.documents(cu_seqlens=each[b].numpy()),
            int(lengths[b]),
        )
        length = int(lengths[b])
        alone = [x[b : b + 1, :, :length] for x in given]
        leaves = [x.clone().requires_grad_() for x in alone]
        out, lse = attend(*leaves, mask, return_lse=True)
        weights = torch.randn(
            (2, 4, 200, 24), generator=torch.Generator().manual_seed(3), dtype=torch.float32
        )[b : b + 1, :, :length]
        loss = (out * weights).sum() + lse.sum() / 7
        expected = list(torch.autograd.grad(loss, leaves))
        expect_gradients(torch, [x[b : b + 1, :, :length] for x in got], expected)
        assert all(not x[b, :, length:].any() for x in got)
    assert len(plan_cache.plans) > 2


def test_each_backward_pass_has_the_lengths_of_its_run(torch: Any) -> None:
    q, k, v = tensors(torch)
    plan = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    leaf = q.clone().requires_grad_()
    lengths = [torch.tensor(x, dtype=torch.int32) for x in ([150, 20], [40, 150])]
    outs = [plan.run(leaf, k, v, q_lens=x, kv_lens=x) for x in lengths]
    for out, x in zip(outs, lengths, strict=True):
        alone = leaf.detach().clone().requires_grad_()
        plan.run(alone, k, v, q_lens=x, kv_lens=x).sum().backward()
        (twice,) = torch.autograd.grad(out.sum(), leaf, retain_graph=True)
        (again,) = torch.autograd.grad(out.sum(), leaf)
        assert torch.equal(twice, alone.grad) and torch.equal(again, alone.grad)
    out = plan.run(leaf, k, v, q_lens=lengths[0])
    lengths[0][0] = 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_in_closed_form_where_they_are_wanted(torch: Any) -> None:
    q, k, v = tensors(torch)
    plan = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    assert plan._backward is None
    leaf = k.clone().requires_grad_()
    with torch.no_grad():
        assert not plan.run(q, leaf, v).requires_grad
    assert not plan.run(q, k, v).requires_grad and plan._backward is None
    out, lse = plan.run(q, leaf, v, return_lse=True)
    plain, plain_lse = plan.run(q, k, v, return_lse=True)
    assert torch.equal(out, plain) and torch.equal(lse, plain_lse)
    (by_lse,) = torch.autograd.grad(lse.sum(), leaf, retain_graph=True)
    assert plan._backward is not None and by_lse.any()
    (by_out,) = torch.autograd.grad(out.sum(), leaf)
    both, both_lse = plan.run(q, leaf, v, return_lse=True)
    (together,) = torch.autograd.grad(both.sum() + both_lse.sum(), leaf)
    torch.testing.assert_close(together, by_lse + by_out, atol=1e-5, rtol=1e-5)
    odd = leaf.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    (copied,) = torch.autograd.grad(plan.run(q, odd, v).sum(), odd)
    torch.testing.assert_close(copied, by_out)
    threads = plan.run(q, leaf, v, num_threads=1, deterministic=True)
    assert torch.equal(torch.autograd.grad(threads.sum(), leaf)[0], by_out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_closed_form_of_16_bits(torch: Any, dtype: str) -> None:
    exact = [x.to(getattr(torch, dtype)).float() for x in tensors(torch)]
    given = [x.to(getattr(torch, dtype)) for x in exact]
    lengths = {"q_lens": torch.tensor([150, 61], dtype=torch.int32)}
    plan = fdma.plan("causal", q=given[0], k=given[1], v=given[2], closed_form=True)
    assert plan.dtype == dtype
    wide = fdma.plan("causal", q=exact[0], k=exact[1], v=exact[2], closed_form=True)
    expected = gradients_of(torch, wide.run, exact, **lengths)
    got = gradients_of(torch, plan.run, given, **lengths)
    assert all(x.dtype == getattr(torch, dtype) for x in got)
    expect_gradients(torch, [x.float() for x in got], expected, 0.02)


def test_what_has_no_gradients_in_closed_form_says_so(torch: Any) -> None:
    q, k, v = tensors(torch)
    plan = fdma.plan("causal", q=q, k=k, v=v, closed_form=True)
    leaf = q.clone().requires_grad_()
    (first,) = torch.autograd.grad(plan.run(leaf, k, v).sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"AttentionPlan\.run: second gradients"):
        first.sum().backward()
    with pytest.raises(NotImplementedError, match=r"AttentionPlan\.run: no batches of gradients"):
        torch.autograd.functional.jacobian(
            lambda x: plan.run(x, k, v)[0, 0, :2, 0], q, vectorize=True
        )
    with pytest.raises(
        NotImplementedError, match="runs in closed form are there for plain tensors"
    ):
        torch.func.grad(lambda x: plan.run(x, k, v).sum())(q)
    compiled = torch.compile(lambda x: plan.run(x, k, v) * 2, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="runs in closed form are there for plain tensors"):
        compiled(leaf)


def test_autocast_is_seen(torch: Any) -> None:
    q, k, v = tensors(torch)
    plan = fdma.plan("causal", **SHAPE)
    low = fdma.plan("causal", **SHAPE, dtype="bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        assert low.run(q, k, v).dtype == torch.bfloat16
        out, lse = low.run(q, k, v, lse=torch.empty(2, 4, 150), return_lse=True)
        assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
        with pytest.raises(ValueError, match=r"q: expected float32, for which .* got bfloat16"):
            plan.run(q, k, v)
    closed = fdma.plan("causal", **SHAPE, dtype="bfloat16", closed_form=True)
    leaf = q.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        closed.run(leaf, k, v, q_lens=torch.tensor([9, 150], dtype=torch.int32)).sum().backward()
    assert leaf.grad.dtype == torch.float32 and not leaf.grad[0, :, 9:].any() and leaf.grad.any()
