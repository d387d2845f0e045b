"""Every part of a score through fdma.attention: what it computes, its gradients, every way in."""

from __future__ import annotations

import contextlib
from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import fdma  # noqa: E402
import score_oracle  # noqa: E402
from fdma.attention.score import ScoreArguments  # noqa: E402

BATCH, HEADS, HEADS_KV, Q_LEN, KV_LEN, DIM = 2, 4, 2, 70, 90, 16
SPEC = "causal & (window(40) | sink(4))"
LEFT = 12
attend: Any = fdma.attention
define: Any = score_oracle.attention
arguments: Any = ScoreArguments
PARTS = (
    "softcap",
    "key_bias",
    "bias",
    "bias of kv heads",
    "bias of keys",
    "alibi_slopes",
    "slopes of elements",
    "relative",
    "one table",
    "sinks",
    "sinks of rows",
    "dropout_p",
)


def part(name: str) -> dict[str, Any]:
    """The arguments of a part, with random tensors."""
    draw = torch.Generator().manual_seed(len(name))

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=draw)

    made: dict[str, dict[str, Any]] = {
        "softcap": {"softcap": 1.5},
        "key_bias": {"key_bias": normal(BATCH, HEADS_KV, KV_LEN)},
        "bias": {"bias": normal(BATCH, HEADS, Q_LEN, KV_LEN)},
        "bias of kv heads": {"bias": normal(1, HEADS_KV, Q_LEN, KV_LEN)},
        "bias of keys": {"bias": normal(BATCH, 1, 1, KV_LEN)},
        "alibi_slopes": {"alibi_slopes": normal(HEADS).abs()},
        "slopes of elements": {"alibi_slopes": normal(BATCH, HEADS).abs()},
        "relative": {"relative": (normal(HEADS, LEFT + 6), LEFT)},
        "one table": {"relative": (normal(1, LEFT + 1), LEFT)},
        "sinks": {"sinks": normal(HEADS)},
        "sinks of rows": {"sinks": normal(BATCH, HEADS, Q_LEN)},
        "dropout_p": {"dropout_p": 0.3, "dropout_seed": (0x123456789ABCDEF0, 0x1122334455)},
    }
    return made[name]


def score(*names: str) -> dict[str, Any]:
    return {key: value for name in names for key, value in part(name).items()}


def tensors(dtype: Any = torch.float32, seed: int = 0) -> list[Any]:
    draw = torch.Generator().manual_seed(seed)
    shapes = (HEADS, Q_LEN, DIM), (HEADS_KV, KV_LEN, DIM), (HEADS_KV, KV_LEN, DIM + 8)
    return [torch.randn((BATCH, *shape), generator=draw).to(dtype) for shape in shapes]


def cells(spec: Any = SPEC) -> Any:
    mask = spec if isinstance(spec, fdma.BlockMask) else fdma.compile(spec, Q_LEN, KV_LEN)
    dense = torch.from_numpy(mask.to_dense())
    padded = torch.zeros((*dense.shape[:2], Q_LEN, KV_LEN), dtype=torch.bool)
    padded[:, :, : dense.shape[2], : dense.shape[3]] = dense
    return padded


