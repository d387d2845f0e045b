"""fdma.merge on NumPy arrays and PyTorch's CPU tensors: parts of attention against the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdma_module import random_tensors

# isort: split
import fdma

KEYS = (slice(0, 70), slice(70, 71), slice(71, 200))


def arrays(dtype: Any = np.float32) -> list[Any]:
    """q, k, v [batch, heads, len, head_dim]."""
    tensors = random_tensors(
        3, batch=2, q_len=60, kv_len=200, heads_q=4, heads_kv=2, head_dim=16, head_dim_v=24
    )
    return [np.ascontiguousarray(x.swapaxes(1, 2)).astype(dtype) for x in tensors]


def causal_parts(q: Any, k: Any, v: Any) -> list[Any]:
    """Attention over disjoint keys; rows that see none of them are among them."""
    return [
        fdma.attention(
            q, k[:, :, keys], v[:, :, keys], f"k + {keys.start} <= q * 3", return_lse=True
        )
        for keys in KEYS
    ]


def sink_share(lse: Any, sinks: Any) -> Any:
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(sinks - lse)))[..., None]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_is_attention_over_all_keys(dtype: Any) -> None:
    q, k, v = arrays(dtype)
    whole, whole_lse = fdma.attention(q, k, v, "k <= q * 3", return_lse=True)
    parts = causal_parts(q, k, v)
    assert (parts[2][1] == -np.inf).any() and not (parts[0][1] == -np.inf).any()
    out, lse = fdma.merge(parts)
    assert out.dtype == dtype and lse.dtype == np.float32 and isinstance(out, np.ndarray)
    atol = 2e-6 if dtype == np.float32 else 2e-3
    np.testing.assert_allclose(out, whole, atol=atol)
    np.testing.assert_allclose(lse, whole_lse, atol=atol)
    swapped = [(out.swapaxes(1, 2), lse) for out, lse in parts]
    turned, turned_lse = fdma.merge(swapped, layout="bshd", num_threads=1)
    np.testing.assert_array_equal(turned.swapaxes(1, 2), out)
    np.testing.assert_array_equal(turned_lse, lse)


def test_sinks_take_weight_and_lse_leaves_them_out() -> None:
    q, k, v = arrays()
    parts = causal_parts(q, k, v)
    plain, plain_lse = fdma.merge(parts)
    per_head = np.array([0.5, -np.inf, 3, -2], np.float32)
    out, lse = fdma.merge(parts, per_head)
    np.testing.assert_array_equal(lse, plain_lse)
    np.testing.assert_allclose(out, plain * sink_share(lse, per_head[:, None]), atol=1e-6)
    per_row = np.random.default_rng(0).standard_normal(lse.shape).astype(np.float32)
    out, _ = fdma.merge(parts, per_row)
    np.testing.assert_allclose(out, plain * sink_share(lse, per_row), atol=1e-6)
    # Merging in two steps: the last merge alone has the sinks.
    twice, _ = fdma.merge([fdma.merge(parts[:2]), parts[2]], per_row)
    np.testing.assert_allclose(twice, out, atol=1e-6)


def test_rows_without_keys_are_zero_and_unused_parts_are_not_read() -> None:
    out = np.full((1, 2, 3, 8), np.nan, np.float32)
    nothing = np.full((1, 2, 3), -np.inf, np.float32)
    merged, lse = fdma.merge([(out, nothing), (out, nothing)], np.zeros(2, np.float32))
    assert not merged.any() and (lse == -np.inf).all()
    ones = np.ones_like(out)
    merged, lse = fdma.merge([(out, nothing), (ones, np.full_like(nothing, -3))])
    assert (merged == 1).all() and (lse == -3).all()


def test_strides_are_read_as_they_are_or_copied() -> None:
    q, k, v = arrays()
    parts = causal_parts(q, k, v)
    out, lse = fdma.merge(parts)
    odd = [(np.asfortranarray(x), np.asfortranarray(y)) for x, y in parts]
    assert odd[0][0].strides[-1] != 4
    for given, expected in zip(fdma.merge(odd), (out, lse), strict=True):
        np.testing.assert_array_equal(given, expected)
    # More parts than one merge takes.
    many = [(x.copy(), y.copy()) for x, y in parts for _ in range(11)]
    with pytest.raises(ValueError, match="parts: expected 1 to 32 of them, got 33"):
        fdma.merge(many)


def part(*extents: int, dtype: Any = np.float32) -> Any:
    return np.zeros(extents, dtype), np.zeros(extents[:3], np.float32)


@pytest.mark.parametrize(
    ("error", "message", "parts", "sinks"),
    [
        (TypeError, "parts: expected a list of .* pairs, got ndarray", part(1, 2, 3, 8)[0], None),
        (TypeError, r"parts\[0\]: expected a pair \(out, lse\), got ndarray", part(1, 2, 3, 8),
         None),
        (TypeError, r"parts\[0\]: expected tensors of PyTorch or arrays", [(1, 2)], None),
        (ValueError, "parts: expected 1 to 32 of them, got 0", [], None),
        (ValueError, r"parts\[0\] out: expected \[batch, heads, len, head_dim\]",
         [(np.zeros((1, 2, 3)), np.zeros((1, 2)))], None),
        (NotImplementedError, r"parts\[0\] out: expected float32, .*, got float64",
         [part(1, 2, 3, 8, dtype=np.float64)], None),
        (ValueError, r"parts\[1\] out: expected float32 \[1, 2, 3, 8\], as parts\[0\], got",
         [part(1, 2, 3, 8), part(1, 2, 4, 8)], None),
        (ValueError, r"parts\[1\] out: .*, got float16",
         [part(1, 2, 3, 8), part(1, 2, 3, 8, dtype=np.float16)], None),
        (ValueError, r"parts\[0\] lse: expected \[batch, heads, q_len\] = \[1, 2, 3\], got",
         [(part(1, 2, 3, 8)[0], np.zeros((1, 3, 2), np.float32))], None),
        (ValueError, r"parts\[0\] lse: expected float32, got float64",
         [(part(1, 2, 3, 8)[0], np.zeros((1, 2, 3)))], None),
        (ValueError, r"sinks: expected \[heads\] = \[2\]", [part(1, 2, 3, 8)],
         np.zeros(3, np.float32)),
        (ValueError, "sinks: expected float32 or float32, as", [part(1, 2, 3, 8)], np.zeros(2)),
        (TypeError, "sinks: expected an array of numpy", [part(1, 2, 3, 8)], [0.0, 1.0]),
    ],
)  # fmt: skip
def test_refuses_by_name(error: Any, message: str, parts: Any, sinks: Any) -> None:
    with pytest.raises(error, match=message):
        fdma.merge(parts, sinks)


def test_layout_is_checked() -> None:
    with pytest.raises(ValueError, match='layout: expected "bhsd" or "bshd"'):
        fdma.merge([part(1, 2, 3, 8)], layout="sbhd")  # type: ignore[arg-type]


# PyTorch


@pytest.fixture(name="torch")
def imported_torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def by_definition(torch: Any, outs: Any, lses: Any, sinks: Any) -> Any:
    """merge by PyTorch's own operators, for parts that all have keys in every row."""
    lse = torch.logsumexp(torch.stack(lses), 0)
    total = lse
    if sinks is not None:
        full = sinks[:, None] if sinks.dim() == 1 else sinks
        total = torch.logaddexp(lse, full.expand_as(lse))
    weights = [torch.exp(part_lse - total)[..., None] for part_lse in lses]
    return sum(w * out for w, out in zip(weights, outs, strict=True)), lse


