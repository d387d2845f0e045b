"""The predicted cost and savings of a mask on a device, before anything runs there.

The numbers are those of `fdma-maskc estimate` (docs/estimates.md). Counts are exact; times come
from a device profile and are as accurate as that profile.
"""

from __future__ import annotations

import copy
import difflib
import json
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from . import _fdma
from .estimate_table import bytes_text, report_html, report_lines, time_text
from .masks.core_mask import core_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .masks.block_mask import BlockMask

__all__ = ["Device", "Estimate", "device_profile", "estimate"]

Device = str | os.PathLike[str] | Mapping[str, Any]
"""A device: a name ("h200", "h100", "cpu"), the file of a profile, or a profile as a dict."""

_DEFAULT_HEADS = 32


@dataclass(frozen=True)
class Estimate:
    """The result of `estimate` for one mask on one device.

    `print` and notebooks show it as a table; `to_dict` returns every number.

    >>> import fdma
    >>> said = fdma.estimate(fdma.compile("causal", 8192), heads=8, head_dim=128, device="h200")
    >>> said.speedup > 1.5, said.best_format, said.memory_savings > 99.9
    (True, 'parametric', True)
    """

    _report: Mapping[str, Any]

    @property
    def speedup(self) -> float:
        """The factor by which the mask is faster than attention to every pair on this device."""
        return cast("float", self._report["speedup"])

    @property
    def time_ms(self) -> float:
        """Predicted time of one call, in milliseconds."""
        return cast("float", self._report["masked"]["time_us"]) / 1e3

    @property
    def dense_time_ms(self) -> float:
        """Predicted time of attention to every pair, in milliseconds."""
        return cast("float", self._report["full"]["time_us"]) / 1e3

    @property
    def flops(self) -> float:
        """Operations on the allowed pairs, over all batch elements and query heads."""
        return cast("float", self._report["flops"])

    @property
    def dense_flops(self) -> float:
        """Operations on every pair, over all batch elements and query heads."""
        return cast("float", self._report["full_flops"])

    @property
    def bytes(self) -> int:
        """Bytes of the mask as it is stored."""
        return cast("int", self._report["mask"]["stored_bytes"])

    @property
    def memory_savings(self) -> float:
        """The percentage by which `bytes` is below a float32 mask; 0 for a mask without cells."""
        dense = self._report["dense_bytes"]["float"]
        return 100 * (1 - self.bytes / dense) if dense else 0.0

    @property
    def traffic_bytes(self) -> int:
        """Bytes that main memory moves while the work tiles of one call run."""
        return cast("int", self._report["masked"]["memory_bytes"])

    @property
    def waste(self) -> float:
        """Share of the computed cells that the mask drops, 0 to 1."""
        return cast("float", self._report["wasted_share"])

    @property
    def load_balance(self) -> float:
        """Share of the workers' time in which they work, by a simulated schedule; 1 is best."""
        return cast("float", self._report["masked"]["load_balance"])

    @property
    def format_bytes(self) -> dict[str, int | None]:
        """Bytes of the mask by format; None if it has no such form or counting takes too long."""
        return {size["format"]: size["bytes"] for size in self._report["formats"]}

    @property
    def best_format(self) -> str:
        """The format with the fewest bytes."""
        return cast("str", self._report["best_format"])

    @property
    def best_block(self) -> tuple[int, int]:
        """The fastest tile (query rows, keys) of the device's kernels for this mask."""
        timed = [each for each in self._report["candidates"] if each["time_us"] is not None]
        tile = timed[0]["tile"] if timed else self._report["tile"]
        return tile["q"], tile["kv"]

    @property
    def device(self) -> str:
        """Name of the device's profile."""
        return cast("str", self._report["device"]["name"])

    @property
    def is_provisional(self) -> bool:
        """True if the profile was not measured on the device, so that times are rough."""
        return cast("bool", self._report["device"]["provisional"])

    @property
    def is_memory_bound(self) -> bool:
        """True if memory traffic takes longer than computing."""
        return cast("bool", self._report["masked"]["memory_bound"])

    def to_dict(self) -> dict[str, Any]:
        """Every number, in the members of `fdma-maskc estimate --json`; `json.dumps` accepts it.

        >>> import fdma
        >>> said = fdma.estimate(fdma.compile("causal", 1000), heads=2)
        >>> said.to_dict()["allowed_pairs"] == 2 * 1000 * 1001 // 2
        True
        """
        return copy.deepcopy(dict(self._report))

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draws times and bytes as bars with matplotlib, in `figure` or a new one; returns it.

        Raises ImportError if matplotlib is missing.

        >>> import fdma
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> said = fdma.estimate(fdma.compile("causal", 4096))
        >>> said.plot().savefig("estimate.png")
        """
        from .masks.drawing import pyplot

        figure = pyplot("Estimate.plot").figure(figsize=(9, 3.2)) if figure is None else figure
        times, sizes = figure.subplots(1, 2)
        full, masked = self._report["full"]["time_us"], self._report["masked"]["time_us"]
        bars = times.barh(["full attention", "this mask"], [full / 1e3, masked / 1e3])
        times.bar_label(bars, [time_text(full), time_text(masked)], padding=3)
        times.margins(x=0.25)
        times.set_xlabel("ms")
        times.set_title(f"{self.device}: {self.speedup:.2f}x faster")
        dense = self._report["dense_bytes"]
        known = {name: size for name, size in self.format_bytes.items() if size is not None}
        known |= {"dense float32": dense["float"]}
        bars = sizes.barh(list(known)[::-1], [max(size, 1) for size in known.values()][::-1])
        sizes.bar_label(bars, [bytes_text(size) for size in known.values()][::-1], padding=3)
        sizes.set_xscale("log")
        sizes.margins(x=0.4)
        sizes.set_xlabel("bytes")
        sizes.set_title(f"best format: {self.best_format}")
        figure.tight_layout()
        return figure

    def __str__(self) -> str:
        mask = self._report["mask"]
        lengths = " x ".join(_range_text(mask["lengths"][side]) for side in ("q", "kv"))
        lines = [f"{mask['name']}, {lengths}"]
        lines += [f"  {name:<17}{value}" for name, value in report_lines(self._report)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Estimate on {self.device}: {time_text(1e3 * self.time_ms)}, "
            f"{self.speedup:.2f}x faster than full attention, "
            f"memory savings {self.memory_savings:.4f} %>"
        )

    def _repr_html_(self) -> str:
        return report_html(self._report)


def _range_text(lengths: list[int]) -> str:
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low}..{high}"


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: expected an integer, got {kind}") from None


def _profile(device: Device) -> _fdma.DeviceProfile:
    if isinstance(device, Mapping):
        try:
            return _fdma.DeviceProfile.from_json(json.dumps(dict(device)))
        except (OSError, ValueError) as error:
            raise ValueError(f"device: {error}") from None
        except TypeError as error:
            raise TypeError(f"device: {error}") from None
    if not isinstance(device, str | os.PathLike):
        kind = type(device).__name__
        raise TypeError(f"device: expected a name, a profile (dict) or its file, got {kind}")
    name, known = os.fspath(device), _fdma.DeviceProfile.shipped_names()
    if isinstance(device, str) and name in known:
        return _fdma.DeviceProfile.shipped(name)
    if isinstance(device, str) and not ({".", "/", os.sep} & set(name)):
        near = difflib.get_close_matches(name.lower(), known, 1)
        near = [other for other in near if other[:1] == name[:1].lower()]  # an a100 is no h100
        raise ValueError(
            f"device: expected {', '.join(known)}, a profile (dict) or its file (.json), got "
            f"{name!r}; "
            + (f"did you mean {near[0]}?" if near else "fdma-maskc calibrate measures a device")
        )
    try:
        return _fdma.DeviceProfile.read(name)
    except OSError as error:
        raise OSError(f"device: {error}") from None


def device_profile(device: Device = "h200") -> dict[str, Any]:
    """The constants of a device, which may be changed and passed to `estimate`.

    docs/estimates.md explains each member. Raises ValueError for an unknown name or a wrong
    profile, and OSError for a file that cannot be read.

    >>> import fdma
    >>> profile = fdma.device_profile("h200")
    >>> half = profile | {"name": "half of one", "num_workers": 66}
    >>> mask = fdma.compile("causal", 32768)
    >>> fdma.estimate(mask, device=half).time_ms > 1.5 * fdma.estimate(mask).time_ms
    True
    """
    return cast("dict[str, Any]", json.loads(_profile(device).to_json()))


def estimate(
    mask: BlockMask,
    *,
    heads: int | None = None,
    head_dim: int = 128,
    device: Device = "h200",
    heads_kv: int | None = None,
    head_dim_v: int | None = None,
    batch: int | None = None,
    dtype: str = "bfloat16",
    direction: Literal["forward", "backward"] = "forward",
    tile: tuple[int, int] | None = None,
    columns: Literal["automatic", "scan", "gather", "reorder"] = "automatic",
    workers: int | None = None,
    count_all: bool = False,
    softcap: bool = False,
    score: Sequence[str] = (),
) -> Estimate:
    """Predicts attention over `mask` without running it.

    heads, batch: the numbers of query heads and batch elements. None means those of the mask if it
    differs between heads or batch elements, otherwise 32 heads and 1 batch element.
    heads_kv, head_dim_v: None means heads and head_dim.
    dtype: float32, float16 or bfloat16 (fp32, fp16, bf16), the same for all tensors.
    device: "h200", "h100", "cpu", a profile as a dict, or the path of a profile that `fdma-maskc
    calibrate`
    wrote.
    tile: (query rows, keys) of a kernel tile, one of the profile's; None means its first.
    columns: how query intervals per key (evictions, learned selections) run: every tile is visited,
    live keys are gathered, or keys are permuted by their live ranges.
    workers: the number of threads or SMs; None means that of the profile.
    softcap: whether logits have a cap, as "softcap" in score.
    score: what else happens to logits and weights, of "softcap", "key_bias", "bias", "alibi",
    "relative_table", "sink" and "dropout". A bias has elements of its own for each batch element
    and query head.
    count_all: count bitmaps even if that means drawing more than 65,536 tiles.

    Raises ValueError for a wrong value and TypeError for a wrong type, naming the argument;
    NotImplementedError for a dtype, direction or tile that the profile has no costs for; OSError
    for a profile's file.

    Cost: proportional to the structure of the mask; the causal mask of a million tokens takes well
    below a second.

    >>> import fdma
    >>> mask = fdma.compile("causal & window(1024)", 65536)
    >>> said = fdma.estimate(mask, heads=32, head_dim=128, device="h200")
    >>> said.speedup > 20
    True
    >>> print(said)  # doctest: +ELLIPSIS
    causal & window(1024), 65536 x 65536
      attention        forward, batch 1, 32 query and 32 key heads, head size 128, bfloat16
      device           h200, 132 workers
    ...
    """
    core = core_of("mask", mask)
    profile = _profile(device)
    if heads is None:
        heads = core.num_heads if core.num_heads > 1 else _DEFAULT_HEADS
    if workers is not None and _whole("workers", workers) < 1:
        raise ValueError(f"workers: expected 1 or more, got {workers}")
    if tile is not None:
        rows, keys = tile
        tile = (_whole("tile", rows), _whole("tile", keys))
    if isinstance(score, str):
        raise TypeError(f"score: expected a sequence of names, as ({score!r},), got a string")
    report = _fdma.estimate(
        core,
        profile,
        batch=core.num_batches if batch is None else _whole("batch", batch),
        heads=_whole("heads", heads),
        heads_kv=heads if heads_kv is None else _whole("heads_kv", heads_kv),
        head_dim=_whole("head_dim", head_dim),
        head_dim_v=head_dim if head_dim_v is None else _whole("head_dim_v", head_dim_v),
        dtype=dtype,
        direction=direction,
        tile=tile,
        columns=columns,
        workers=workers or 0,
        count_all=count_all,
        score=",".join([*score, *(["softcap"] if softcap else [])]),
    )
    described = {
        "name": core.spec or "mask",
        "format": core.format,
        "lengths": {"q": core.q_lens, "kv": core.kv_lens},
        "num_batches": core.num_batches,
        "num_heads": core.num_heads,
        "block": {"q": core.block[0], "kv": core.block[1]},
        "num_groups": core.num_groups,
        "stored_bytes": core.nbytes,
    }
    return Estimate({"mask": described, **report})
