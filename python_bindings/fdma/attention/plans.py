"""What is prepared for calls, kept for as long as it is likely to come again.

One store holds the plans of attention, and what dynamic_mask_attention and select_topk (on a GPU)
prepare, each by what it was made of. A plan of attention belongs to the cells of a mask (its
content hash), the shapes and dtypes of the tensors and the device of the tensors; strides do not
matter. It is looked up in two steps. The first step uses the descriptors of the call: one lookup in
a dict, or for PyTorch's tensors in C++ (`_fdma.CachedCalls`). The second step uses the content
hash, which also finds the plan of a mask that was compiled again with the same result.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .. import _fdma
from ..masks.block_mask import BlockMask

__all__: list[str] = []

MAX_PLANS = 512
MAX_BYTES = 1 << 30
_MAX_CALLS = 4096

DType = Literal["float32", "float16", "bfloat16"]
Direction = Literal["forward", "backward"]
ScorePart = Literal["softcap", "key_bias", "bias", "alibi", "relative_table", "sink", "dropout"]
"""The names of score_parts.def."""


class Geometry(NamedTuple):
    """The properties of a call, besides the mask, that a plan depends on. Part of a key."""

    batch: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    dtype: DType
    score: tuple[ScorePart, ...]
    """The parts of the score that each call brings, by the core's names."""
    device: int | None
    """The CUDA device; None for the CPU."""
    direction: Direction = "forward"
    deterministic: bool = False
    """Whether a backward plan on a GPU has the accumulation order of deterministic calls."""
    is_closed_form: bool = False
    """Whether the plan is in closed form, so that each call may bring lengths and documents."""

    @property
    def backend(self) -> Literal["cpu", "sm90"]:
        return "cpu" if self.device is None else "sm90"

    def backward(self, deterministic: bool) -> Geometry:
        """That of the gradients.

        They are deterministic anyway on the CPU, and a closed-form plan needs nothing more for it.
        """
        is_ordered = deterministic and self.device is not None and not self.is_closed_form
        return self._replace(direction="backward", deterministic=is_ordered)


@dataclass(frozen=True)
class Place:
    """The CUDA device of a call, with the framework's functions for its streams.

    A plan on a device serves the arrays of every framework, so that the key of the cache names the
    device alone.
    """

    device: int
    is_capturing: Callable[[], bool] = lambda: False
    upload_stream: Callable[[], Any] = lambda: None
    """A stream that nothing waits for; None: the default stream."""


class Entry:
    """A cached plan, what is known of it since it was made, and the time of its last use."""

    __slots__ = ("__weakref__", "choices", "last_use", "nbytes", "num_work_tiles", "plan", "tile")

    def __init__(
        self,
        plan: Any,
        nbytes: int,
        tile: tuple[int, int] = (0, 0),
        num_work_tiles: int = 0,
        choices: str = "",
    ) -> None:
        self.plan = plan
        self.nbytes = nbytes
        self.tile = tile
        self.num_work_tiles = num_work_tiles
        self.choices = choices
        self.last_use = time.monotonic_ns()

    @property
    def is_pinned(self) -> bool:
        """Whether a CUDA graph reads what was prepared at every replay."""
        return bool(self.plan.is_captured)