def leaves(torch: Any, sinks: str, dtype: Any = None) -> list[Any]:
    """Three outs, three lse and sinks, or None, as leaves that require gradients."""
    torch.manual_seed(4)
    outs = [torch.randn(2, 3, 5, 8, dtype=dtype) for _ in range(3)]
    lses = [2 * torch.randn(2, 3, 5) for _ in range(3)]
    extra = {"none": None, "per_head": torch.randn(3), "per_row": torch.randn(2, 3, 5)}[sinks]
    made = [*outs, *lses] if extra is None else [*outs, *lses, extra]
    for leaf in made:
        leaf.requires_grad_()
    return made


def merged(tensors: list[Any], layout: str = "bhsd") -> Any:
    parts = list(zip(tensors[:3], tensors[3:6], strict=True))
    merge: Any = fdma.merge
    return merge(parts, tensors[6] if len(tensors) > 6 else None, layout=layout)


@pytest.mark.parametrize("sinks", ["none", "per_head", "per_row"])
def test_gradients_are_those_of_the_definition(torch: Any, sinks: str) -> None:
    tensors = leaves(torch, sinks)
    expected = by_definition(
        torch, tensors[:3], tensors[3:6], tensors[6] if len(tensors) > 6 else None
    )
    results = merged(tensors)
    dout, dlse = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5)
    for given, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(given, wanted)
    for grads in ((dout, None), (None, dlse), (dout, dlse)):
        asked = [i for i, grad in enumerate(grads) if grad is not None]
        outputs = [(results[i], expected[i], grads[i]) for i in asked]
        some = {"retain_graph": True, "allow_unused": True}
        got = torch.autograd.grad(
            [x for x, _, _ in outputs], tensors, [g for _, _, g in outputs], **some
        )
        wanted = torch.autograd.grad(
            [x for _, x, _ in outputs], tensors, [g for _, _, g in outputs], **some
        )
        for x, y in zip(got, wanted, strict=True):
            zero = torch.zeros(1)
            torch.testing.assert_close(
                zero if x is None else x, zero.expand_as(x) if y is None else y,
                atol=1e-5, rtol=1e-5,
            )  # fmt: skip


