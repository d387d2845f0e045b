"""The score of a call on tensors of PyTorch: its tensors as kernels read them, by steps through
which gradients flow back, and the numbers that dropout is drawn with.

Dropout is a function of a seed, an offset and the place of a pair. A call without `dropout_seed`
draws them from PyTorch's generator:

    CPU     a number is drawn
    GPU     seed and offset are those of the generator, which advances by 4
    graphs  two numbers are drawn into a tensor by PyTorch's own operator, which torch.compile
            traces, and which a CUDA graph replays with new numbers

The backward pass is given the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .score import (
    NO_SCORE,
    GivenScore,
    ScoreArguments,
    checked_dropout,
    refuse_bias,
    refuse_key_bias,
    refuse_sinks,
    refuse_slopes,
    refuse_table,
    seed_and_offset,
    signed,
    table_and_left,
)
from .shapes import Extents, checked_softcap
from .tensor_layouts import refuse_layouts
from .tensors import extents_of
from .torch_modes import is_recorded

__all__: list[str] = []

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_WORDS_ADVANCED = 4  # of the generator's offset by one call


def score_of(given: GivenScore, q: Any, k: Any, v: Any, heads_first: bool) -> ScoreArguments:
    """The checked score of a call. Raises TypeError and ValueError, which name the argument."""
    bias, key_bias, cap, slopes, relative, sinks, dropout_p, _, dropout_seed = given
    softcap = 0.0 if cap is None else checked_softcap(cap)
    dropout_p = 0.0 if dropout_p == 0.0 else checked_dropout(dropout_p)
    if (bias is slopes is relative is sinks is dropout_seed is None) and not dropout_p:
        # Frequent, and the time of a small call is that of these lines.
        if key_bias is None:
            return ScoreArguments(None, None, None, None, None, None, softcap)
        if (
            isinstance(key_bias, torch.Tensor)
            and key_bias.dtype == torch.float32
            and key_bias.layout is torch.strided
            and not (key_bias.is_nested or k.is_nested)
            and k.dim() == 4
        ):
            batch, first, second, _ = k.shape
            if key_bias.shape == (
                (batch, first, second) if heads_first else (batch, second, first)
            ):
                return ScoreArguments(key_bias, None, None, None, None, None, softcap)
    extents = extents_of(q, k, v, heads_first)
    table, left = None, 0
    if key_bias is not None:
        key_bias = full_key_bias(key_bias, extents)
    if bias is not None:
        bias = _taken("bias", bias, q)
        refuse_bias(bias.shape, extents)
    if slopes is not None:
        slopes = _slopes(slopes, extents)
    if relative is not None:
        table, left = table_and_left(relative)
        table = _taken("relative", table, None)
        refuse_table(table.shape, left, extents)
    if sinks is not None:
        sinks = _taken("sinks", sinks, q)
        refuse_sinks(sinks.shape, extents)
    seeds, seed, offset = (None, 0, 0)
    if dropout_p:
        seeds, seed, offset = _seeds(given, q)
    elif dropout_seed is not None:
        _checked_seed(dropout_seed, q)
    tensors = key_bias, bias, slopes, table, sinks, seeds
    return ScoreArguments(*tensors, softcap, left, dropout_p, seed, offset)


def full_key_bias(bias: Any, extents: Extents) -> Any:
    """The key bias as float32 [batch, heads_kv, kv_len]."""
    wanted = (extents.batch, extents.heads_kv, extents.kv_len)
    _check_floats("key_bias", bias)
    if bias.dtype == torch.float32 and tuple(bias.shape) == wanted:
        return bias
    refuse_key_bias(bias.shape, extents)
    return bias.to(torch.float32).expand(wanted)


def _taken(name: str, x: Any, q: Any) -> Any:
    """The tensor in float32, or in the dtype of q where it has that."""
    _check_floats(name, x)
    if x.dtype == torch.float32 or (q is not None and x.dtype == q.dtype):
        return x
    return x.to(torch.float32)


def _check_floats(name: str, x: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor of PyTorch, as q, got {type(x).__name__}")
    refuse_layouts(**{name: x})
    if not x.dtype.is_floating_point:
        hint = "; booleans are a mask" if x.dtype == torch.bool else ""
        raise TypeError(f"{name}: expected floating point numbers, got {x.dtype}{hint}")


def _slopes(slopes: Any, extents: Extents) -> Any:
    if isinstance(slopes, torch.Tensor) and slopes.requires_grad and _is_grad_enabled():
        raise TypeError(
            "alibi_slopes: a tensor that requires a gradient, but attention has none of it; give "
            "alibi_slopes.detach()"
        )
    slopes = _taken("alibi_slopes", slopes, None)
    refuse_slopes(slopes.shape, extents)
    return slopes


def _checked_seed(seed: Any, q: Any) -> Any:
    """(tensor or None, seed, offset) of a given seed."""
    if not isinstance(seed, torch.Tensor):
        return None, *seed_and_offset(seed)
    if seed.dtype != torch.int64 or tuple(seed.shape) != (2,):
        raise ValueError(
            "dropout_seed: expected an integer, a pair of integers, or int64 [2] (seed, offset), "
            f"got {seed.dtype} {list(seed.shape)}"
        )
    if seed.device != q.device:
        raise ValueError(f"dropout_seed: expected a tensor on {q.device}, as q, got {seed.device}")
    return seed, 0, 0


def _seeds(given: GivenScore, q: Any) -> Any:
    """(tensor or None, seed, offset) of a call with dropout."""
    generator = given.generator
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator: expected a torch.Generator or None, got {type(generator).__name__}"
        )
    if given.dropout_seed is not None:
        if generator is not None:
            raise ValueError("generator: expected None with a dropout_seed")
        return _checked_seed(given.dropout_seed, q)
    if _is_compiling() or is_recorded() or isinstance(q, FakeTensor) or q.is_meta:
        if generator is not None:
            raise NotImplementedError(
                "generator: inside torch.compile and recorders dropout draws from PyTorch's "
                "default generator; leave it out, or give dropout_seed="
            )
        return torch.randint(0, (1 << 63) - 1, (2,), dtype=torch.int64, device=q.device), 0, 0
    if generator is not None and generator.device.type != q.device.type:
        raise ValueError(f"generator: expected one on {q.device}, as q, got {generator.device}")
    if not q.is_cuda:
        drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
        return None, int(drawn), 0
    if torch.cuda.is_current_stream_capturing():
        drawn = torch.empty(2, dtype=torch.int64, device=q.device)
        return drawn.random_(generator=generator), 0, 0
    if generator is None:
        index = torch.cuda.current_device() if q.device.index is None else q.device.index
        generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + _WORDS_ADVANCED)
    return None, signed(generator.initial_seed()), offset


def fixed(given: GivenScore, score: ScoreArguments) -> GivenScore:
    """The given score, with the numbers of dropout that `score` has drawn."""
    if score is NO_SCORE or not score.dropout_p:
        return given
    seed = (score.seed, score.offset) if score.seeds is None else score.seeds
    return given._replace(dropout_seed=seed, generator=None)
