"""Tests fdma.attention on PyTorch's CPU tensors.

The tests cover SDPA, torch.compile, operators, autocast and leaks. The file is long because all
tests share one set of tensors and of ways to call attention.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

attend: Any = fdma.attention
SPECS = ["true", "causal", "causal & (window(40) | sink(4))", "k <= pos & (h < 3 | q % 7 < 3)"]
COMPILED = fdma.compile("causal & window(50)", 200)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def tensors(
    dtype: Any = torch.float32, q_len: int = 150, kv_len: int = 200, **options: Any
) -> list[Any]:
    """Returns q, k, v [batch, heads, len, head_dim]."""
    torch.manual_seed(1)
    return [
        torch.randn(2, heads, length, 32).to(dtype).requires_grad_(bool(options))
        for heads, length in ((4, q_len), (2, kv_len), (2, kv_len))
    ]


def sdpa(q: Any, k: Any, v: Any, mask: fdma.BlockMask, scale: float | None = None) -> Any:
    cells = torch.from_numpy(mask.to_dense())
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=cells, scale=scale, enable_gqa=True
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_equals_sdpa(dtype: Any, spec: str) -> None:
    q, k, v = tensors(dtype)
    mask = fdma.compile(spec, 150, 200, 2, 4)
    expected = sdpa(q.double(), k.double(), v.double(), mask)
    for given in (mask, spec, fdma.MaskExpr.parse(spec)):
        out = attend(q, k, v, given)
        assert out.dtype == dtype and out.shape == q.shape
        assert (out - expected).abs().max() <= TOLERANCE[dtype]
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    for some in (turned, [x.contiguous() for x in turned]):
        out, lse = attend(*some, mask, layout="bshd", return_lse=True)
        assert (out.transpose(1, 2) - expected).abs().max() <= TOLERANCE[dtype]
        assert lse.shape == (2, 4, 150) and lse.dtype == torch.float32


def test_strides_that_no_kernel_reads_are_copied() -> None:
    q, k, v = tensors()
    expected = attend(q, k, v, "causal")
    odd = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert odd[0].stride(-1) != 1
    assert torch.equal(attend(*odd, "causal"), expected)
    one = k[:1, :1, :, :].expand(2, 2, -1, -1)
    assert torch.equal(
        attend(q, one, one, "causal"),
        attend(q, one.contiguous(), one.contiguous(), "causal"),
    )


def test_packed_projections_are_read_in_place() -> None:
    torch.manual_seed(2)
    packed = torch.randn(2, 100, 3, 4, 32)
    out = attend(*packed.unbind(2), "causal", layout="bshd")
    assert out.is_contiguous()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in packed.unbind(2)), is_causal=True
    )
    torch.testing.assert_close(out.transpose(1, 2), expected)


def test_bias_of_any_float_and_shape() -> None:
    q, k, v = tensors()
    bias = torch.randn(2, 1, 200, dtype=torch.float64)
    out = attend(q, k, v, None, key_bias=bias)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.float()[:, :, None, :], enable_gqa=True
    )
    torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match="bias: expected"):
        attend(q, k, v, None, key_bias=bias[..., :100])
    with pytest.raises(TypeError, match="bias: expected floating"):
        attend(q, k, v, None, key_bias=torch.zeros(1, 1, 200, dtype=torch.int64))


def test_autocast() -> None:
    q, k, v = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k.to(torch.float16), v, "causal")
    assert out.dtype == torch.bfloat16
    assert (out - sdpa(q, k, v, fdma.compile("causal", 150, 200))).abs().max() < 3e-2


def test_wrong_tensors_are_named() -> None:
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match=r"q: expected float32, .*got torch.float64"):
        attend(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match=r"k: expected (torch.)?float32"):
        attend(q, k.half(), v)
    for other in (None, k.numpy()):
        with pytest.raises(TypeError, match="k: expected a tensor of PyTorch, as q, got"):
            attend(q, other, v)
    with pytest.raises(TypeError, match="key_bias: expected a tensor of PyTorch"):
        attend(q, k, v, None, key_bias=0.5)
    with pytest.raises(ValueError, match='backend: "sm90" computes on a GPU, q is on cpu'):
        attend(q, k, v, backend="sm90")
    with pytest.raises(ValueError, match="mask: its kv_len is 150, the tensors have 200"):
        attend(q, k, v, fdma.compile("causal", 150))


@pytest.mark.parametrize(
    "kind", ["plain", "turned", "gaps", "other head_dim_v", "bias", "text", "parameters"]
)
def test_calls_that_were_made_before_are_as_the_first(kind: str) -> None:
    q, k, v = tensors(q_len=200)
    bias = torch.randn(2, 2, 200) if kind == "bias" else None
    if kind == "turned":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if kind == "gaps":
        q = torch.cat([q, q], 3)[..., :32]
    if kind == "other head_dim_v":
        v = v[..., :24]
    if kind == "parameters":
        k, v = (torch.nn.Parameter(x, requires_grad=False) for x in (k, v))
    mask = "causal" if kind == "text" else fdma.compile("causal & window(70)", 200)
    fdma.clear_plans()
    first, first_lse = attend(q, k, v, mask, key_bias=bias, return_lse=True)
    for _ in range(2):
        out, lse = attend(q, k, v, mask, key_bias=bias, return_lse=True)
        alone = attend(q, k, v, mask, key_bias=bias)
        for again in (out, alone):
            assert torch.equal(again, first) and again.stride() == first.stride()
        assert torch.equal(lse, first_lse) and lse.is_contiguous()
        assert out.untyped_storage().nbytes() == 4 * out.numel()
    grown = attend(q[:, :, :100].contiguous(), k[:, :, :100], v[:, :, :100], "causal")
    assert grown.shape[2] == 100  # other extents make another call
    with pytest.raises(ValueError, match=r"k: expected torch.float32, as q"):
        attend(q, k.half(), v, mask, key_bias=bias)


def test_threads_and_no_leaks() -> None:
    q, k, v = tensors()
    mask = fdma.compile("causal", 150, 200)

    def count() -> int:
        gc.collect()
        return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())

    attend(q, k, v, mask, return_lse=True)
    before = count()
    for _ in range(50):
        attend(q, k, v, mask, return_lse=True)
    assert count() <= before


# ---- the operators


@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()

    def function(q: Any, k: Any, v: Any, mask: Any, bias: Any = None) -> Any:
        return 2 * attend(q, k, v, mask, key_bias=bias, scale=0.2)

    yield torch.compile(function, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()


def test_compile_takes_masks_that_change(compiled: Any) -> None:
    q, k, v = tensors()
    torch._dynamo.utils.counters.clear()
    for window in range(10, 60, 10):
        mask = fdma.compile(f"causal & window({window})", 150, 200)
        expected = 2 * attend(q, k, v, mask, scale=0.2)
        torch.testing.assert_close(compiled(q, k, v, mask), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    text = "causal & window(50)"
    torch.testing.assert_close(compiled(q, k, v, text), expected)
    bias = torch.randn(1, 1, 200)
    torch.testing.assert_close(
        compiled(q, k, v, text, bias), 2 * attend(q, k, v, text, key_bias=bias, scale=0.2)
    )


def test_compile_may_be_the_first_call() -> None:
    text = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import fdma
q = torch.randn(1, 2, 8, 16)
function = torch.compile(
    lambda q: fdma.attention(q, q, q, "causal"), fullgraph=True, backend="aot_eager"
)
assert torch.equal(function(q), fdma.attention(q, q, q, "causal"))
"""
    subprocess.run([sys.executable, "-c", text, str(FOLDER)], check=True)


