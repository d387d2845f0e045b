"""The number of CPU threads of a call. Results have the same bits for every number.

A number that the call names comes first. Otherwise it is the setting of the framework:
torch.get_num_threads() for PyTorch's tensors, OMP_NUM_THREADS for other arrays. The core's number 0
means all cores.
"""

from __future__ import annotations

import functools
import operator
import os
from typing import Any

__all__: list[str] = []

NOT_SAID = -1
"""In place of None where only numbers pass."""
_MOST = 1024  # the core has room for as many threads as it is told, and starts one a core


def checked_num_threads(num_threads: Any) -> int:
    """The checked num_threads of a call, or `NOT_SAID` if it is None."""
    if num_threads is None:
        return NOT_SAID
    if isinstance(num_threads, bool) or not hasattr(num_threads, "__index__"):
        raise TypeError(
            f"num_threads: expected an integer or None, got {type(num_threads).__name__}"
        )
    count = operator.index(num_threads)
    if count < 0:
        raise ValueError(f"num_threads: expected 0 (all cores) or more, got {count}")
    return min(count, _MOST)


def process_threads(num_threads: Any) -> int:
    """The core's number for arrays whose framework has no setting of its own."""
    count = checked_num_threads(num_threads)
    return _omp_num_threads() if count == NOT_SAID else count


@functools.cache
def _omp_num_threads() -> int:
    """OMP_NUM_THREADS, read once as OpenMP's libraries do ("4,2" means 4); 0, all, if not set."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(int(first), _MOST) if first.isascii() and first.isdigit() else 0
