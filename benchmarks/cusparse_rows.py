"""Rows of bench_attention_gpu.py beside cuSPARSE alone: its products on the cells of the mask (CSR)
and a softmax between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from attention_calls import sizes_of
from attention_problem import MaskProblem
from device_time import device_ms
from mask_suite import Predicate, SuiteMask
from report_text import Run


def cusparse_calls(
    fdma: Any, torch: Any, problem: MaskProblem, mask: SuiteMask, predicate: Predicate
) -> tuple[dict[str, Callable[[], object]], Run]:
    """Attention by cuSPARSE on bfloat16, on float16, which it has a product at given cells for, and
    with everything in float32, each by the fastest of its algorithms: calls, and what preparing
    took. Every result is checked."""
    shape = problem.shape
    compiled = fdma.compile(mask.spec, shape.tokens, tables=mask.tables, num_threads=1)
    stream = torch.cuda.current_stream().cuda_stream
    facts: Run = {"cusparse_version": fdma.cusparse_version()}
    calls: dict[str, Callable[[], object]] = {}
    choices = (
        ("cusparse", torch.bfloat16, "tensor"),
        ("cusparse_float16", torch.float16, "tensor"),
        ("cusparse_float32", torch.bfloat16, "float32"),
    )
    for name, dtype, precision in choices:
        tensors = [x.to(dtype) for x in (problem.q, problem.k, problem.v)]
        out, lse = torch.empty_like(tensors[0]), torch.empty_like(problem.lse)
        best = float("inf")
        for spmm in ("alg1", "alg2", "alg3"):
            begin = time.perf_counter()
            prepared = fdma.CusparseAttention(
                compiled,
                **sizes_of(shape) | {"dtype": str(dtype).removeprefix("torch.")},
                precision=precision,
                spmm=spmm,
            )
            prepare_ms = (time.perf_counter() - begin) * 1e3

            def call(
                run: Any = prepared.run, given: list[Any] = tensors, out: Any = out, lse: Any = lse
            ) -> None:
                run(*given, out=out, lse=lse, stream=stream)

            call()
            check = problem.errors(predicate, out, lse)
            once_ms = device_ms(torch, call)
            facts[f"{name}_{spmm}_once_ms"] = once_ms
            if once_ms < best:
                best = once_ms
                calls[name] = call
                facts |= {
                    f"{name}_spmm": spmm,
                    f"{name}_prepare_ms": prepare_ms,
                    f"{name}_bytes": prepared.nbytes,
                    f"{name}_check": check,
                }
    return calls, facts