def test_compile_says_what_masks_it_takes(compiled: Any) -> None:
    q, k, v = tensors()
    with pytest.raises(Exception, match=r"a BlockMask .* or a text is needed, got bool"):
        compiled(q, k, v, True)
    with pytest.raises(Exception, match=r"an expression with tables .* fdma.compile\(mask"):
        compiled(q, k, v, fdma.documents(ids=[0] * 150))


def test_an_expression_without_tables_passes_compile_as_a_text(compiled: Any) -> None:
    q, k, v = tensors()
    torch._dynamo.utils.counters.clear()
    for window in (10, 10, 20):  # each call gets new objects
        mask = fdma.causal() & (fdma.window(window) | (fdma.h < 2))
        expected = 2 * attend(q, k, v, mask, scale=0.2)
        torch.testing.assert_close(compiled(q, k, v, mask), expected)
        torch.testing.assert_close(compiled(q, k, v, str(mask)), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4  # two masks of two kinds


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_an_expression_in_plain_compile(backend: str) -> None:
    torch._dynamo.reset()
    q, k, v = tensors(q_len=200)
    free = fdma.causal() & fdma.window(16)
    with_tables = fdma.causal() & fdma.documents(ids=np.arange(200) // 90)

    def layer(q: Any, mask: Any) -> Any:
        return 1 + attend(2 * q, k, v, mask)

    compiled = torch.compile(layer, backend=backend)
    try:
        # With tables the graph ends before the call. The call then runs as it does without a
        # compiler.
        for mask in (free, with_tables):
            for _ in range(2):
                torch.testing.assert_close(compiled(q, mask), layer(q, mask))
    except Exception as error:
        if "InvalidCxxCompiler" not in repr(error) and "CppCompileError" not in repr(error):
            raise
        pytest.skip("no compiler for inductor")
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize(
    "make",
    [
        lambda: fdma.causal() & fdma.window(16),
        lambda: (fdma.pos >= fdma.k) & (fdma.k % 2 == 0),
        lambda: fdma.compile("causal", 200),
        lambda: fdma.MaskExpr.parse("causal"),
        lambda: fdma.from_cu_seqlens([0, 90, 200], causal=True),
        lambda: COMPILED & COMPILED,
    ],
    ids=["names", "operators", "compile", "parse", "cu_seqlens", "and"],
)
def test_masks_are_made_outside_of_a_full_graph(make: Any) -> None:
    q, k, v = tensors(q_len=200)

    def layer(q: Any) -> Any:
        return 1 + attend(2 * q, k, v, make())

    try:
        torch._dynamo.reset()
        whole = torch.compile(layer, fullgraph=True, backend="eager")
        with pytest.raises(Exception, match=r"NotImplementedError of fdma: masks are made outside"):
            whole(q)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(layer, backend="eager")(q), layer(q))
    finally:
        torch._dynamo.reset()


def test_inductor_runs_it() -> None:
    torch._dynamo.reset()
    q, k, v = tensors()

    def layer(q: Any, k: Any, v: Any) -> Any:
        out = attend(q * 2, k, v + 1, "causal & window(30)")
        return out.transpose(1, 2).reshape(2, 150, 128).relu()

    try:
        result = torch.compile(layer, fullgraph=True)(q, k, v)
    except Exception as error:
        if "InvalidCxxCompiler" not in repr(error) and "CppCompileError" not in repr(error):
            raise
        pytest.skip("no compiler for inductor")
    torch.testing.assert_close(result, layer(q, k, v))
    torch._dynamo.reset()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_opcheck(has_bias: bool, heads_first: bool) -> None:
    attend(*tensors())  # this call registers the operators
    q, k, v = tensors()
    if not heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    bias = torch.randn(2, 2, 200) if has_bias else None
    mask = fdma.compile("causal", 150, 200)
    for text, handle in (("causal", 0), ("", mask._handle)):
        arguments = (q, k, v, text, handle, 0.0, heads_first, False, -1, False, bias)
        torch.library.opcheck(torch.ops.fdma.attention, arguments)


def test_fake_and_meta_tensors_have_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(2, 8, 100, 64, dtype=torch.float16) for _ in range(3))
        out, lse = attend(q, k, v, "causal", return_lse=True)
    assert out.shape == q.shape and out.dtype == torch.float16 and lse.dtype == torch.float32
    q, k, v = (torch.empty(2, 100, 8, 64, device="meta") for _ in range(3))
    assert attend(q, k, v, layout="bshd").device.type == "meta"


