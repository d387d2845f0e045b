"""Tests fdma.attention under the modes of PyTorch: as PyTorch's attention, or refused by name.

A case is a function of an attention `(q, k, v) -> out` and of q, k, v that returns tensors. It runs
with both attentions, and the results must be the same. Learned attention follows below. The file is
long because one table of modes and ways covers all cases.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdma_module import FOLDER  # noqa: F401  (the package of the build)

# isort: split
import fdma
from fdma import _fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._dynamo import compiled_autograd as compiled_autograd_of_torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Attention = Callable[..., Any]
LENGTH = 48


def by_fdma(q: Any, k: Any, v: Any, mask: Any = "causal") -> Any:
    attend: Any = fdma.attention
    return attend(q, k, v, mask)


def by_operators(q: Any, k: Any, v: Any) -> Any:
    """Runs attention by its operators, as it runs while the profiler records."""
    with torch.profiler.profile():
        return by_fdma(q, k, v)


def by_sdpa(q: Any, k: Any, v: Any) -> Any:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return sdpa(q, k, v, is_causal=True, enable_gqa=True)


def learned(q: Any, k: Any, v: Any) -> Any:
    dt_proj, a_coef = torch.ones(2, 16) / 8, torch.tensor([-1.0, 0.5])
    attend: Any = fdma.dynamic_mask_attention
    return attend(q, k, v, dt_proj, a_coef, 8)


def scored(q: Any, k: Any, v: Any) -> Any:
    dt_proj, a_coef = torch.ones(2, 16) / 8, torch.tensor([-1.0, 0.5])
    scores: Any = fdma.zoh_scores(v, dt_proj, a_coef)
    return scores


WAYS = {"plain": by_fdma, "operators": by_operators}
ALL = {**WAYS, "learned": learned, "scores": scored}


def tensors(requires_grad: bool = True, dtype: Any = torch.float32) -> list[Any]:
    torch.manual_seed(3)
    return [
        torch.randn(2, heads, LENGTH, 16).to(dtype).requires_grad_(requires_grad)
        for heads in (4, 2, 2)
    ]


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Records every function."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Log(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


# ---- against SDPA

CASES: dict[str, Callable[..., Any]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


@case
def gradients(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    return out, *torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def gradients_that_are_not_contiguous(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    weight = torch.randn(2, 16, LENGTH, 4).permute(0, 3, 2, 1)
    sliced = torch.randn(2, 4, LENGTH, 32)[..., ::2]
    both = [torch.autograd.grad(out, (q, k, v), x, retain_graph=True) for x in (weight, sliced)]
    return *both[0], *both[1]


@case
def gradients_of_one_number(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    return torch.autograd.grad(attend(q, k, v).sum(), (q, k, v))


@case
def gradients_that_are_scalars_expanded(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    return torch.autograd.grad(out, (q, k, v), torch.tensor(0.5).expand_as(out))


@case
def gradients_of_views(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    views = out[:, 1:3].transpose(1, 2).flatten(2), out[..., 0], out.unbind(0)[1]
    return torch.autograd.grad(sum((i + 1) * x.square().sum() for i, x in enumerate(views)), (q, v))


@case
def gradients_through_views(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    packed = torch.randn(2, LENGTH, 3, 4, 16, requires_grad=True)
    parts = (x.transpose(1, 2) for x in packed.unbind(2))
    return torch.autograd.grad(attend(*parts).square().sum(), packed)


@case
def expanded_inputs(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    one = torch.randn(1, 1, LENGTH, 16, requires_grad=True)
    row = torch.randn(1, 1, 1, 16, requires_grad=True)
    out = attend(q, one.expand(2, 2, -1, -1), row.expand(2, 2, LENGTH, -1))
    return out, *torch.autograd.grad(out.square().sum(), (q, one, row))


@case
def one_tensor_as_all(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    return torch.autograd.grad(attend(q, q, q).square().sum(), q)


@case
def a_subset_of_inputs(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    q, v = q.detach(), v.detach()
    out = attend(q, k, v)
    return torch.autograd.grad(out.square().sum(), k)


@case
def unused_inputs(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    other = torch.zeros(3, requires_grad=True)
    out = attend(q, k, v).square().sum()
    found = torch.autograd.grad(out, (v, other), allow_unused=True)
    assert found[1] is None
    return found[0]


@case
def zeros_for_unused_inputs(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    other = torch.zeros(3, requires_grad=True)
    out = attend(q, k, v).square().sum()
    return torch.autograd.grad(out, (v, other), materialize_grads=True)


@case
def backward_twice(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v).square().sum()
    out.backward(retain_graph=True)
    out.backward()
    return q.grad, k.grad, v.grad


@case
def one_output_used_twice(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    return torch.autograd.grad(out.square().sum() + (out * out.detach()).sum() + out.sum(), (q, k))


@case
def one_call_after_the_other(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(attend(q, k, v), k, v)
    return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def tensor_hooks(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    out.register_hook(lambda x: 2 * x)
    q.register_hook(lambda x: x + 1)
    k.register_post_accumulate_grad_hook(lambda x: setattr(x, "grad", 3 * x.grad))
    out.retain_grad()
    out.square().sum().backward()
    return q.grad, k.grad, v.grad, out.grad


@case
def node_hooks(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    out.grad_fn.register_prehook(lambda grads: (2 * grads[0], *grads[1:]))
    return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def module_hooks(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v)

    layer = Layer()
    seen: list[Any] = []
    layer.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]))
    layer.register_forward_hook(lambda _, given, out: out + 1)
    layer.register_full_backward_pre_hook(lambda _, dout: (dout[0] * 2,))
    layer.register_full_backward_hook(lambda _, din, dout: seen.extend((*din, *dout)))
    layer(q, k, v).square().sum().backward()
    return q.grad, k.grad, v.grad, *seen


@case
def saved_tensors_hooks(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(), torch.from_numpy):
        out = attend(q, k, v)
    return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def save_on_cpu(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        out = attend(q, k, v)
    return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def no_grad(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.no_grad():
        out = attend(q, k, v)
    assert not out.requires_grad and out.grad_fn is None
    out.requires_grad_()
    return torch.autograd.grad(attend(out, k, v).square().sum(), (out, k))


@case
def no_grad_inside_checkpoints(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    def block(q: Any, k: Any, v: Any) -> Any:
        with torch.no_grad():
            first = attend(q, k, v)
        return attend(q + first, k, v).square().sum()

    out = checkpoint(block, q, k, v, use_reentrant=False)
    return torch.autograd.grad(out, (q, k, v))


@case
def reentrant_checkpoints(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = checkpoint(lambda *x: attend(*x).square(), q, k, v, use_reentrant=True)
    out.sum().backward()
    return q.grad, k.grad, v.grad


@case
def checkpoints_in_checkpoints(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    def inner(q: Any, k: Any, v: Any) -> Any:
        return checkpoint(attend, q, k, v, use_reentrant=False)

    out = checkpoint(lambda *x: inner(*x).square(), q, k, v, use_reentrant=False)
    return torch.autograd.grad(out.sum(), (q, k, v))


@case
def inference_mode(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.inference_mode():
        out = attend(q, k, v)
        assert out.is_inference()
        with torch.inference_mode(False):
            normal = attend(q, k, v)
    assert not normal.is_inference() and normal.requires_grad
    clone = out.clone().requires_grad_()
    return out, *torch.autograd.grad(attend(clone, k, v).square().sum(), (clone, k, v))


@case
def inference_tensors_outside(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.inference_mode():
        q, k, v = (x * 2 for x in (q, k, v))
    return attend(q, k, v)


@case
def anomaly_mode(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        return torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))


@case
def dispatch_mode(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with Log() as log:
        grads = torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))
    assert any("attention" in name or "softmax" in name for name in log.names)
    return grads


@case
def dispatch_mode_in_the_backward_pass(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v).square().sum()
    with Log():
        return torch.autograd.grad(out, (q, k, v))


@case
def function_mode(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with Functions():
        return torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))


@case
def modes_in_modes(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.device("cpu"), Functions(), Log():
        return torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))


@case
def fake_tensors(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(x) for x in (q, k, v))
        out = attend(q, k, v)
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    return [torch.zeros(x.shape) for x in (out, *grads)]


@case
def meta_tensors(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.detach().to("meta").requires_grad_() for x in (q, k, v))
    out = attend(q, k, v)
    return [torch.zeros(x.shape) for x in torch.autograd.grad(out.square().sum(), (q, k, v))]


@case
def batches_of_gradients(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v)
    torch.manual_seed(5)
    many = torch.randn(3, *out.shape)
    return torch.autograd.grad(out, (q, k, v), many, is_grads_batched=True)


@case
def jacobians(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    jacobian = functools.partial(torch.autograd.functional.jacobian, vectorize=True)
    q, k, v = (x.detach()[:1, :, :5] for x in (q, k, v))
    return jacobian(lambda q: attend(q, k, v).sum((1, 3)), q)


@case
def multigrad_hooks_and_threads(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    seen: list[Any] = []
    torch.autograd.graph.register_multi_grad_hook((q, k), lambda grads: seen.extend(grads))
    with torch.autograd.set_multithreading_enabled(False):
        attend(q, k, v).square().sum().backward()
    return *seen, v.grad


@case
def deep_copies_of_what_requires_none(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (copy.deepcopy(x) for x in (q, k, v))
    return torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))


@case
def parameters_and_their_buffers(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (torch.nn.Parameter(x.detach()) for x in (q, k, v))
    return torch.autograd.grad(attend(q, k, torch.nn.Buffer(v.detach())).square().sum(), (q, k))


@case
def functional_calls(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.k = torch.nn.Parameter(k.detach() * 0)

        def forward(self, q: Any) -> Any:
            return attend(q, self.k, v)

    out = torch.func.functional_call(Layer(), {"k": k}, (q,))
    return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def changes_of_saved_tensors_that_are_allowed(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        changed = q * 1
        out = attend(changed, k, v)
        changed.add_(1)
        return torch.autograd.grad(out.square().sum(), (q, k, v))


@case
def compiled_autograd(attend: Attention, q: Any, k: Any, v: Any) -> Any:
    out = attend(q, k, v).square().sum()
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with compiled_autograd_of_torch._enable(compiler):
        out.backward()
    torch._dynamo.reset()
    return q.grad, k.grad, v.grad


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_as_scaled_dot_product_attention(name: str, way: str) -> None:
    found: list[Any] = []
    for attend in (WAYS[way], by_sdpa):
        given = tensors()
        torch.manual_seed(4)
        result = CASES[name](attend, *given)
        found.append(list(result) if isinstance(result, list | tuple) else [result])
    assert len(found[0]) == len(found[1]) > 0
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=1e-4)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a graph that was freed": (
        lambda out, q: (out.sum().backward(), out.sum().backward()),
        "backward through the graph a second time",
    ),
    "an input changed in place": (
        lambda out, q: (q.detach().add_(1), out.sum().backward()),
        "modified by an inplace operation",
    ),
    "an output changed in place": (
        lambda out, q: (out.detach().add_(1), out.sum().backward()),
        "modified by an inplace operation",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_uses_are_pytorchs_errors(name: str, way: str) -> None:
    function, message = REFUSED[name]
    q, k, v = tensors()
    with pytest.raises(RuntimeError, match=message):
        function(WAYS[way](q, k, v), q)


@pytest.mark.parametrize("way", WAYS)
def test_inference_tensors_are_not_saved_for_gradients(way: str) -> None:
    q, k, v = tensors()
    with torch.inference_mode():
        k = k * 2
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        WAYS[way](q, k, v)


def test_modules_with_masks_are_copied() -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mask = fdma.compile("causal & window(8)", LENGTH)
            self.text = fdma.causal() & fdma.window(8)
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            first = by_fdma(self.linear(q), k, v, self.mask)
            assert torch.equal(first, by_fdma(self.linear(q), k, v, self.text))
            return first

    layer = Layer()
    given = tensors()
    out = layer(*given)
    copied = copy.deepcopy(layer)
    assert copied.mask == layer.mask
    assert torch.equal(copied(*given), out)
    copied(*given).sum().backward()
    assert layer.linear.weight.grad is None and copied.linear.weight.grad is not None


# ---- second gradients and forward mode


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("is_constant", [True, False], ids=["sum", "square"])
def test_second_gradients_are_refused(way: str, is_constant: bool) -> None:
    q, k, v = tensors()
    out = ALL[way](q, k, v)
    dout = torch.ones_like(out) if is_constant else 2 * out
    for wanted in ((v,), (q, k, v)):
        unused = {"allow_unused": True, "retain_graph": True, "create_graph": True}
        grads = [x for x in torch.autograd.grad(out, wanted, dout, **unused) if x is not None]
        assert grads and all(x.requires_grad for x in grads)
        for grad in grads:
            for use in (grad.sum(), grad.square().sum()):
                with pytest.raises(NotImplementedError, match="second gradients are not there"):
                    torch.autograd.grad(use, v, retain_graph=True)
                with pytest.raises(NotImplementedError, match="second gradients are not there"):
                    use.backward(retain_graph=True)


@pytest.mark.parametrize("way", WAYS)
def test_second_gradients_of_bias_and_log_sum_exp_are_refused(way: str) -> None:
    q, k, v = tensors(requires_grad=False)
    bias = torch.zeros(2, 2, LENGTH, requires_grad=True)
    attend: Any = fdma.attention
    mode = torch.profiler.profile() if way == "operators" else contextlib.nullcontext()
    with mode:
        out, lse = attend(q, k, v, "causal", key_bias=bias, return_lse=True)
    for result in (out, lse):
        (grad,) = torch.autograd.grad(result.sum(), bias, create_graph=True)
        assert grad.requires_grad
        with pytest.raises(NotImplementedError, match="attention: second gradients"):
            torch.autograd.grad(grad.sum(), bias)


@pytest.mark.parametrize("way", ALL)
def test_hessians_and_their_kin_are_refused(way: str) -> None:
    attend = ALL[way]
    q, k, v = tensors(requires_grad=False)

    def loss(v: Any) -> Any:
        return attend(q, k, v).sum()

    functional = torch.autograd.functional
    functions: list[Callable[[], Any]] = [
        lambda: functional.hessian(loss, v),
        lambda: functional.hvp(loss, v, v),
        lambda: functional.vhp(loss, v, v),
        lambda: functional.jvp(loss, v, v),
    ]
    for function in functions:
        with pytest.raises(NotImplementedError, match="second gradients are not there"):
            function()


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, v: torch.func.grad(f)(v),
    "vjp": lambda f, v: torch.func.vjp(f, v),
    "jvp": lambda f, v: torch.func.jvp(f, (v,), (v,)),
    "jacrev": lambda f, v: torch.func.jacrev(f)(v),
    "jacfwd": lambda f, v: torch.func.jacfwd(f)(v),
    "hessian": lambda f, v: torch.func.hessian(f)(v),
    "vmap": lambda f, v: torch.func.vmap(f)(v[None]),
    "functionalize": lambda f, v: torch.func.functionalize(f)(v),
}


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused(name: str, way: str) -> None:
    q, k, v = tensors(requires_grad=False)
    with pytest.raises(NotImplementedError, match=r"transforms of torch\.func"):
        TRANSFORMS[name](lambda v: ALL[way](q, k, v).sum(), v)


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode_is_refused(way: str, requires_grad: bool) -> None:
    q, k, v = tensors(requires_grad)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, torch.ones_like(v))
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            ALL[way](q, k, dual)
        assert torch.equal(ALL[way](q, k, v), ALL[way](q, k, v.detach()))  # there is no tangent


@pytest.mark.parametrize("way", ALL)
def test_forward_mode_of_gradients_is_refused(way: str) -> None:
    q, k, v = tensors()
    out = ALL[way](q, k, v)
    with forward_ad.dual_level():
        dout = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            torch.autograd.grad(out, v, dout)


def test_forward_mode_of_operators_is_refused() -> None:
    by_fdma(*tensors(False))  # this call registers the operators
    q, k, v = tensors(False)
    compiled = torch.compile(by_fdma, backend="aot_eager")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, v)
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            torch.ops.fdma.attention(q, k, dual, "causal", 0, 0.0, True, False, -1, False)
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
                compiled(q, k, dual)
            assert torch.equal(compiled(q, k, v), by_fdma(q, k, v))
    torch._dynamo.reset()


def test_second_gradients_of_compiled_calls_are_errors() -> None:
    q, k, v = tensors()
    compiled = torch.compile(by_fdma, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(q, k, v).sum(), q, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        grad.square().sum().backward()
    torch._dynamo.reset()


def test_batches_of_learned_gradients_are_refused() -> None:
    q, k, v = tensors()
    out = learned(q, k, v)
    with pytest.raises(NotImplementedError, match="no batches of gradients"):
        torch.autograd.grad(out, v, torch.randn(3, *out.shape), is_grads_batched=True)


# ---- checkpoints and default devices


def _selective(policy: Any) -> dict[str, Any]:
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)
    return {"context_fn": contexts}


CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (contextlib.nullcontext, {}),
    "profiler": (torch.profiler.profile, {}),
    "device": (lambda: torch.device("cpu"), {}),
    "default device": (default_device, {}),
    "function mode": (Functions, {}),
    "dispatch mode": (Log, {}),
    **{str(x): (contextlib.nullcontext, _selective(x)) for x in CheckpointPolicy},
}


@pytest.mark.parametrize("way", ["plain", "learned", "scores"])
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_backward_inside", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_recompute(name: str, way: str, dtype: Any, is_backward_inside: bool) -> None:
    mode, options = CHECKPOINTS[name]
    given = tensors(dtype=dtype)
    used = [x for x in given if way != "scores" or x is given[2]]

    def function(*given: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return ALL[way](*given).float().square().sum()

    wanted = torch.autograd.grad(function(*given), used)
    with mode():
        out = checkpoint(function, *given, use_reentrant=False, **options)
        if is_backward_inside:
            grads = torch.autograd.grad(out, used)
    if not is_backward_inside:
        grads = torch.autograd.grad(out, used)
    for grad, want in zip(grads, wanted, strict=True):
        assert torch.equal(grad, want)


@pytest.mark.parametrize("mode", [lambda: torch.device("cpu"), default_device])
def test_a_default_device_leaves_calls_plain(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    from fdma.attention import operators as attention_operators

    def refuse(*_: Any) -> Any:
        raise AssertionError("went through the operators")

    q, k, v = tensors()
    by_fdma(q, k, v)
    monkeypatch.setattr(attention_operators, "attention", refuse)
    with mode():
        torch.autograd.grad(by_fdma(q, k, v).sum(), (q, k, v))
        with Functions(), pytest.raises(AssertionError, match="went through the operators"):
            by_fdma(q, k, v)


# ---- deterministic algorithms, the scale


@contextlib.contextmanager
def deterministic_algorithms(warn_only: bool = False) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("way", ["plain", "operators", "compiled"])
def test_deterministic_algorithms_are_heeded(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    seen: list[bool] = []
    run = _fdma.attention_backward_call

    def call(plan: Any, *arguments: Any) -> Any:
        seen.append(arguments[14])
        return run(plan, *arguments)

    monkeypatch.setattr(_fdma, "attention_backward_call", call)
    compiled = torch.compile(by_fdma, backend="aot_eager", fullgraph=True)
    attend = {**WAYS, "compiled": compiled}[way]
    given = tensors()
    wanted = torch.autograd.grad(attend(*given).square().sum(), given)
    for warn_only in (False, True):
        with deterministic_algorithms(warn_only):
            grads = torch.autograd.grad(attend(*given).square().sum(), given)
        assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    asked: Any = fdma.attention
    torch.autograd.grad(asked(*given, "causal", deterministic=True).square().sum(), given)
    assert seen == [False, True, True, True]
    torch._dynamo.reset()


def test_deterministic_algorithms_are_heeded_by_learned_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fdma.attention import learned_torch

    seen: list[bool] = []

    class Held:
        """Wraps the core's object and records its calls."""

        def __init__(self, held: Any) -> None:
            self.held = held

        def __getattr__(self, name: str) -> Any:
            return getattr(self.held, name)

        def backward(self, *arguments: Any, **options: Any) -> Any:
            seen.append(options["deterministic"])
            return self.held.backward(*arguments, **options)

    run = learned_torch.with_gradients
    monkeypatch.setattr(
        learned_torch,
        "with_gradients",
        lambda held, *rest: run(Held(held), *rest),  # type: ignore[arg-type]
    )
    given = tensors()
    wanted = torch.autograd.grad(learned(*given).square().sum(), given)
    with deterministic_algorithms():
        grads = torch.autograd.grad(learned(*given).square().sum(), given)
        scores = torch.autograd.grad(scored(*given).sum(), given[2])
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    assert torch.equal(scores[0], torch.autograd.grad(scored(*given).sum(), given[2])[0])
    assert seen == [False, True]


