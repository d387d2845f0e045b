"""The modes of PyTorch: which of them a call of FDMA supports, and which it refuses by name."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._device import DeviceContext

__all__: list[str] = []

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are what they seem."""

_INSTEAD = (
    "; torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel("
    "torch.nn.attention.SDPBackend.MATH) has them"
)
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_transform = torch._C._functorch.peek_interpreter_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_dispatch_depth = torch._C._len_torch_dispatch_stack
_is_profiling = torch.autograd._profiler_enabled
_function_depth = torch._C._len_torch_function_stack
_function_mode = torch._C._get_function_stack_at
_included_keys = torch._C._dispatch_tls_local_include_set
_excluded_keys = torch._C._dispatch_tls_local_exclude_set

is_batched = torch._C._functorch.is_legacy_batchedtensor
"""Whether a gradient stands for many, in torch.autograd.grad(is_grads_batched=True)."""


def is_plain(q: Any, k: Any, v: Any) -> bool:
    """Whether tensors are of PyTorch's own type, and no mode records or rewrites calls on them."""
    return (
        type(q) in PLAIN
        and type(k) in PLAIN
        and type(v) in PLAIN
        and (q.is_cuda or q.is_cpu)
        and _dispatch_depth() == 0
        and not _has_function_mode()
        and _transform() is None
        and not _is_profiling()
        and not _is_tracing()
        and not has_tangents()
    )


def are_plain(*tensors: Any) -> bool:
    """Whether all tensors that are there are of PyTorch's own type."""
    for x in tensors:  # noqa: SIM110, since a generator would take longer
        if x is not None and type(x) not in PLAIN:
            return False
    return True


def _is_exporting() -> bool:
    """torch.compiler.is_exporting(), which the Dynamo of PyTorch 2.11 and older takes for True."""
    if hasattr(torch.compiler, "_is_exporting_flag"):
        return bool(torch.compiler._is_exporting_flag)
    # Before PyTorch 2.7 only exports without Dynamo can be told from torch.compile.
    return _is_compiling() and not torch.compiler.is_dynamo_compiling()


def is_recorded() -> bool:
    """Whether calls are recorded into a program that runs later, perhaps in another process.

    torch.export, AOTInductor, torch.jit.trace and make_fx record such programs. torch.compile does
    not, because its graphs belong to this process.
    """
    if _is_compiling():
        return bool(_is_exporting())
    return bool(_is_tracing()) or get_proxy_mode() is not None


def only_sets_devices() -> bool:
    """Whether the only active function mode is that of a default device.

    This mode changes calls that make tensors without naming a device, and FDMA has no such calls.
    The mode still costs a microsecond or more for each tensor attribute that is read under it.
    """
    return (
        bool(_has_function_mode())
        and _function_depth() == 1
        and type(_function_mode(0)) is DeviceContext
    )


def has_tangents() -> bool:
    """Whether forward-mode differentiation may be active."""
    return bool(forward_ad._current_level >= 0)


def refuse_transforms(name: str, *tensors: Any) -> None:
    """NotImplementedError inside transforms of torch.func, and for tensors with a tangent."""
    if _transform() is not None:
        raise NotImplementedError(
            f"{name}: transforms of torch.func (grad, vmap, ..) are not there; use "
            "torch.autograd.grad, or a batch"
        )
    if has_tangents() and any(isinstance(x, torch.Tensor) and _has_tangent(x) for x in tensors):
        raise NotImplementedError(
            f"{name}: forward-mode derivatives (torch.autograd.forward_ad, jvp) are not there; use "
            "torch.autograd.grad"
        )


def _has_tangent(x: Any) -> bool:
    # Inside an operator the key that unpacks may be switched off.
    excluded = _excluded_keys().remove(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ForceDispatchKeyGuard(_included_keys(), excluded):
        return forward_ad.unpack_dual(x).tangent is not None


def refuse_second_gradients(name: str) -> NoReturn:
    """Raises NotImplementedError for gradients of gradients."""
    raise NotImplementedError(
        f"{name}: second gradients are not there (create_graph=True, hessians, gradient penalties)"
        + (_INSTEAD if name == "attention" else "")
    )


def refuse_recording(name: str) -> None:
    """NotImplementedError if a program is recorded, which would repeat this example's values."""
    if is_recorded():
        raise NotImplementedError(
            f"{name}: the keys that it selects depend on values, which no recorded program "
            "(torch.export, torch.jit.trace, make_fx) can hold; keep it outside, and give the "
            "program fdma.attention with a mask"
        )