def test_a_mask_that_is_gone_is_an_error() -> None:
    attend(*tensors())
    handle = fdma.compile("causal", 150, 200)._handle
    gc.collect()
    with pytest.raises(RuntimeError, match=r"the BlockMask that this was compiled .* is gone"):
        torch.ops.fdma.attention(*tensors(), "", handle, 0.0, True, False, -1, False)


# ---- gradients


def definition(q: Any, k: Any, v: Any, mask: fdma.BlockMask, scale: float, bias: Any = None) -> Any:
    """Returns (out, lse) in float64, differentiable; rows without keys have 0 and -inf."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    logits = scale * q @ k.repeat_interleave(group, 1).mT
    if bias is not None:
        logits = logits + bias.double().repeat_interleave(group, 1)[:, :, None]
    cells = torch.from_numpy(mask.to_dense())
    is_empty = ~cells.any(-1, keepdim=True)
    logits = logits.masked_fill(~cells & ~is_empty, -torch.inf)
    weights = logits.softmax(-1).masked_fill(is_empty, 0)
    lse = logits.logsumexp(-1).masked_fill(is_empty[..., 0], -torch.inf)
    return weights @ v.repeat_interleave(group, 1), lse


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("through", ["out", "lse", "both"])
def test_gradients_equal_autograd_in_float64(
    spec: str, layout: str, has_bias: bool, through: str
) -> None:
    mask = fdma.compile(spec, 150, 200, 2, 4)
    given = tensors(requires_grad=True)
    bias = torch.randn(2, 2, 200, requires_grad=True) if has_bias else None
    inputs = [*given, *([bias] if has_bias else [])]
    shaped = given if layout == "bhsd" else [x.transpose(1, 2) for x in given]
    out, lse = attend(*shaped, mask, key_bias=bias, scale=0.25, layout=layout, return_lse=True)
    out = out if layout == "bhsd" else out.transpose(1, 2)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    exact_q, exact_k, exact_v = exact[:3]
    exact_bias = exact[3] if has_bias else None
    expected = definition(exact_q, exact_k, exact_v, mask, 0.25, exact_bias)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    dlse = dlse.masked_fill(lse == -torch.inf, 0)
    chosen = {"out": [0], "lse": [1], "both": [0, 1]}[through]
    results, weights = [[out, lse][i] for i in chosen], [[dout, dlse][i] for i in chosen]
    grads = torch.autograd.grad(results, inputs, weights)
    wanted = torch.autograd.grad(
        [expected[i] for i in chosen], exact, [w.double() for w in weights], allow_unused=True
    )
    for grad, want in zip(grads, wanted, strict=True):
        want = torch.zeros_like(grad).double() if want is None else want
        assert grad.shape == want.shape and grad.dtype == torch.float32
        assert (grad - want).abs().max() <= 3e-5 * max(1.0, want.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_half_precision(dtype: Any) -> None:
    mask = fdma.compile("causal", 150, 200)
    given = tensors(dtype, requires_grad=True)
    out = attend(*given, mask)
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, given, dout)
    exact = [x.detach().double().requires_grad_() for x in given]
    q, k, v = exact
    expected, _ = definition(q, k, v, mask, 32**-0.5)
    for grad, want in zip(grads, torch.autograd.grad(expected, exact, dout.double()), strict=True):
        assert grad.dtype == dtype
        assert (grad - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_operator", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_know_what_rounding_took(dtype: Any, by_operator: bool, has_bias: bool) -> None:
    mask = fdma.compile("causal", 150, 200)
    given = tensors(dtype, requires_grad=True)
    bias = torch.randn(2, 2, 200, requires_grad=has_bias) if has_bias else None
    kept = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x

    profile = torch.profiler.profile() if by_operator else contextlib.nullcontext()
    with profile, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = attend(*given, mask, key_bias=bias)
    residuals = [x for x in kept[-1:] if x.dtype == dtype and x.shape == out.shape]
    assert residuals
    exact = [x.detach().double().requires_grad_() for x in (*given, bias) if x is not None]
    q, k, v = exact[:3]
    expected, _ = definition(q, k, v, mask, 32**-0.5, exact[3] if has_bias else None)
    for residual in residuals:
        assert 0 < residual.abs().max() < 0.01
        assert (out.double() + residual.double() - expected).abs().max() < 1e-4
    if bias is not None:
        dout = torch.randn_like(out)
        (dbias,) = torch.autograd.grad(out, bias, dout)
        (wanted,) = torch.autograd.grad(expected, exact[3], dout.double())
        assert (dbias - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_gradients_of_what_is_broadcast_or_asked_for_alone() -> None:
    q, k, v = tensors()
    bias = torch.randn(1, 1, 200, dtype=torch.float64, requires_grad=True)
    (alone,) = torch.autograd.grad(attend(q, k, v, "causal", key_bias=bias).sum(), bias)
    full = bias.detach().float().expand(2, 2, 200).clone().requires_grad_()
    (each,) = torch.autograd.grad(attend(q, k, v, "causal", key_bias=full).sum(), full)
    assert alone.dtype == torch.float64
    wanted = each.double().sum((0, 1), keepdim=True)
    torch.testing.assert_close(alone, wanted, atol=1e-5, rtol=1e-5)
    key = k.clone().requires_grad_()
    attend(q, key, v, "causal").sum().backward()  # this gradient is an expanded tensor
    assert key.grad is not None and q.grad is None


def test_gradients_with_lengths_and_without_rows() -> None:
    q, k, v = tensors(q_len=200, requires_grad=True)
    mask = fdma.compile("causal", [120, 200], [120, 200])
    grads = torch.autograd.grad(attend(q, k, v, mask).square().sum(), (q, k, v))
    for grad in grads:
        assert not grad[0, :, 120:].any() and grad[1].abs().max() > 0
    empty = attend(q[:, :, :0], k, v)
    assert all(not x.any() for x in torch.autograd.grad(empty.sum(), (k, v)))


def test_gradients_under_autocast_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    given = tensors(requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(*given, "causal")
    grads = torch.autograd.grad(out.float().square().sum(), given)
    assert all(g.dtype == torch.float32 for g in grads)

    def function(*inputs: Any) -> Any:
        return attend(*inputs, "causal").square().sum()

    once = torch.autograd.grad(function(*given), given)
    again = torch.autograd.grad(checkpoint(function, *given, use_reentrant=False), given)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_no_second_gradients() -> None:
    given = tensors(requires_grad=True)
    grads = torch.autograd.grad(attend(*given).square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="attention: second gradients are not there"):
        grads[0].sum().backward()


def test_gradients_through_compile(compiled: Any) -> None:
    given = tensors(requires_grad=True)
    for window in (20, 40, 60):
        mask = fdma.compile(f"causal & window({window})", 150, 200)
        expected = torch.autograd.grad((2 * attend(*given, mask, scale=0.2)).square().sum(), given)
        grads = torch.autograd.grad(compiled(*given, mask).square().sum(), given)
        for grad, want in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_opcheck_with_gradients(has_bias: bool, heads_first: bool) -> None:
    attend(*tensors())
    given = tensors(requires_grad=True)
    if not heads_first:
        given = [x.detach().transpose(1, 2).requires_grad_() for x in given]
    bias = torch.randn(2, 2, 200, requires_grad=True) if has_bias else None
    for dtype in (torch.float32, torch.bfloat16):
        typed = [x.detach().to(dtype).requires_grad_() for x in given]
        words = "causal", 0, 0.0, heads_first, False, -1, dtype == torch.bfloat16
        torch.library.opcheck(torch.ops.fdma.attention, (*typed, *words, bias))


def test_transforms_of_torch_func_are_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match=r"transforms of torch.func"):
        torch.func.grad(lambda q: attend(q, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match=r"transforms of torch.func"):
        torch.func.vmap(lambda q: attend(q, k, v))(q[None])


def test_training_leaks_nothing() -> None:
    given = tensors(requires_grad=True)
    mask = fdma.compile("causal", 150, 200)

    def count() -> int:
        gc.collect()
        return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())

    def step() -> None:
        out, lse = attend(*given, mask, return_lse=True)
        (out.sum() + lse.sum()).backward()
        for x in given:
            x.grad = None

    step()
    before = count()
    for _ in range(20):
        step()
    assert count() <= before


# ---- tensors that no kernel reads


def jagged(count: int) -> list[Any]:
    """Returns a nested tensor [batch, heads, .., dim] of two sequences."""
    made = [
        torch.nested.nested_tensor([torch.randn(n, 2, 16) for n in (5, 3)], layout=torch.jagged)
        for _ in range(count)
    ]
    return [x.transpose(1, 2) for x in made]


def strided(count: int) -> list[Any]:
    return [torch.nested.nested_tensor([torch.randn(2, 8, 16)] * 2) for _ in range(count)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [jagged, strided])
@pytest.mark.parametrize("way", ["eager", "gradients", "operators", "compile"])
def test_nested_tensors_are_refused_by_name(nested: Any, way: str) -> None:
    if way == "compile" and nested is strided:
        pytest.skip("torch.compile takes none itself")
    torch._dynamo.reset()
    dense = torch.randn(2, 2, 8, 16, requires_grad=way == "gradients")
    attended: Any = attend
    if way == "compile":
        attended = torch.compile(attend, backend="eager", fullgraph=True)
    recipe = r"a nested tensor; pack .* fdma.from_cu_seqlens\(offsets, causal=True\)"
    x, y = nested(2)
    mode = torch.profiler.profile() if way == "operators" else contextlib.nullcontext()
    try:
        for name, given in (
            ("q", (x, x, x)),
            ("k", (dense, x, x)),
            ("v", (dense, dense.detach(), y)),
            ("q", (x, dense, dense, None, torch.randn(2, 2, 8))),
        ):
            error: Any = Exception if way == "compile" else NotImplementedError
            match = recipe if way == "compile" else f"^{name}: {recipe}"
            with pytest.raises(error, match=match), mode:
                attended(*given[:4], **({"key_bias": given[4]} if len(given) > 4 else {}))
    finally:
        torch._dynamo.reset()
    if way == "eager":
        for call in (
            functools.partial(fdma.zoh_scores, x, dense[0, 0, :2], dense[0, 0, 0, :2]),
            functools.partial(fdma.dynamic_mask_attention, x, x, x, dense, dense, 3),
        ):
            with pytest.raises(NotImplementedError, match=recipe):
                call()


def test_what_is_written_in_place_of_nested_tensors() -> None:
    parts = [torch.randn(3, n, 2, 16) for n in (5, 3)]
    q, k, v = torch.cat(parts, 1)
    cu = torch.tensor([0, 5, 8], dtype=torch.int32)
    mask = fdma.from_cu_seqlens(cu, causal=True)
    out = attend(q[None], k[None], v[None], mask, layout="bshd")[0]
    alone = [attend(*(x[None] for x in part), "causal", layout="bshd")[0] for part in parts]
    torch.testing.assert_close(out, torch.cat(alone))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("by_operators", [False, True])
def test_other_layouts_are_refused_by_name(by_operators: bool) -> None:
    q = torch.randn(2, 2, 8, 16)
    mode = torch.profiler.profile() if by_operators else contextlib.nullcontext()
    for x, message in (
        (q.to_sparse(), r"expected a dense tensor, got layout torch.sparse_coo; use .\.to_dense"),
        (q.to_mkldnn(), r"expected a dense tensor, got layout torch._mkldnn; use .\.to_dense"),
        (torch.quantize_per_tensor(q, 0.1, 0, torch.quint8), r"a quantized tensor; use .\.deq"),
    ):
        with pytest.raises(NotImplementedError, match=f"q: {message}"), mode:
            attend(x, x, x)
        with pytest.raises(NotImplementedError, match=f"k: {message}"), mode:
            attend(q, x, x, "causal")
    with pytest.raises(NotImplementedError, match="bias: expected a dense tensor"), mode:
        attend(q, q, q, None, key_bias=torch.randn(2, 2, 8).to_sparse())
    with (
        pytest.raises(NotImplementedError, match=r"q: expected float32, .*got torch.complex64"),
        mode,
    ):
        attend(*(q.to(torch.complex64),) * 3)


# ---- exported programs


@pytest.mark.parametrize("imports", ["import fdma, torch", "import torch, fdma"])
def test_an_exported_program_is_loaded_after_import_fdma(imports: str, tmp_path: Any) -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, dt_proj: Any, a_coef: Any) -> Any:
            return attend(q, q, q, "causal", key_bias=fdma.zoh_scores(q, dt_proj, a_coef))

    given = torch.randn(1, 2, 8, 16), torch.randn(2, 32), torch.randn(2)
    path = str(tmp_path / "layer.pt2")
    torch.export.save(torch.export.export(Layer(), given), path)
    torch.save((given, Layer()(*given)), tmp_path / "expected.pt")
    text = f"""
import sys
sys.path.insert(0, sys.argv[1])
import importlib.util
{imports.replace(", ", "; importlib.util.find_spec('torch'); import ")}
given, expected = torch.load(sys.argv[3])
assert torch.equal(torch.export.load(sys.argv[2]).module()(*given), expected)
assert not any("fdma" in type(x).__module__ for x in sys.meta_path)
"""
    words = [str(FOLDER), path, str(tmp_path / "expected.pt")]
    subprocess.run([sys.executable, "-c", text, *words], check=True)


def test_import_fdma_alone_imports_no_torch() -> None:
    text = """
import sys
sys.path.insert(0, sys.argv[1])
import fdma
assert "torch" not in sys.modules
sys.modules["torch"] = None          # as where there is none
try:
    import torch
except ImportError:
    pass
import numpy as np
q = np.ones((1, 1, 4, 8), np.float32)
assert fdma.attention(q, q, q).shape == q.shape
"""
    subprocess.run([sys.executable, "-c", text, str(FOLDER)], check=True)