def test_second_gradients(torch: Any) -> None:
    tensors = leaves(torch, "per_head")

    def twice(results: Any) -> Any:
        out, lse = results
        first = torch.autograd.grad((out**2).sum() + lse.sin().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum((x**2).sum() for x in first), tensors)

    expected = twice(by_definition(torch, tensors[:3], tensors[3:6], tensors[6]))
    for got, wanted in zip(twice(merged(tensors)), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_gradients_of_parts_without_keys_are_zero(torch: Any) -> None:
    tensors = leaves(torch, "per_head")
    with torch.no_grad():
        tensors[0][:, :, 1] = torch.nan
        tensors[3][:, :, 1] = -torch.inf
        for lse in tensors[3:6]:
            lse[:, :, 4] = -torch.inf
    out, lse = merged(tensors)
    assert not out[:, :, 4].any() and (lse[:, :, 4] == -torch.inf).all()
    seen = torch.where(lse == -torch.inf, 0, lse)
    grads = torch.autograd.grad(out.square().sum() + seen.sum(), tensors)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert not grads[0][:, :, 1].any() and not grads[3][:, :, 1].any()
    for grad in grads[:6]:
        assert not grad[:, :, 4].any()


def test_layouts_dtypes_and_orders_in_memory(torch: Any) -> None:
    tensors = [x.detach() for x in leaves(torch, "per_head", torch.bfloat16)]
    out, lse = merged(tensors)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    expected, _ = by_definition(torch, [x.float() for x in tensors[:3]], tensors[3:6], tensors[6])
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=1e-2)
    turned = [x.transpose(1, 2) for x in tensors[:3]]
    swapped, _ = merged([*turned, *tensors[3:]], "bshd")
    assert torch.equal(swapped.transpose(1, 2), out)
    assert swapped.stride() == turned[0].stride()
    odd = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in tensors[:3]]
    assert torch.equal(merged([*odd, *tensors[3:]])[0], out)
    sinks = tensors[6].to(torch.bfloat16)
    assert torch.equal(merged([*tensors[:6], sinks])[0], merged([*tensors[:6], sinks.float()])[0])
    empty, none = fdma.merge([(out[:, :, :0], lse[:, :, :0])])
    assert empty.shape == (2, 3, 0, 8) and none.shape == (2, 3, 0)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_torch_compile_and_modes(torch: Any, layout: str) -> None:
    tensors = leaves(torch, "per_head")
    if layout == "bshd":
        tensors[:3] = [x.detach().transpose(1, 2).requires_grad_() for x in tensors[:3]]
    out, lse = merged(tensors, layout)
    expected = torch.autograd.grad(out.square().sum() + lse.sum(), tensors)

    def function(*given: Any) -> Any:
        return merged(list(given), layout)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    out2, lse2 = compiled(*tensors)
    assert torch.equal(out, out2) and torch.equal(lse, lse2)
    grads = torch.autograd.grad(out2.square().sum() + lse2.sum(), tensors)
    for got, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    with torch.no_grad():
        assert torch.equal(merged(tensors, layout)[0], out)  # without the operator
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = [x.detach() for x in tensors]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in plain]
        fake, fake_lse = merged(fakes, layout)
        assert fake.shape == out.shape and fake_lse.shape == lse.shape
        assert fake.stride() == out.stride()


def test_operator_passes_checks_of_pytorch(torch: Any) -> None:
    from fdma.attention import merge_torch

    tensors = leaves(torch, "per_row")
    for heads_first in (True, False):
        outs = tensors[:3]
        if not heads_first:
            outs = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in outs]
        torch.library.opcheck(
            merge_torch.operator, (outs, tensors[3:6], tensors[6], heads_first, -1)
        )


def test_refuses_tensors_by_name(torch: Any) -> None:
    out, lse = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3)
    merge: Any = fdma.merge
    with pytest.raises(TypeError, match=r"parts\[0\] lse: expected a tensor of PyTorch, got ndarr"):
        merge([(out, lse.numpy())])
    with pytest.raises(
        ValueError, match=r"parts\[1\] out: expected a tensor on cpu, as parts\[0\]"
    ):
        merge([(out, lse), (out.to("meta"), lse)])
    with pytest.raises(NotImplementedError, match=r"parts\[0\] out: expected a dense tensor"):
        merge([(out.to_sparse(), lse)])
    with pytest.raises(NotImplementedError, match="merge: forward-mode derivatives"):
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            merge([(forward_ad.make_dual(out, out), lse)])
