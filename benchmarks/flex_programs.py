"""FlexAttention's programs: one a mask and shape, compiled side by side before they are measured.

    python3 flex_programs.py [--parts flex,backward_flex,topk] [--rows PATTERN] [--jobs N]

PyTorch compiles a program for each row of bench_attention_gpu.py and bench_topk_gpu.py that stands
beside FlexAttention, which takes seconds forward and longer with gradients, one after the other and
with the GPU idle. Here each job compiles the programs of some rows and leaves them in PyTorch's
cache (TORCHINDUCTOR_CACHE_DIR), where the benchmark, with the same folder, finds them. Its masks
have the right shapes but no blocks, so that nothing is computed with them. Rows that did not
compile are named; the benchmark compiles them itself.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import topk_rows
from attention_calls import heads_first
from attention_rows import Row, Shape, all_rows
from command_line import first_line, names
from mask_suite import Predicate, suite_mask
from rows import chosen

FLEX_BLOCK = 128
PARTS = ("flex", "backward_flex", "topk")


def mask_mod_of(predicate: Predicate) -> Callable[..., Any]:
    return lambda b, h, q, k: predicate(q, k)


def flex_program(torch: Any, block_mask: Any, **words: Any) -> Callable[..., Any]:
    """flex_attention, compiled for one shape, of q, k and v with heads first."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()  # a mask is a program of its own; old ones count against a limit
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda *inputs: compiled(*inputs, block_mask=block_mask, **words)


def gradients_of(
    torch: Any, forward: Callable[..., Any], tensors: list[Any], dout: Any
) -> Callable[[], Any]:
    """The backward pass of what `forward` computes, again and again."""
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in tensors]
        out = forward(*inputs)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def block_mask_of(torch: Any, partial: Any, full: Any, mask_mod: Callable[..., Any]) -> Any:
    """From booleans [batch, heads, query blocks, key blocks]: which blocks have some cells, which
    all of them."""
    from torch.nn.attention.flex_attention import BlockMask

    def listed(blocks: Any) -> tuple[Any, Any]:
        order = torch.argsort(blocks.to(torch.int32), dim=-1, descending=True, stable=True)
        return blocks.sum(dim=-1).to(torch.int32), order.to(torch.int32)

    size = tuple(FLEX_BLOCK * count for count in partial.shape[2:])
    return BlockMask.from_kv_blocks(
        *listed(partial), *listed(full), BLOCK_SIZE=FLEX_BLOCK, mask_mod=mask_mod, seq_lengths=size
    )


def empty_mask(torch: Any, heads: tuple[int, int], tokens: int, mask_mod: Any) -> Any:
    blocks = tokens // FLEX_BLOCK
    none = torch.zeros((*heads, blocks, blocks), dtype=torch.bool, device="cuda")
    return block_mask_of(torch, none, none, mask_mod)


def compile_row(row: Row) -> None:
    """Of the mask suite."""
    import torch

    shape = row.shape
    assert isinstance(shape, Shape)
    size = (shape.batch, shape.tokens, shape.heads, shape.head_dim)
    tensors = [
        torch.zeros(size, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)
    ]
    predicate = suite_mask(row.mask, shape.tokens).on(lambda table: torch.from_numpy(table).cuda())
    mask = None
    if row.mask != "full":
        mask = empty_mask(torch, (1, 1), shape.tokens, mask_mod_of(predicate))
    program = flex_program(torch, mask)
    if row.part == "flex":
        program(*tensors)
    else:
        gradients_of(torch, program, tensors, torch.empty_like(tensors[0]))()


def compile_topk(row: topk_rows.Row) -> None:
    import torch
    from topk_flex import topk_program

    size = (row.batch, row.tokens)
    q, k, v = (
        torch.zeros((*size, heads, row.head_dim), device="cuda", dtype=torch.bfloat16)
        for heads in (row.heads, row.heads_kv, row.heads_kv)
    )
    scores = torch.zeros((row.batch, row.heads_kv, row.tokens), device="cuda")
    kept = torch.zeros((*scores.shape, 2), dtype=torch.int32, device="cuda")
    tensors = heads_first(q, k, v)
    program = topk_program(torch, scores, kept, row.heads)
    program(*tensors)
    gradients_of(torch, program, tensors, torch.empty_like(tensors[0]))()


def compile_one(task: tuple[str, Any]) -> tuple[str, float, str]:
    """The row, seconds, and what went wrong."""
    import torch

    torch.set_grad_enabled(False)
    kind, row = task
    begin = time.monotonic()
    error = ""
    try:
        (compile_topk if kind == "topk" else compile_row)(row)
        torch.cuda.synchronize()
    except Exception as problem:  # the benchmark compiles it itself, and says more
        error = repr(problem)[:300]
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return str(row), time.monotonic() - begin, error


def main() -> None:
    parser = argparse.ArgumentParser(description=first_line(__doc__))
    parser.add_argument("--parts", type=names, default=PARTS)
    parser.add_argument("--rows", default="*", help="patterns of rows: '32K/*,flex/*causal*'")
    parser.add_argument("--jobs", type=int, default=min(10, os.cpu_count() or 1))
    options = parser.parse_args()
    begin = time.monotonic()
    # Threads that compile parts of a program would compete with the other jobs.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    parts = {*options.parts} & {*PARTS}
    tasks: list[tuple[str, Any]]
    tasks = [(row.part, row) for row in chosen(all_rows(), parts, options.rows)]
    if "topk" in options.parts:
        beside = chosen(topk_rows.all_rows(), ["flex"], options.rows)
        tasks += [("topk", row) for row in beside]
    # The parent imports once for all jobs, and leaves the GPU alone, for a fork cannot share it:
    # PyTorch's compiler asks for devices when it is imported.
    importlib.import_module("torch")
    print(f"{len(tasks)} programs, imported in {time.monotonic() - begin:.1f} s", flush=True)
    # Gradients take longest, and go first.
    tasks.sort(key=lambda task: task[0] == "flex")
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for name, seconds, error in pool.imap_unordered(compile_one, tasks):
            print(f"{name}: {seconds:.1f} s {error}", flush=True)
    print(f"{time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
