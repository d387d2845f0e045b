"""ZOH scores of PyTorch's tensors, as an operator with gradients.

    fdma::zoh_scores(Tensor values, Tensor dt_proj, Tensor a_coef, bool log) -> Tensor

values [batch, kv_len, heads_kv, head_dim]. With dt = V' dt_proj^T, s = softplus(dt) and score =
exp(s A) (or s A), the gradient is that of score over dt, score' A sigmoid(dt) times, and of A the
sum of score' s; it is computed with float32 products in PyTorch, on the tensors' device.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _fdma

__all__: list[str] = []


def _run(values: Any, dt_proj: Any, a_coef: Any, log: bool) -> Any:
    batch, kv_len, heads, _ = values.shape
    scores = torch.empty((batch, heads, kv_len), dtype=torch.float32, device=values.device)
    readable = (x if x.stride(-1) == 1 else x.contiguous() for x in (values, dt_proj, a_coef))
    _fdma.zoh_scores(*(x.detach() for x in readable), mode="log" if log else "exp", out=scores)
    return scores


def _describe(values: Any, dt_proj: Any, a_coef: Any, log: bool) -> Any:
    batch, kv_len, heads, _ = values.shape
    return torch.empty((batch, heads, kv_len), dtype=torch.float32, device=values.device)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    values, dt_proj, a_coef, log = inputs
    ctx.save_for_backward(values, dt_proj, a_coef)
    ctx.log = log


def _backward(ctx: Any, dscores: Any) -> Any:
    values, dt_proj, a_coef = ctx.saved_tensors
    batch, kv_len, heads, head_dim = values.shape
    weights, coefs = dt_proj.float(), a_coef.float()[:, None]
    if dt_proj.shape[1] == head_dim:
        rows, terms, back = values.float(), "bkhd,hd->bhk", "bhk,hd->bkhd"
    else:
        rows = values.float().reshape(batch, kv_len, heads * head_dim)
        terms, back = "bkf,hf->bhk", "bhk,hf->bkf"
    dt = torch.einsum(terms, rows, weights)
    softplus = torch.nn.functional.softplus(dt)
    slope = dscores if ctx.log else dscores * torch.exp(softplus * coefs)
    da = (slope * softplus).sum((0, 2))
    ddt = slope * coefs * torch.sigmoid(dt)
    dweights = torch.einsum(f"bhk,{terms.split(',')[0]}->{terms.split(',')[1][:2]}", ddt, rows)
    dvalues = torch.einsum(back, ddt, weights).reshape(values.shape)
    return dvalues.to(values.dtype), dweights.to(dt_proj.dtype), da.to(a_coef.dtype), None


zoh_scores = torch.library.custom_op(
    "fdma::zoh_scores",
    _run,
    mutates_args=(),
    schema="(Tensor values, Tensor dt_proj, Tensor a_coef, bool log) -> Tensor",
)
zoh_scores.register_fake(_describe)
zoh_scores.register_autograd(_backward, setup_context=_setup_context)
