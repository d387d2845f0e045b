"""Selection that follows a growing sequence: which keys a cache has to hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _fdma
from .frameworks import framework, in_framework

__all__ = ["IncrementalTopk"]

_ARRAYS = ("kept", "live", "waiting", "waiting_queries", "dropped")


class IncrementalTopk:
    """The keys that later queries may keep, as a sequence grows: prefill, then one key at a time.

    w: the number of keys that a query keeps. There is one state for every (batch, KV head) pair.
    Each key comes with one query, which sees the keys up to its own. On the CPU the sequence may
    have any length. With a device (a CUDA index), capacity is the longest length, and scores and
    results are on that GPU.

    A key that is no longer alive never comes back, so a cache drops it. Decoding therefore needs w
    keys, whatever the length. A pickle or a copy continues from the current state. Pickles and
    copies of a state on a GPU raise NotImplementedError.

    >>> import fdma, numpy as np
    >>> topk = fdma.IncrementalTopk(2)
    >>> keys, counts = topk.append(np.float32([3, 1, 2]))
    >>> keys[0, 0].tolist(), counts.tolist()
    ([0, 2], [[2]])
    >>> keys, _ = topk.append(np.float32([5]))
    >>> keys[0, 0].tolist(), topk.kv_len
    ([0, 3], 4)
    """

    def __init__(
        self,
        w: int,
        *,
        batch: int = 1,
        heads_kv: int = 1,
        capacity: int | None = None,
        device: int | None = None,
    ) -> None:
        self._extents = batch, heads_kv
        self._rows: list[_fdma.IncrementalTopk] = []
        self._on_gpu: _fdma.DeviceIncrementalTopk | None = None
        self._framework = "numpy"
        if batch < 1 or heads_kv < 1:
            raise ValueError(f"batch, heads_kv: expected 1 or more, got {batch} and {heads_kv}")
        if device is None:
            self._rows = [_fdma.IncrementalTopk(w) for _ in range(batch * heads_kv)]
        elif capacity is None:
            raise ValueError("capacity: expected the longest kv_len, which a GPU needs to know")
        else:
            self._on_gpu = _fdma.DeviceIncrementalTopk(
                w, capacity=capacity, batch=batch, heads_kv=heads_kv, device=device
            )

    def append(self, scores: Any) -> tuple[Any, Any]:
        """Appends keys, each with its query, and returns the result of `live_keys` after that.

        scores: float32 [batch, heads_kv, keys], or [keys] for one pair, without NaN.

        >>> import fdma, numpy as np
        >>> fdma.IncrementalTopk(4).append(np.float32([1, 2]))[0].tolist()
        [[[0, 1]]]
        """
        self._framework = framework(scores)
        if self._framework == "torch":
            scores = scores.detach()
        if len(scores.shape) == 1 and self._extents == (1, 1):
            scores = scores.reshape(1, 1, -1)
        if tuple(scores.shape[:2]) != self._extents or len(scores.shape) != 3:
            raise ValueError(
                f"scores: expected [batch, heads_kv, keys] with {list(self._extents)} first, got "
                f"{list(scores.shape)}"
            )
        if self._on_gpu is not None:
            self._on_gpu.append(scores)
        else:
            for i, row in enumerate(self._rows):
                row.append(scores[divmod(i, self._extents[1])])
        return self.live_keys()

    def live_keys(self) -> tuple[Any, Any]:
        """The keys that later queries may keep, in ascending order, and their counts.

        Returns int32 keys [batch, heads_kv, largest count] and int32 counts [batch, heads_kv].
        Entries past a count have no meaning. Every pair has min(w, kv_len) keys, unless `end_group`
        was called.

        >>> import fdma, numpy as np
        >>> topk = fdma.IncrementalTopk(2, heads_kv=2)
        >>> _ = topk.append(np.float32([[[1, 2, 3], [3, 2, 1]]]))
        >>> topk.live_keys()[0].tolist()
        [[[1, 2], [0, 1]]]
        """
        if self._on_gpu is not None:
            keys, counts = (in_framework(x, self._framework) for x in self._on_gpu.live_keys())
            return keys, counts
        lists = [np.asarray(row.live_keys()) for row in self._rows]
        counts = np.array([len(some) for some in lists], np.int32).reshape(self._extents)
        keys = np.full((len(lists), int(counts.max(initial=0))), -1, np.int32)
        for row, some in zip(keys, lists, strict=True):
            row[: len(some)] = some
        result = keys.reshape(*self._extents, -1), counts
        if self._framework != "torch":
            return result
        import torch

        return tuple(torch.from_numpy(x) for x in result)

    def end_group(self) -> None:
        """Ends a document: no later query sees the keys so far.

        >>> import fdma, numpy as np
        >>> topk = fdma.IncrementalTopk(2)
        >>> _ = topk.append(np.float32([1, 2]))
        >>> topk.end_group()
        >>> topk.live_keys()[1].tolist()
        [[0]]
        """
        if self._on_gpu is not None:
            self._on_gpu.end_group()
        for row in self._rows:
            row.end_group()

    def __getstate__(self) -> dict[str, Any]:
        if self._on_gpu is not None:
            raise NotImplementedError(
                "IncrementalTopk: one on a GPU is neither pickled nor copied; make another there "
                "and append the scores so far, or keep it on the CPU (device=None)"
            )
        rows = [
            {name: np.asarray(x) if name in _ARRAYS else x for name, x in row.state().items()}
            for row in self._rows
        ]
        return {"extents": self._extents, "framework": self._framework, "rows": rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._extents, self._framework = state["extents"], state["framework"]
        self._rows = [_fdma.IncrementalTopk.restore(**row) for row in state["rows"]]
        self._on_gpu = None

    @property
    def w(self) -> int:
        """The number of keys that a query keeps."""
        return self._rows[0].w if self._on_gpu is None else self._on_gpu.w

    @property
    def kv_len(self) -> int:
        """The number of keys so far."""
        return self._rows[0].kv_len if self._on_gpu is None else self._on_gpu.kv_len

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        if self._on_gpu is not None:
            return self._on_gpu.nbytes
        return sum(row.nbytes for row in self._rows)