def leaves(given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments with tensors that require gradients, and these tensors."""
    found, words = [], dict(given)
    for name in ("key_bias", "bias", "sinks"):
        if name in words:
            words[name] = words[name].detach().clone().requires_grad_()
            found.append(words[name])
    if "relative" in words:
        table, left = words["relative"]
        words["relative"] = table.detach().clone().requires_grad_(), left
        found.append(words["relative"][0])
    return words, found


def expect_gradients(way: Any, given: dict[str, Any], mask: Any = SPEC, **options: Any) -> None:
    """Compares results and gradients of way(q, k, v, mask, **words) with the definition."""
    mine = [x.requires_grad_() for x in tensors()]
    words, of_score = leaves(given)
    out, lse = way(*mine, mask, **words)
    theirs = [x.requires_grad_() for x in tensors()]
    exact, of_exact = leaves(given)
    expected, expected_lse, _ = define(*theirs, cells(mask), **exact, **options)
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-5, rtol=1e-5)
    draw = torch.Generator().manual_seed(9)
    dout = torch.randn(out.shape, generator=draw)
    dlse = torch.randn(lse.shape, generator=draw)
    seen = expected_lse > -torch.inf
    grads = torch.autograd.grad((out, lse), [*mine, *of_score], (dout, dlse))
    wanted = torch.autograd.grad(
        (expected, expected_lse[seen]), [*theirs, *of_exact], (dout.double(), dlse[seen].double())
    )
    for grad, want in zip(grads, wanted, strict=True):
        assert grad.shape == want.shape and grad.dtype == want.dtype
        largest = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(grad / largest, want / largest, atol=2e-5, rtol=0)


def eager(*given: Any, **words: Any) -> Any:
    return attend(*given, return_lse=True, **words)


def by_operators(*given: Any, **words: Any) -> Any:
    with torch.profiler.profile():
        return attend(*given, return_lse=True, **words)


def compiled(*given: Any, **words: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(eager, backend="aot_eager", fullgraph=True)(*given, **words)


def lengths_first(q: Any, k: Any, v: Any, mask: Any, **words: Any) -> Any:
    turned = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = attend(*turned, mask, layout="bshd", return_lse=True, **words)
    return out.transpose(1, 2), lse


def planned(q: Any, k: Any, v: Any, mask: Any, **words: Any) -> Any:
    told: dict[str, Any] = {"dropout" if name == "dropout_p" else name: True for name in words}
    told.pop("dropout_seed", None)
    plan = fdma.plan(mask, q=q, k=k, v=v, gradients=True, **told)
    return plan.run(q, k, v, return_lse=True, **words)


def closed_form(q: Any, k: Any, v: Any, mask: Any, **words: Any) -> Any:
    told: dict[str, Any] = {"dropout" if name == "dropout_p" else name: True for name in words}
    told.pop("dropout_seed", None)
    plan = fdma.plan(mask, q=q, k=k, v=v, closed_form=True, **told)
    return plan.run(q, k, v, return_lse=True, **words)


WAYS: dict[str, Any] = {
    "eager": eager,
    "operators": by_operators,
    "compiled": compiled,
    "lengths first": lengths_first,
    "plan": planned,
    "closed form": closed_form,
}


# ---- what each part computes


@pytest.mark.parametrize("name", PARTS)
def test_results_and_gradients_of_each_part(name: str) -> None:
    expect_gradients(eager, score(name))


@pytest.mark.parametrize("way", list(WAYS)[1:])
@pytest.mark.parametrize("name", ["bias", "relative", "sinks of rows", "dropout_p", "alibi_slopes"])
def test_every_way_in(name: str, way: str) -> None:
    expect_gradients(WAYS[way], score(name))


@pytest.mark.parametrize("way", WAYS)
def test_all_parts_together(way: str) -> None:
    names = "softcap", "key_bias", "bias", "alibi_slopes", "relative", "sinks", "dropout_p"
    expect_gradients(WAYS[way], score(*names))


@pytest.mark.parametrize(
    "names",
    [
        ("bias of keys", "sinks of rows"),
        ("relative", "dropout_p"),
        ("slopes of elements", "bias of kv heads"),
        ("one table", "sinks"),
    ],
)
def test_lengths_of_elements(names: tuple[str, str]) -> None:
    lengths = [(50, 90), (70, 61)]
    mask = fdma.compile("causal", [50, 70], [90, 61])
    expect_gradients(eager, score(*names), mask, lengths=lengths)


@pytest.mark.parametrize("name", PARTS)
def test_arrays_of_numpy(name: str) -> None:
    q, k, v = tensors()
    words = score(name)
    expected, expected_lse, _ = define(q, k, v, cells(), **words)
    arrays = {
        key: value.numpy() if isinstance(value, torch.Tensor) else value
        for key, value in words.items()
    }
    if "relative" in words:
        table, left = words["relative"]
        arrays["relative"] = table.numpy(), left
    out, lse = attend(*(x.numpy() for x in (q, k, v)), SPEC, return_lse=True, **arrays)
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=2e-5)


@pytest.mark.parametrize("name", ["softcap", "key_bias", "bias", "relative", "sinks", "dropout_p"])
def test_probabilities(name: str) -> None:
    q, k, v = tensors()
    words = score(name, "alibi_slopes", "sinks of rows")
    out, lse, weights = attend(q, k, v, SPEC, return_lse=True, return_probabilities=True, **words)
    expected = define(q, k, v, cells(), **words)
    for got, want in zip((out, lse, weights), expected, strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=1e-5)
    turned = (x.transpose(1, 2) for x in (q, k, v))
    pair = attend(*turned, SPEC, layout="bshd", return_probabilities=True, **words)
    assert len(pair) == 2 and torch.equal(pair[1], weights)


def test_a_graph_ends_before_probabilities() -> None:
    torch._dynamo.reset()
    given = tensors()

    def layer(q: Any, k: Any, v: Any) -> Any:
        return attend(2 * q, k, v, SPEC, return_probabilities=True)[1] + 1

    compiled: Any = torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), layer(*given))
    torch._dynamo.reset()


def test_probabilities_are_of_the_drawn_pairs() -> None:
    q, k, v = tensors()
    out, weights = attend(q, k, v, SPEC, dropout_p=0.5, return_probabilities=True)
    torch.testing.assert_close(weights @ v.repeat_interleave(2, 1), out, atol=2e-5, rtol=1e-5)
    assert 0.4 < float((weights[cells().expand_as(weights)] == 0).float().mean()) < 0.6


# ---- types


@pytest.mark.parametrize("name", ["bias", "sinks", "relative", "alibi_slopes", "key_bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_tensors_of_any_float(name: str, dtype: Any) -> None:
    q, k, v = tensors(torch.bfloat16)
    words, of_score = leaves(score(name))
    wide = {
        key: (value[0].to(dtype), value[1]) if key == "relative" else value.to(dtype)
        for key, value in words.items()
    }
    out = attend(q, k, v, SPEC, **wide)
    expected, _, _ = define(q, k, v, cells(), **wide)
    torch.testing.assert_close(out.double(), expected.detach(), atol=3e-2, rtol=3e-2)
    for grad in torch.autograd.grad(out.float().sum(), of_score) if of_score else ():
        assert grad.dtype == torch.float32 and bool(grad.abs().max() > 0)


def test_autocast_leaves_the_score_as_it_is() -> None:
    q, k, v = tensors()
    words = score("bias", "sinks")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v, SPEC, **words)
    assert out.dtype == torch.bfloat16
    expected = attend(*(x.bfloat16() for x in (q, k, v)), SPEC, **words)
    assert torch.equal(out, expected)


def test_bias_of_any_strides_and_broadcast_extents() -> None:
    q, k, v = tensors()
    bias = part("bias")["bias"]
    expected = attend(q, k, v, SPEC, bias=bias)
    assert torch.equal(attend(q, k, v, SPEC, bias=bias.mT.contiguous().mT), expected)
    row = bias[:1, :, :, :]
    expanded = row.expand(BATCH, -1, -1, -1)
    assert torch.equal(attend(q, k, v, SPEC, bias=expanded), attend(q, k, v, SPEC, bias=row))
    leaf = row.clone().requires_grad_()
    attend(q, k, v, SPEC, bias=leaf.expand(BATCH, -1, -1, -1)).square().sum().backward()
    whole = leaf.grad
    leaf.grad = None
    attend(q, k, v, SPEC, bias=leaf).square().sum().backward()
    torch.testing.assert_close(leaf.grad, whole, atol=1e-6, rtol=1e-5)


# ---- dropout


def test_dropout_follows_the_generator() -> None:
    q, k, v = tensors()
    torch.manual_seed(3)
    first, second = (attend(q, k, v, SPEC, dropout_p=0.4) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4), first)
    own = torch.Generator().manual_seed(3)
    assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4, generator=own), first)
    before = torch.get_rng_state()
    attend(q, k, v, SPEC, dropout_p=0.4, generator=own)
    attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=5)
    attend(q, k, v, SPEC, dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.profiler.profile():
        torch.manual_seed(3)
        assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4), first)


def test_seeds_of_every_form_are_the_same() -> None:
    q, k, v = tensors()
    seed, offset = -(1 << 60) - 7, 99 << 33
    expected = attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=(seed, offset))
    tensor = torch.tensor([seed, offset])
    assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=tensor), expected)
    unsigned = (seed % (1 << 64), offset)
    assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=unsigned), expected)
    arrays = (x.numpy() for x in (q, k, v))
    out = attend(*arrays, SPEC, dropout_p=0.4, dropout_seed=unsigned)
    assert np.array_equal(out, expected.numpy())
    draws = (np.random.default_rng(1) for _ in range(2))
    one, two = (attend(*arrays_of(), SPEC, dropout_p=0.4, generator=draw) for draw in draws)
    assert np.array_equal(one, two)


def arrays_of() -> list[Any]:
    return [x.numpy() for x in tensors()]


def test_a_seed_that_changes_before_the_backward_pass_is_an_error() -> None:
    q, k, v = (x.requires_grad_() for x in tensors())
    seeds = torch.tensor([1, 2])
    out = attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=seeds)
    seeds.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_checkpoints_draw_the_same_pairs() -> None:
    from torch.utils.checkpoint import checkpoint

    def layer(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, SPEC, dropout_p=0.4)

    gradients = []
    for run in (layer, lambda *x: checkpoint(layer, *x, use_reentrant=False)):
        given = [x.requires_grad_() for x in tensors()]
        torch.manual_seed(8)
        gradients.append(torch.autograd.grad(run(*given).square().sum(), given))
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)


def test_compiled_dropout_draws_anew_and_backward_has_the_same_pairs() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def layer(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, SPEC, dropout_p=0.4)

    q, k, v = tensors()
    value = v.clone().requires_grad_()
    first = layer(q, k, value)
    assert not torch.equal(first, layer(q, k, value))
    # The result is linear in v, so that its sum is the product of v and its gradient.
    (grad,) = torch.autograd.grad(first.sum(), value)
    assert float((grad * v).sum()) == pytest.approx(float(first.sum()), rel=1e-4)
    torch._dynamo.reset()


def test_seeds_may_change_in_compiled_calls() -> None:
    torch._dynamo.reset()
    q, k, v = tensors()

    def layer(q: Any, seed: Any) -> Any:
        return attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=seed)

    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=False):
        for seed in (1, 2):
            assert torch.equal(compiled(q, seed), layer(q, seed))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (3, 4):
            assert torch.equal(compiled(q, seed), layer(q, seed))
    torch._dynamo.reset()


def test_recorded_programs_draw_anew() -> None:

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any) -> Any:
            return attend(q, q, q, "causal", dropout_p=0.4)

    q = tensors()[0]
    for program in (
        torch.export.export(Layer(), (q,)).module(),
        torch.jit.trace(Layer(), (q,), check_trace=False),
    ):
        assert not torch.equal(program(q), program(q))


def test_a_plan_predicts_its_parts() -> None:
    q, k, v = tensors()
    plain, biased = (fdma.plan(SPEC, q=q, k=k, v=v, bias=b) for b in (False, True))
    assert biased.predict("cpu").time_ms > plain.predict("cpu").time_ms


# ---- what PyTorch expects of operators


@pytest.mark.parametrize("names", [(), ("bias", "sinks"), ("relative", "alibi_slopes", "key_bias")])
def test_opcheck(names: tuple[str, ...]) -> None:
    given = [x.requires_grad_() for x in tensors()]
    words, _ = leaves(score(*names))
    table, left = words.pop("relative", (None, 0))
    of_score = arguments(**words, relative=table, relative_left=left)
    torch.library.opcheck(
        torch.ops.fdma.attention.default, (*given, SPEC, 0, 0.0, True, False, -1, False, *of_score)
    )


@pytest.mark.parametrize("name", ["bias", "relative", "sinks"])
def test_second_gradients_are_refused(name: str) -> None:
    q, k, v = tensors()
    words, (leaf,) = leaves(score(name))
    out = attend(q, k, v, SPEC, **words)
    (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="second gradients"):
        grad.sum().backward()


@pytest.mark.parametrize("way", ["eager", "operators", "compiled"])
def test_a_gradient_of_one_part_alone(way: str) -> None:
    q, k, v = tensors()
    words = score("bias", "sinks", "key_bias")
    words["sinks"] = words["sinks"].requires_grad_()
    out, _ = WAYS[way](q, k, v, SPEC, **words)
    out.square().sum().backward()
    assert words["sinks"].grad.shape == (HEADS,)
    assert words["bias"].grad is None and words["key_bias"].grad is None


def test_exported_programs() -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
            return attend(q, k, v, SPEC, bias=bias, sinks=sinks, dropout_p=0.2, dropout_seed=4)

    words = score("bias", "sinks")
    given = (*tensors(), words["bias"], words["sinks"])
    program = torch.export.export(Layer(), given)
    layer: Any = Layer()
    assert torch.equal(program.module()(*given), layer(*given))


# ---- nothing to compute


@pytest.mark.parametrize("way", ["eager", "operators", "compiled"])
def test_batch_of_none(way: str) -> None:
    given = [x[:0].requires_grad_() for x in tensors()]
    words, of_score = leaves(score("relative", "sinks"))
    words["bias"] = torch.zeros(1, 1, Q_LEN, KV_LEN, requires_grad=True)
    out, lse = WAYS[way](*given, SPEC, **words)
    assert out.shape == (0, HEADS, Q_LEN, DIM + 8) and lse.shape == (0, HEADS, Q_LEN)
    for grad in torch.autograd.grad(out.sum() + lse.sum(), [*of_score, words["bias"]]):
        assert not grad.any()


def test_no_keys() -> None:
    q, k, v = tensors()
    leaf = torch.zeros(HEADS, requires_grad=True)
    out, lse = attend(q, k[:, :, :0], v[:, :, :0], None, sinks=leaf, return_lse=True)
    assert not out.any() and bool((lse == -torch.inf).all())
    out.sum().backward()
    assert not leaf.grad.any()


def test_rows_without_keys_and_biases_of_minus_infinity() -> None:
    q, k, v = tensors()
    bias = torch.zeros(1, 1, Q_LEN, KV_LEN)
    bias[:, :, 10] = -torch.inf
    bias[:, :, 11, :80] = -torch.inf
    leaf, sinks = bias.clone().requires_grad_(), torch.zeros(HEADS, requires_grad=True)
    out, lse = attend(q, k, v, bias=leaf, sinks=sinks, return_lse=True)
    assert not out[:, :, 10].any() and bool((lse[:, :, 10] == -torch.inf).all())
    torch.testing.assert_close(
        out[:, :, 11:12],
        attend(q[:, :, 11:12], k[:, :, 80:], v[:, :, 80:], sinks=sinks),
        atol=1e-5,
        rtol=1e-5,
    )
    out.square().sum().backward()
    assert not leaf.grad[:, :, 10].any() and not leaf.grad[:, :, 11, :80].any()
    assert bool(leaf.grad.isfinite().all()) and bool(sinks.grad.isfinite().all())


# ---- errors


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("error", "message", "words"),
    [
        (ValueError, r"bias: .* got \[2, 2, 90\]; write .* key_bias=", {"bias": (2, 2, 90)}),
        (ValueError, r"bias: .*; write bias\[None, None\]", {"bias": (70, 90)}),
        (ValueError, r"bias: .* = \[2, 4, 70, 90\], .*\(heads also 2\)", {"bias": (1, 3, 1, 90)}),
        (ValueError, r"bias: .*each but the last", {"bias": (1, 1, 1, 1)}),
        (ValueError, r"key_bias: .*write key_bias\[None, None\]", {"key_bias": (90,)}),
        (ValueError, r"key_bias: .*write key_bias\[None\]", {"key_bias": (2, 90)}),
        (ValueError, r"key_bias: .* is bias=", {"key_bias": (1, 1, 70, 90)}),
        (ValueError, r"alibi_slopes: expected \[heads\] = \[4\] or", {"alibi_slopes": (2,)}),
        (ValueError, r"sinks: expected \[heads\] = \[4\] or .batch", {"sinks": (4, 1)}),
        (ValueError, r"relative: expected a table .*write table\[None\]", {"relative": ((9,), 4)}),
        (ValueError, "relative: expected a left from 0 to 8", {"relative": ((4, 9), 9)}),
        (TypeError, r"relative: expected a pair \(table, left\)", {"relative": (4, 9)}),
        (TypeError, "relative: expected an integer left, got float", {"relative": ((4, 9), 4.0)}),
        (ValueError, "dropout_p: expected at least 0 and below 1, got 1", {"dropout_p": 1}),
        (TypeError, "dropout_p: expected a number", {"dropout_p": "0.1"}),
        (
            ValueError,
            "generator: expected None with a dropout_seed",
            {"dropout_p": 0.1, "dropout_seed": 1, "generator": True},
        ),
        (
            TypeError,
            "dropout_seed: expected an integer or a pair",
            {"dropout_p": 0.1, "dropout_seed": 0.5},
        ),
        (ValueError, "dropout_seed: .* 64 bits", {"dropout_p": 0.1, "dropout_seed": 1 << 64}),
        (NotImplementedError, "return_max_logit: no backend", {"return_max_logit": True}),
    ],
)
def test_wrong_arguments_are_named(kind: str, error: Any, message: str, words: Any) -> None:
    def made(shape: Any) -> Any:
        zeros = torch.zeros(shape)
        return zeros if kind == "torch" else zeros.numpy()

    def array(name: str, value: Any) -> Any:
        if name in ("dropout_p", "dropout_seed", "return_max_logit"):
            return value
        if name == "generator":
            return torch.Generator() if kind == "torch" else np.random.default_rng()
        if name != "relative":
            return made(value)
        return (made(value[0]), value[1]) if isinstance(value[0], tuple) else made(value)

    q, k, v = tensors()
    given = (q, k, v) if kind == "torch" else [x.numpy() for x in (q, k, v)]
    with pytest.raises(error, match=message):
        attend(*given, SPEC, **{name: array(name, value) for name, value in words.items()})


def test_wrong_tensors_are_named() -> None:
    q, k, v = tensors()
    for error, message, words in (
        (TypeError, "bias: expected a tensor of PyTorch", {"bias": np.zeros((1, 1, 70, 90))}),
        (TypeError, "bias: .*booleans are a mask", {"bias": torch.ones(1, 1, 70, 90) > 0}),
        (TypeError, "sinks: expected floating point", {"sinks": torch.zeros(4).int()}),
        (
            TypeError,
            r"alibi_slopes: a tensor that requires a gradient.*alibi_slopes.detach\(\)",
            {"alibi_slopes": torch.ones(4, requires_grad=True)},
        ),
        (
            ValueError,
            r"dropout_seed: expected an integer, a pair .*got torch.int32",
            {"dropout_p": 0.1, "dropout_seed": torch.tensor([1, 2], dtype=torch.int32)},
        ),
        (
            TypeError,
            "generator: expected a torch.Generator",
            {"dropout_p": 0.1, "generator": np.random.default_rng()},
        ),
    ):
        for mode in (contextlib.nullcontext(), torch.profiler.profile()):
            with pytest.raises(error, match=message), mode:
                attend(q, k, v, SPEC, **words)
    with pytest.raises(ValueError, match=r"dropout_seed: expected an integer, or generator=numpy"):
        attend(*arrays_of(), SPEC, dropout_p=0.1)
    with pytest.raises(NotImplementedError, match="return_probabilities: only tensors of PyTorch"):
        attend(*arrays_of(), SPEC, return_probabilities=True)


@pytest.mark.parametrize(
    ("told", "words", "message"),
    [
        ({"bias": True}, {}, "bias: expected one, as the plan was made with bias=True, got None"),
        ({}, {"sinks": "sinks"}, r"sinks: expected None; fdma.plan\(.., sinks=True\)"),
        ({"dropout": True}, {}, "dropout_p: expected a number, .*dropout=True, got 0.0"),
        ({}, {"dropout_p": "dropout_p"}, r"dropout_p: expected None; .*dropout=True"),
    ],
)
def test_runs_bring_what_their_plan_was_told(told: Any, words: Any, message: str) -> None:
    q, k, v = tensors()
    plan = fdma.plan(SPEC, q=q, k=k, v=v, **told)
    with pytest.raises(ValueError, match=message):
        plan.run(q, k, v, **score(*words.values()))


def test_plans_are_told_booleans() -> None:
    q, k, v = tensors()
    wrong: Any = part("sinks")["sinks"]
    with pytest.raises(TypeError, match=r"sinks: expected True or False, got Tensor; each run"):
        fdma.plan(SPEC, q=q, k=k, v=v, sinks=wrong)
    plan = fdma.plan(SPEC, q=q, k=k, v=v, sinks=True, softcap=True)
    assert plan.score == ("softcap", "sinks")