SCALES = {
    "a text": ("1", "expected a number or None, got str"),
    "a boolean": (True, "expected a number or None, got bool"),
    "a boolean tensor": (torch.tensor(True), "expected a number or None, got Tensor"),
    "a list": ([1.0], "expected a number or None, got list"),
    "a complex number": (1j, "expected a number or None, got complex"),
    "a parameter": (torch.nn.Parameter(torch.tensor(0.1)), "multiply q by it and give .*=1.0"),
    "a tensor with a gradient": (
        torch.tensor([0.1], requires_grad=True),
        r"or give float\(.*\.detach\(\)\)",
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_rejects_scales_that_are_no_numbers(name: str) -> None:
    import flash_dmattn

    scale, message = SCALES[name]
    given = tensors()
    attend: Any = fdma.attention
    select: Any = fdma.dynamic_mask_attention
    weights = torch.ones(2, 16), torch.zeros(2)
    turned = [x.transpose(1, 2) for x in given]
    old: Any = flash_dmattn.flash_dma_attention
    dense: Any = flash_dmattn.flash_dmattn_func
    for requires_grad in (True, False):
        q, k, v = (x.detach().requires_grad_(requires_grad) for x in given)
        with pytest.raises(TypeError, match=f"^scale: .*{message}"):
            attend(q, k, v, "causal", scale=scale)
        with torch.profiler.profile(), pytest.raises(TypeError, match=f"^scale: .*{message}"):
            attend(q, k, v, "causal", scale=scale)
        with pytest.raises(TypeError, match=f"^scale: .*{message}"):
            select(q, k, v, *weights, 8, scale=scale)
    with pytest.raises(TypeError, match=f"^scale: .*{message}"):
        dense(*turned, scale=scale)
    for options in ({}, {"return_attn_probs": True}):
        with pytest.raises(TypeError, match=f"^softmax_scale: .*{message}"):
            old(*turned, *weights, 8, softmax_scale=scale, **options)
    with pytest.raises(TypeError, match=f"^scale: .*{message}"):
        attend(*(x.detach().numpy() for x in given), "causal", scale=scale)


def test_scales_that_are_numbers() -> None:
    import numpy as np

    q, k, v = tensors(False)
    attend: Any = fdma.attention
    expected = attend(q, k, v, "causal", scale=2.0)
    for scale in (2, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0), torch.tensor(2)):
        assert torch.equal(attend(q, k, v, "causal", scale=scale), expected)
    compiled = torch.compile(
        lambda q, scale: attend(q, k, v, "causal", scale=scale), backend="aot_eager", fullgraph=True
    )
    for number in (2, 2.0):
        assert torch.equal(compiled(q, number), expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("size", [True, 2.5, "8", None, torch.tensor(8.0)], ids=repr)
def test_rejects_window_sizes_that_are_no_integers(size: Any) -> None:
    select: Any = fdma.dynamic_mask_attention
    with pytest.raises(TypeError, match="keep_window_size: expected an integer, got"):
        select(*tensors(), torch.ones(2, 16), torch.zeros(2), size)


# ---- what cannot be recorded


def test_selection_is_not_recorded() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *given: Any) -> Any:
            return self.function(*given)

    def selected(q: Any, k: Any, v: Any) -> Any:
        return by_fdma(q, k, v, fdma.select_topk(scored(q, k, v).detach(), 8, heads=4))

    q, k, v = tensors(False)
    for function, name in ((learned, "dynamic_mask_attention"), (selected, "select_topk")):
        for given in ((q, k, v), tuple(tensors())):
            message = f"{name}: the keys that it selects depend on values"
            with pytest.raises(NotImplementedError, match=message):
                torch.jit.trace(function, given, check_trace=False)
            with pytest.raises(NotImplementedError, match=message):
                make_fx(function)(*given)
            with pytest.raises(NotImplementedError, match=message):
                torch.export.export(Layer(function), given)


def test_learned_attention_of_fake_tensors_is_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in tensors(False)]
        with pytest.raises(NotImplementedError, match="fake and meta tensors have no values"):
            learned(*fake)
    with pytest.raises(NotImplementedError, match="fake and meta tensors have no values"):
        learned(*(x.to("meta") for x in tensors(False)))


def test_a_scale_that_changes_in_a_dynamic_graph() -> None:
    attend: Any = fdma.attention
    q = torch.randn(1, 4, 64, 16)
    compiled = torch.compile(
        lambda q, scale: attend(q, q, q, "causal", scale=scale), fullgraph=True, dynamic=True
    )
    for scale in (0.3, 0.4, 0.5):
        assert torch.equal(compiled(q, scale), attend(q, q, q, "causal", scale=scale))
