"""ZOH scores of PyTorch's tensors and their gradients, as operators.

    fdma::zoh_scores(Tensor values, Tensor dt_proj, Tensor a_coef, bool log, int num_threads=-1)
                     -> Tensor
    fdma::zoh_scores_backward(Tensor dscores, .., bool wants_values, .., int num_threads=-1)
                              -> (Tensor, Tensor, Tensor)

values is [batch, kv_len, heads_kv, head_dim]. The gradients are those of
fdma/select/zoh_backward.hpp, in the dtypes of their inputs; a gradient that is not wanted is an
empty tensor. Second gradients are an error. num_threads -1 means the value of
torch.get_num_threads() at run time. PyTorch leaves out a last argument that has its default.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _fdma
from .tensors import threads_of_call
from .threads import NOT_SAID
from .torch_modes import refuse_second_gradients, refuse_transforms

__all__: list[str] = []


def scores_of(values: Any, dt_proj: Any, a_coef: Any, log: bool, num_threads: int) -> Any:
    """`fdma.zoh_scores` for tensors."""
    if not torch.compiler.is_compiling():
        refuse_transforms("zoh_scores", values, dt_proj, a_coef)
    return zoh_scores(values, dt_proj, a_coef, log, num_threads)


def _readable(*tensors: Any) -> list[Any]:
    return [x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in tensors]


def _describe(
    values: Any, dt_proj: Any, a_coef: Any, log: bool, num_threads: int = NOT_SAID
) -> Any:
    batch, kv_len, heads, _ = values.shape
    return torch.empty((batch, heads, kv_len), dtype=torch.float32, device=values.device)


def _run(values: Any, dt_proj: Any, a_coef: Any, log: bool, num_threads: int = NOT_SAID) -> Any:
    refuse_transforms("zoh_scores", values, dt_proj, a_coef)
    scores = _describe(values, dt_proj, a_coef, log)
    _fdma.zoh_scores(
        *_readable(values, dt_proj, a_coef),
        mode="log" if log else "exp",
        num_threads=threads_of_call(num_threads),
        out=scores,
    )
    return scores


def _describe_backward(
    dscores: Any, values: Any, dt_proj: Any, a_coef: Any, log: bool, *words: Any
) -> Any:
    inputs = (values, dt_proj, a_coef)
    wants = words[:3]
    return tuple(
        torch.empty(x.shape if wanted else (0,), dtype=x.dtype, device=x.device)
        for x, wanted in zip(inputs, wants, strict=True)
    )


def _run_backward(
    dscores: Any, values: Any, dt_proj: Any, a_coef: Any, log: bool, *words: Any
) -> Any:
    refuse_transforms("gradients of zoh_scores", dscores, values, dt_proj, a_coef)
    *wants, num_threads = (*words, NOT_SAID)[:4]
    gradients = _describe_backward(dscores, values, dt_proj, a_coef, log, *wants)
    wanted = [x if is_wanted else False for x, is_wanted in zip(gradients, wants, strict=True)]
    workspace = None
    if values.is_cuda:
        batch, kv_len, heads, head_dim = values.shape
        is_wide = dt_proj.shape[1] != head_dim
        size = _fdma.zoh_backward_workspace_nbytes(batch, kv_len, heads, head_dim, is_wide)
        workspace = torch.empty(size, dtype=torch.uint8, device=values.device)
    rows, weights, coefs = _readable(values, dt_proj, a_coef)
    _fdma.zoh_scores_backward(
        rows,
        weights,
        coefs,
        dscores.detach(),
        dvalues=wanted[0],
        ddt_proj=wanted[1],
        da_coef=wanted[2],
        mode="log" if log else "exp",
        num_threads=threads_of_call(num_threads),
        workspace=workspace,
    )
    return gradients


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    values, dt_proj, a_coef, log, num_threads = (*inputs, NOT_SAID)[:5]
    ctx.save_for_backward(values, dt_proj, a_coef)
    ctx.words = log, num_threads


def _backward(ctx: Any, dscores: Any) -> Any:
    wants = ctx.needs_input_grad[:3]
    log, num_threads = ctx.words
    gradients = zoh_scores_backward(dscores, *ctx.saved_tensors, log, *wants, num_threads)
    return *(x if wanted else None for x, wanted in zip(gradients, wants, strict=True)), None, None


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("zoh_scores")


zoh_scores = torch.library.custom_op(
    "fdma::zoh_scores",
    _run,
    mutates_args=(),
    schema="(Tensor values, Tensor dt_proj, Tensor a_coef, bool log, int num_threads=-1) -> Tensor",
)
zoh_scores_backward = torch.library.custom_op(
    "fdma::zoh_scores_backward",
    _run_backward,
    mutates_args=(),
    schema="(Tensor dscores, Tensor values, Tensor dt_proj, Tensor a_coef, bool log, "
    "bool wants_values, bool wants_dt_proj, bool wants_a_coef, int num_threads=-1) "
    "-> (Tensor, Tensor, Tensor)",
)
zoh_scores.register_fake(_describe)
zoh_scores_backward.register_fake(_describe_backward)
zoh_scores.register_autograd(_backward, setup_context=_setup_context)
zoh_scores_backward.register_autograd(_backward_of_backward)
