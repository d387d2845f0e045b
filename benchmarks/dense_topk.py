"""Top-k of dense scores per query, as a framework without intervals computes it.

    python3 dense_topk.py <result.json>

Every query of a causal mask gets its row of scores, [S, S] float32 with -inf where it sees nothing,
and the row's w largest are found: by torch.topk where PyTorch is importable, else by NumPy's
argpartition. One thread, CPU time, best of the rounds; rows go in panels of at most 256 MiB, so
that the largest matrix is never in memory whole (dense memory is what it would take). The same
selection as intervals is bench_select's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from report_store import write_result

try:
    import torch
except ImportError:
    torch = None

PANEL_BYTES = 256 << 20


def by_torch(panel: np.ndarray[Any, Any], w: int) -> None:
    torch.topk(torch.from_numpy(panel), w, dim=-1, sorted=False)


def by_numpy(panel: np.ndarray[Any, Any], w: int) -> None:
    np.argpartition(panel, panel.shape[1] - w, axis=-1)


def seconds(scores: np.ndarray[Any, Any], w: int) -> float:
    """CPU time of all rows: making the panels does not count."""
    length = scores.size
    rows = max(PANEL_BYTES // (4 * length), 1)
    total = 0.0
    keys = np.arange(length)
    for begin in range(0, length, rows):
        queries = np.arange(begin, min(begin + rows, length))
        panel = np.where(keys[None, :] <= queries[:, None], scores, np.float32(-np.inf))
        start = time.process_time()
        (by_torch if torch is not None else by_numpy)(panel, w)
        total += time.process_time() - start
    return total


def main() -> None:
    if torch is not None:
        torch.set_num_threads(1)
    random = np.random.default_rng(1)
    runs = []
    for length in (1024, 4096, 16384):
        scores = random.random(length, dtype=np.float32)
        for w in sorted({length // 5, length // 40, 2048 if length > 4096 else length // 10}):
            best = min(seconds(scores, w) for _ in range(3 if length < 16384 else 1))
            runs.append({"tokens": length, "w": w, "cpu_us": best * 1e6, "bytes": 4 * length**2})
    tool = f"torch.topk of PyTorch {torch.__version__}" if torch else "numpy.argpartition"
    write_result(Path(sys.argv[1]), {"tool": tool, "runs": runs})


if __name__ == "__main__":
    main()
