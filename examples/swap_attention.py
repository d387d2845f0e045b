"""Replaces the attention of an existing model: every torch.nn.MultiheadAttention becomes FDMA's.

    python examples/swap_attention.py [--small] [--device cpu|cuda]

Parameters and results stay the same. The replaced layers also accept a mask as an expression, for
which no dense tensor is made. The program runs a PyTorch transformer before and after the
replacement, and then with a window mask given as an expression.
"""

from __future__ import annotations

import argparse
from typing import Any

import fdma.nn
import torch


def swap(module: torch.nn.Module) -> int:
    """Replaces the attention layers inside `module`; returns how many."""
    count = 0
    for name, child in list(module.named_children()):
        if type(child) is torch.nn.MultiheadAttention:
            ours = fdma.nn.MultiheadAttention(
                child.embed_dim,
                child.num_heads,
                dropout=child.dropout,
                bias=child.in_proj_bias is not None,
                batch_first=child.batch_first,
            )
            ours.to(child.out_proj.weight.device, child.out_proj.weight.dtype)
            ours.load_state_dict(child.state_dict())
            ours.train(child.training)
            setattr(module, name, ours)
            count += 1
        else:
            count += swap(child)
    return count


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """Layers of torch.nn; each runs its attention and then its MLP."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerDecoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, x: Any, mask: Any) -> Any:
        for layer in self.layers:
            attended = layer.self_attn(x, x, x, attn_mask=mask, need_weights=False)[0]
            x = layer.norm1(x + attended)
            x = layer.norm3(x + layer.linear2(layer.linear1(x).relu()))
        return x


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    length, window = (300, 32) if options.small else (2000, 128)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    torch.manual_seed(0)
    model = Encoder(256, 4, 2).to(options.device, dtype)
    x = torch.randn(2, length, 256, device=options.device, dtype=dtype)
    places = torch.arange(length, device=options.device)
    far = places[:, None] - places[None, :]
    dense = (far < 0) | (far >= window)  # true: not attended

    with torch.no_grad():
        before = model(x, dense)
        print(f"{swap(model)} layers swapped")
        after = model(x, dense)
        by_expression = model(x, fdma.causal() & fdma.window(window))
    worst: float = max((y - before).abs().max().item() for y in (after, by_expression))
    print(f"largest difference from PyTorch's own: {worst:.1e}")
    mask = fdma.compile(fdma.causal() & fdma.window(window), length)
    print(f"the mask: {mask.nbytes} bytes for {dense.numel()} cells, {mask.density:.1%} of them")
    assert worst < (0.1 if options.device == "cuda" else 1e-4)
    return worst


if __name__ == "__main__":
    main()
