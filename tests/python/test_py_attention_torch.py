"""fdma.attention on PyTorch's CPU tensors: SDPA, torch.compile, operators, autocast, leaks."""

from __future__ import annotations

import gc
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import pytest

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

attend: Any = fdma.attention
SPECS = ["true", "causal", "causal & (window(40) | sink(4))", "k <= pos & (h < 3 | q % 7 < 3)"]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def tensors(
    dtype: Any = torch.float32, q_len: int = 150, kv_len: int = 200, **options: Any
) -> list[Any]:
    """q, k, v [batch, heads, len, head_dim]."""
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
    out = attend(q, k, v, None, bias)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.float()[:, :, None, :], enable_gqa=True
    )
    torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match="bias: expected"):
        attend(q, k, v, None, bias[..., :100])
    with pytest.raises(TypeError, match="bias: expected floating"):
        attend(q, k, v, None, torch.zeros(200, dtype=torch.int64))


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
    with pytest.raises(ValueError, match=r"k: expected torch.float32, as q"):
        attend(q, k.half(), v)
    with pytest.raises(ValueError, match='backend: "sm90" computes on a GPU, q is on cpu'):
        attend(q, k, v, backend="sm90")
    with pytest.raises(ValueError, match="mask: its kv_len is 150, the tensors have 200"):
        attend(q, k, v, fdma.compile("causal", 150))


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
        return 2 * attend(q, k, v, mask, bias, scale=0.2)

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
    bias = torch.randn(200)
    torch.testing.assert_close(
        compiled(q, k, v, text, bias), 2 * attend(q, k, v, text, bias, scale=0.2)
    )


def test_compile_says_what_masks_it_takes(compiled: Any) -> None:
    q, k, v = tensors()
    with pytest.raises(Exception, match=r"a BlockMask .* or a text is needed"):
        compiled(q, k, v, fdma.causal())


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
    attend(*tensors())  # registers the operators
    q, k, v = tensors()
    if not heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    bias = torch.randn(2, 2, 200) if has_bias else None
    mask = fdma.compile("causal", 150, 200)
    for text, handle in (("causal", 0), ("", mask._handle)):
        arguments = (q, k, v, bias, text, handle, 0.0, heads_first, False)
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
        torch.ops.fdma.attention(*tensors(), None, "", handle, 0.0, True, False)
