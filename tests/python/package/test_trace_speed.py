"""Tests the cost of tracing, tracing in several threads, and that tracing leaves nothing behind."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
from mask_mods import MaskMod, torch

# isort: split
import fdma

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4], dtype=torch.int32)
is_global = torch.arange(17) % 5 == 0


def test_tracing_takes_microseconds() -> None:
    ids, offsets = torch.arange(8192) // 512, torch.arange(17) * 512

    def typical(b: Any, h: Any, q: Any, k: Any) -> Any:
        same = ids[q] == ids[k]
        return same & (q - offsets[ids[q]] >= k - offsets[ids[k]]) & (q - k < 1024)

    def best(of: MaskMod) -> float:
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            fdma.trace_mask_mod(of)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(typical) < 1e-3
    assert best(lambda b, h, q, k: q >= k) < 1e-3


def test_lookups_that_may_wrap_compile_as_fast_as_those_that_do_not() -> None:
    ids, offsets = torch.arange(65536) // 4096, torch.arange(17) * 4096
    wrapped = fdma.trace_mask_mod(
        lambda b, h, q, k: (ids[q] == ids[k]) & (q - offsets[ids[q]] >= k - offsets[ids[k]])
    )
    plain = fdma.MaskExpr.parse(
        "@ids[q] == @ids[k] & q - @offsets[@ids[q]] >= k - @offsets[@ids[k]]",
        ids=ids,
        offsets=offsets,
    )
    assert "where" in str(wrapped)
    assert fdma.compile(wrapped, 65536) == fdma.compile(plain, 65536)

    def best(mask: fdma.MaskExpr) -> float:
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            fdma.compile(mask, 65536)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(wrapped) < 2 * best(plain) + 2e-3


def test_threads_trace_apart() -> None:
    problems: list[BaseException] = []

    def work(width: int) -> None:
        ids = torch.arange(40) // width
        try:
            for _ in range(40):
                mask = fdma.trace_mask_mod(lambda b, h, q, k: (ids[q] == ids[k]) & (q - k < width))
                assert str(mask) == f"@ids[q] == @ids[k] & q - k < {width}"
                assert mask.tables["ids"].data_ptr() == ids.data_ptr()
        except BaseException as error:  # the main thread shows this error
            problems.append(error)

    threads = [threading.Thread(target=work, args=(width,)) for width in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]


def test_nothing_is_left_behind() -> None:
    gc.collect()
    gc.disable()
    try:

        def trace() -> Any:
            ids = torch.arange(9)
            fdma.trace_mask_mod(lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k))
            with pytest.raises(fdma.TraceError):
                fdma.trace_mask_mod(lambda b, h, q, k: ids[q].item() > k)
            return weakref.ref(ids)

        kept = trace()
        assert kept() is None
    finally:
        gc.enable()


def test_tracing_inside_tracing() -> None:
    def outer(b: Any, h: Any, q: Any, k: Any) -> Any:
        inner = fdma.trace_mask_mod(lambda b, h, q, k: document[q] == document[k])
        assert str(inner) == "@document[q] == @document[k]"
        return (q >= k) & is_global[k]

    assert str(fdma.trace_mask_mod(outer)) == "q >= k & @is_global[k]"
