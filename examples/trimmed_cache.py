"""Decoding with a trimmed cache, which holds only the keys that a learned mask may still keep.

    python examples/trimmed_cache.py [--small] [--device cpu|cuda]

`fdma.IncrementalTopk` follows the scores of keys and tells which keys are alive. A key that is no
longer alive never comes back, so its rows of the cache are dropped. Every step attends to at most w
keys, whatever the length, and gives the result of attention over the whole sequence. The program
checks each step against that result.
"""

from __future__ import annotations

import argparse
from typing import Any

import fdma
import torch

HEADS, HEADS_KV, HEAD_DIM = 4, 2, 64


class Cache:
    """Keys, values and scores of the keys that are alive, [1, heads_kv, kept, ..], in order."""

    def __init__(self, w: int, capacity: int, device: str) -> None:
        index = 0 if device == "cuda" else None
        self.topk = fdma.IncrementalTopk(w, heads_kv=HEADS_KV, capacity=capacity, device=index)
        self.places: Any = None
        self.rows: tuple[Any, Any, Any] | None = None

    def append(self, k: Any, v: Any, scores: Any) -> tuple[Any, Any, Any]:
        """Appends rows of new keys, drops rows that are no longer alive, and returns the rest."""
        begin = self.topk.kv_len
        alive, _ = self.topk.append(scores)
        alive = alive.long()
        count = k.shape[2]
        new = torch.arange(begin, begin + count, device=k.device).expand(1, HEADS_KV, -1)
        if self.rows is None:
            places, rows = new, (k, v, scores)
        else:
            places = torch.cat([self.places, new], 2)
            rows = tuple(
                torch.cat([old, more], 2)
                for old, more in zip(self.rows, (k, v, scores), strict=True)
            )
        # Both ascend, so a place is found by bisection. Every head has as many keys as the others.
        alive = alive[..., : min(self.topk.w, self.topk.kv_len)].contiguous()
        at = torch.searchsorted(places.contiguous(), alive)
        self.places = alive
        wide = at[..., None].expand(-1, -1, -1, HEAD_DIM)
        self.rows = rows[0].gather(2, wide), rows[1].gather(2, wide), rows[2].gather(2, at)
        return self.rows


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    prefill, steps, w = (200, 40, 32) if options.small else (2000, 200, 256)
    device = options.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    length = prefill + steps
    q = torch.randn(1, HEADS, length, HEAD_DIM, device=device, dtype=dtype)
    k, v = (
        torch.randn(1, HEADS_KV, length, HEAD_DIM, device=device, dtype=dtype) for _ in range(2)
    )
    dt_proj = torch.randn(HEADS_KV, HEAD_DIM, device=device, dtype=dtype) / 4
    a_coef = torch.tensor([-1.0, -0.5], device=device)
    whole = fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, w)

    cache = Cache(w, length, device)
    scores = fdma.zoh_scores(v, dt_proj, a_coef)
    cache.append(k[:, :, :prefill], v[:, :, :prefill], scores[..., :prefill])
    worst = 0.0
    for step in range(prefill, length):
        now = slice(step, step + 1)
        kept_k, kept_v, kept_scores = cache.append(k[:, :, now], v[:, :, now], scores[..., now])
        out = fdma.attention(q[:, :, now], kept_k, kept_v, key_bias=kept_scores)
        worst = max(worst, (out - whole[:, :, now]).abs().max().item())
    print(f"{length} tokens, a cache of {kept_k.shape[2]} keys a head")
    print(f"largest difference from attention over the whole sequence: {worst:.1e}")
    assert worst < (3e-2 if device == "cuda" else 1e-4)
    return worst


if __name__ == "__main__":
    main()
