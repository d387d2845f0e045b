"""Tests whole masks against create_mask and create_block_mask.

sample=True evaluates every cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mask_mods import MaskMod, expected_cells, torch

# isort: split
import fdma

flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

SIZES = (2, 3, 13, 17)

chosen = torch.tensor([[1, 4, 7, 16], [0, 2, 3, 5]], dtype=torch.int32)
live = torch.rand(2, 3, 13, 17, generator=torch.Generator().manual_seed(1)) < 0.5


def two_heads(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 4 * (h + 1)) & (k >= b)


# ---- every cell

SAMPLED: dict[str, MaskMod] = {
    "two heads": two_heads,
    "floats": lambda b, h, q, k: torch.sin(q * 0.7 + h) > torch.cos(k / 3.0),
    "same for all": lambda b, h, q, k: q / 2 > k,
    "batch only": lambda b, h, q, k: (q + b) / 2 > k,
    "heads only": lambda b, h, q, k: (q + h) / 2 > k,
    "lookups": lambda b, h, q, k: live[b, h, q, k],
    "noop": flex.noop_mask,
}


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("cells_at_once", [1 << 24, 200])
def test_sample_equals_create_mask(
    name: str, cells_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdma.trace.sample.CELLS_AT_ONCE", cells_at_once)
    batch, heads, q_len, kv_len = SIZES
    mask = fdma.compile(SAMPLED[name], q_len, kv_len, batch, heads, sample=True)
    expected = expected_cells(SAMPLED[name], SIZES)
    assert np.array_equal(np.broadcast_to(mask.to_dense(), SIZES), expected)
    sampled = fdma.sample_mask_mod(SAMPLED[name], q_len, kv_len, batch, heads)
    (bits,) = sampled.tables.values()
    if name in ("noop", "same for all"):
        assert bits.shape == (13, 17)
    elif name in ("batch only", "heads only"):
        assert bits.shape == ((2 if name == "batch only" else 3), 13, 17)


def test_sample_rejects() -> None:
    with pytest.raises(TypeError, match="booleans"):
        fdma.sample_mask_mod(lambda b, h, q, k: q + k, 4)
    with pytest.raises(ValueError, match="q_len"):
        fdma.sample_mask_mod(two_heads, -1)
    assert fdma.compile(two_heads, 0, 5, sample=True).to_dense().size == 0


# ---- with create_block_mask

BLOCK_MASKS: dict[str, tuple[MaskMod, tuple[int, int, int, int]]] = {
    "causal": (lambda b, h, q, k: q >= k, (1, 1, 300, 300)),
    "documents": (
        lambda b, h, q, k: (torch.arange(500) // 130)[q] == (torch.arange(500) // 130)[k],
        (1, 1, 500, 500),
    ),
    "heads": (lambda b, h, q, k: (q >= k) & (q - k < 90 * (h + 1)), (1, 3, 401, 257)),
    "batch": (lambda b, h, q, k: (q >= k) | (k < 140 * b), (3, 2, 256, 384)),
    "dilated": (lambda b, h, q, k: (q - k).abs() % 131 == 0, (1, 1, 391, 500)),
    "rows": (lambda b, h, q, k: (chosen[b] == (k // 16).unsqueeze(-1)).any(-1), (2, 1, 200, 300)),
}


@pytest.mark.parametrize("name", BLOCK_MASKS)
def test_compiled_is_create_block_mask(name: str) -> None:
    mask_mod, (batch, heads, q_len, kv_len) = BLOCK_MASKS[name]
    theirs = flex.create_block_mask(mask_mod, batch, heads, q_len, kv_len, device="cpu")
    ours = fdma.compile(mask_mod, q_len, kv_len, batch, heads).to_flex("cpu")
    for part in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        mine, expected = getattr(ours, part), getattr(theirs, part)
        assert torch.equal(mine.expand_as(expected), expected), part