class Plans:
    """A bounded cache of plans. Threads may share it; the least recently used plan goes first.

    Plans that a CUDA graph has captured are not dropped. An entry that was dropped while somebody
    holds it (AttentionPlan) is found again for as long as it lives.
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_bytes: int = MAX_BYTES) -> None:
        self.max_plans = max_plans
        self.max_bytes = max_bytes
        self.when_forgotten: list[Callable[[], None]] = []
        """Functions called after plans were dropped; owners of entries must drop theirs then."""
        self._entries: dict[Hashable, Entry] = {}
        self._calls: dict[Hashable, Entry] = {}
        self._living: weakref.WeakValueDictionary[Hashable, Entry] = weakref.WeakValueDictionary()
        self._size = 0
        self._lock = threading.Lock()

    def of_call(self, key: Hashable) -> Any:
        """The plan of an earlier call with the same key, or None."""
        entry = self._calls.get(key)
        if entry is None:
            return None
        entry.last_use = time.monotonic_ns()
        return entry.plan

    def get(
        self,
        key: Hashable,
        mask: BlockMask,
        geometry: Geometry,
        place: Place | None = None,
        num_threads: int = 0,
    ) -> Any:
        """The plan of a mask, made if there is none yet. `of_call` then finds it by `key`."""
        entry = self.entry(mask, geometry, place, num_threads)
        self.remember(key, entry)
        return entry.plan

    def remember(self, key: Hashable, entry: Entry) -> None:
        """Stores an entry under a key, so that `of_call` finds it."""
        with self._lock:
            if len(self._calls) >= _MAX_CALLS:
                self._calls.clear()
            self._calls[key] = entry

    def entry(
        self,
        mask: BlockMask,
        geometry: Geometry,
        place: Place | None = None,
        num_threads: int = 0,
    ) -> Entry:
        """The plan of a mask, made with num_threads threads (0: all) if there is none yet."""

        def make() -> Entry:
            if place is not None and place.is_capturing():
                raise RuntimeError(
                    "attention: the first call with a mask and shapes makes a plan, which a CUDA "
                    "graph cannot capture; make one call with them before the capture"
                )
            return _make(mask, geometry, place, num_threads)

        return self.prepared((mask.content_hash, geometry), make)

    def prepared(self, content: Hashable, make: Callable[[], Entry]) -> Entry:
        """The entry of some content, made if there is none yet."""
        entry = self._entries.get(content) or self._living.get(content)
        if entry is None:
            entry = make()
        with self._lock:
            cached = self._entries.get(content)
            if cached is None:
                self._entries[content] = self._living[content] = entry
                self._size += entry.nbytes
                self._shrink(entry)
            else:
                entry = cached
            entry.last_use = time.monotonic_ns()
        return entry

    def clear(self) -> None:
        """Drops all plans, also those that CUDA graphs have captured."""
        with self._lock:
            self._entries.clear()
            self._size = 0
            self._forget()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._size

    def _shrink(self, latest: Entry) -> None:
        """Drops a quarter of the entries at once where a bound is passed.

        Callers that keep entries look them up again after that.
        """
        if len(self._entries) <= self.max_plans and self._size <= self.max_bytes:
            return
        max_plans = self.max_plans - self.max_plans // 4
        max_bytes = self.max_bytes - self.max_bytes // 4
        for content, entry in sorted(self._entries.items(), key=lambda item: item[1].last_use):
            if len(self._entries) <= max_plans and self._size <= max_bytes:
                break
            if entry.is_pinned or entry is latest:
                continue
            del self._entries[content]
            self._size -= entry.nbytes
        self._forget()

    def _forget(self) -> None:
        self._calls.clear()
        for forget in self.when_forgotten:
            forget()


def _make(mask: BlockMask, geometry: Geometry, place: Place | None, num_threads: int) -> Entry:
    plan = _fdma.make_plan(
        mask._core,
        batch=geometry.batch,
        heads_q=geometry.heads_q,
        heads_kv=geometry.heads_kv,
        head_dim=geometry.head_dim,
        head_dim_v=geometry.head_dim_v,
        dtype=geometry.dtype,
        score=geometry.score,
        backend=geometry.backend,
        form="parametric" if geometry.is_closed_form else "segments",
        direction=geometry.direction,
        num_threads=num_threads,
    )
    prepared = _fdma.prepare(
        plan,
        device=geometry.device,
        stream=None if place is None else place.upload_stream(),
        waits=True,
        deterministic=geometry.deterministic,
    )
    return Entry(prepared, prepared.nbytes, plan.tile, plan.num_work_tiles, plan.choices)


plans = Plans()
