"""The rows of compare_builds.py, and the process that runs those of one build.

    python3 build_rows.py <folder of fdma> --device cuda

reads lines from its input and answers each with one line of JSON: `open NAME` makes the tensors of
a row and calls it once (a digest of what came), `time N` runs it N times (milliseconds of one
call), `close` frees the tensors. It uses the public names of the package alone, so that it runs
with earlier versions too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command_line import first_line, use_package
from mask_suite import suite_mask

SEED = 20261128
A_COEF = -0.5


@dataclass(frozen=True)
class BuildRow:
    part: str
    mask: str
    tokens: int
    heads: int = 32
    heads_kv: int = 32
    head_dim: int = 128
    q_len: int = 0
    batch: int = 1

    def __str__(self) -> str:
        queries = f"q{self.q_len}" if self.q_len else ""
        size = f"{self.tokens}{queries}b{self.batch}h{self.heads}kv{self.heads_kv}d{self.head_dim}"
        return f"{self.part}/{size}/{self.mask}"


def gpu_rows() -> Iterator[BuildRow]:
    few = ("full", "causal", "sliding_window", "causal_document")
    for name in (*few, "share_question", "global_sliding_window", "random_eviction"):
        yield BuildRow("forward", name, 32768)
        yield BuildRow("backward", name, 32768)
    for name in few:
        for row in (BuildRow("", name, 8192, 8, 8), BuildRow("", name, 8192, head_dim=64, batch=2)):
            yield replace(row, part="forward")
            yield replace(row, part="backward")
    for head_dim in (96, 256):
        for part in ("forward", "backward"):
            yield BuildRow(part, "causal", 8192, head_dim=head_dim)
    yield BuildRow("deterministic", "causal", 8192)
    for name in ("full", "causal"):
        yield BuildRow("packed heads", name, 32768, 32, 4, q_len=1)
        yield BuildRow("packed heads", name, 32768, 32, 4, q_len=16, batch=8)
    for tokens, heads_kv in ((16384, 32), (131072, 32), (131072, 8)):
        yield BuildRow("topk", "topk", tokens, 32, heads_kv)
        yield BuildRow("topk backward", "topk", tokens, 32, heads_kv)
    for name in HOST_ROWS:
        yield BuildRow("host", name, 1, 1, 1)


def cpu_rows() -> Iterator[BuildRow]:
    for name in ("full", "causal", "sliding_window", "causal_document", "random_eviction"):
        for part in ("forward", "backward"):
            yield BuildRow(part, name, 8192, 1, 1)
    for name in HOST_ROWS:
        yield BuildRow("host", name, 1, 1, 1)


HOST_ROWS = ("known", "known with gradients", "first")


def rows_of(device: str) -> list[BuildRow]:
    return list(gpu_rows() if device == "cuda" else cpu_rows())


class RunningRow:
    """The tensors of a row, and its call."""

    def __init__(self, fdma: Any, torch: Any, row: BuildRow, device: str) -> None:
        self.fdma, self.torch, self.row, self.device = fdma, torch, row, device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(SEED)
        self.q = self.random(row.batch, row.heads, row.q_len or row.tokens, row.head_dim)
        self.k, self.v = (
            self.random(row.batch, row.heads_kv, row.tokens, row.head_dim) for _ in "kv"
        )
        self.is_backward = row.part in ("backward", "deterministic", "topk backward")
        if self.is_backward or "gradients" in row.mask:
            for x in (self.q, self.k, self.v):
                x.requires_grad_()
        self.call = self.made_call()

    def random(self, *size: int) -> Any:
        return self.torch.randn(size, device=self.device, dtype=self.dtype)

    def forward(self) -> Callable[[], Any]:
        fdma, row = self.fdma, self.row
        if row.part.startswith("topk"):
            dt_proj = self.random(row.heads_kv, row.head_dim) / row.head_dim**0.5
            a_coef = self.torch.full((row.heads_kv,), A_COEF, device=self.device)
            width = max(1, row.tokens // 64)
            return lambda: fdma.dynamic_mask_attention(
                self.q, self.k, self.v, dt_proj, a_coef, width
            )
        if row.part == "host":
            if row.mask == "first":

                def first() -> Any:
                    fdma.clear_plans()
                    return fdma.attention(self.q, self.k, self.v, mask)

                mask = fdma.compile("causal", 1)
                return first
            known = fdma.compile("causal", 1)
            return lambda: fdma.attention(self.q, self.k, self.v, known)
        if row.q_len:
            spec, tables = ("causal" if row.mask == "causal" else "true"), None
        else:
            suite = suite_mask(row.mask, row.tokens)
            spec, tables = suite.spec, suite.tables
        mask = fdma.compile(spec, self.q.shape[2], row.tokens, tables=tables)
        options = {"deterministic": True} if row.part == "deterministic" else {}
        return lambda: fdma.attention(self.q, self.k, self.v, mask, **options)

    def made_call(self) -> Callable[[], Any]:
        forward = self.forward()
        if not self.is_backward:
            return forward
        out = forward()
        dout = self.random(*out.shape)
        tensors = (self.q, self.k, self.v)
        return lambda: self.torch.autograd.grad(out, tensors, dout, retain_graph=True)

    def digest(self) -> str:
        """Of the bits of what a call returns; empty where they differ from run to run."""
        results = self.call()
        if self.is_backward and self.row.part != "deterministic" and self.device == "cuda":
            return ""
        found = hashlib.sha256()
        for x in results if isinstance(results, tuple) else (results,):
            view = x.detach().contiguous().view(self.torch.uint8).cpu()
            found.update(view.numpy().tobytes())
        return found.hexdigest()[:16]

    def time_ms(self, count: int) -> float:
        """Of one call, a mean of `count`: on the GPU's clock, except for rows of host time."""
        if self.device == "cpu" or self.row.part == "host":
            self.wait()
            begin = time.perf_counter()
            for _ in range(count):
                self.call()
            ended = time.perf_counter()
            self.wait()
            return 1e3 * (ended - begin) / count
        from device_time import SLEEP_CYCLES, device_ms

        return device_ms(self.torch, self.call, count, SLEEP_CYCLES)

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=first_line(__doc__))
    parser.add_argument("module", type=Path, help="folder of the built package fdma")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options = parser.parse_args()
    use_package(options.module)
    import fdma
    import torch

    rows = {str(row): row for row in rows_of(options.device)}
    running: RunningRow | None = None
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        answer: Any = None
        try:
            if command == "open":
                running = RunningRow(fdma, torch, rows[argument], options.device)
                answer = running.digest()
            elif command == "time" and running is not None:
                answer = running.time_ms(int(argument))
            elif command == "close":
                running = None
                with contextlib.suppress(AttributeError):
                    fdma.clear_plans()
                if options.device == "cuda":
                    torch.cuda.empty_cache()
        except Exception as error:  # told to the process that compares
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
