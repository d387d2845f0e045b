"""Device time of calls, by CUDA events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

# A round of everything that is compared, times so many rounds as fit into this time.
SECONDS_A_ROW = 0.35
ROUNDS = (3, 15)
# Short kernels run several times between two events.
SECONDS_A_SAMPLE = 3e-4
MAX_LAUNCHES = 8
# Where a call takes longer, each has its samples one after the other, behind a time in which the
# same call brings the card to the power and clock of a long run.
LONG_SECONDS = 0.05
WARM_SECONDS = 1.0
SAMPLED_SECONDS = 0.5
# Keeps the GPU busy while the host queues a sample: about 1 ms at 1.9 GHz for each launch.
SLEEP_CYCLES = 2_000_000


def queue_between_events(
    torch: Any, call: Callable[[], object], launches: int = 1
) -> tuple[Any, Any]:
    """The events before and behind `launches` calls, which may still run."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    return begin, end


def device_ms(
    torch: Any, call: Callable[[], object], launches: int = 1, sleep_cycles: int = 0
) -> float:
    """Milliseconds of one call, a mean of `launches` in a row.

    The GPU is kept busy for `sleep_cycles` while the host queues them.
    """
    if sleep_cycles:
        torch.cuda._sleep(sleep_cycles)
    begin, end = queue_between_events(torch, call, launches)
    end.synchronize()
    return float(begin.elapsed_time(end)) / launches


class Timing:
    """What is compared in a row: calls in turn, and the seconds that each took."""

    def __init__(self, torch: Any, calls: dict[str, Callable[[], object]], quick: bool) -> None:
        self.torch = torch
        self.calls = calls
        self.seconds: dict[str, list[float]] = {}
        launches = {}
        for name, call in calls.items():
            call()
            self.seconds[name] = [self.sample(call, 1) for _ in range(2)]
            once = min(self.seconds[name])
            launches[name] = max(1, min(MAX_LAUNCHES, round(SECONDS_A_SAMPLE / once)))
        is_long = max(min(seconds) for seconds in self.seconds.values()) > LONG_SECONDS
        self.seconds = {name: [] for name in calls}
        if is_long:
            for name, call in calls.items():
                self.sample_for(call, WARM_SECONDS, 1)
                self.seconds[name] = self.sample_for(call, SAMPLED_SECONDS, 2)
            return
        begin = time.perf_counter()
        names = list(calls)
        limit = 3 if quick else ROUNDS[1]
        while len(self.seconds[names[0]]) < limit:
            for name in names if len(self.seconds[names[0]]) % 2 == 0 else reversed(names):
                self.seconds[name].append(self.sample(calls[name], launches[name]))
            rounds = len(self.seconds[names[0]])
            if rounds >= ROUNDS[0] and time.perf_counter() - begin > SECONDS_A_ROW:
                break

    def sample_for(self, call: Callable[[], object], seconds: float, least: int) -> list[float]:
        """Samples of single calls until they add up to `seconds`, and so many at least."""
        samples: list[float] = []
        while len(samples) < least or sum(samples) < seconds:
            samples.append(self.sample(call, 1))
        return samples

    def sample(self, call: Callable[[], object], launches: int) -> float:
        """Seconds of one call, a mean of `launches` in a row."""
        return device_ms(self.torch, call, launches, SLEEP_CYCLES * launches) / 1e3

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def medians_ms(self) -> dict[str, float]:
        """Of every call, under its name with _ms."""
        return {f"{name}_ms": 1e3 * self.median(name) for name in self.calls}

    def ratio(self, name: str, other: str) -> float:
        """How many times as long `other` takes, round by round where there are rounds."""
        if len(self.seconds[name]) != len(self.seconds[other]):
            return self.median(other) / self.median(name)
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(b / a for a, b in pairs)
