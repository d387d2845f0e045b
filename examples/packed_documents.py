"""Training over packed documents: rows are filled with whole documents, and none sees another.

    python examples/packed_documents.py [--small] [--device cpu|cuda]

Every step has other documents and therefore another mask. The compiled mask is a million times
smaller than the dense one, and it is compiled while the GPU is still busy. The model is a causal
transformer on a toy language in which a document repeats a word of two letters. The program also
checks that the predictions for a document do not depend on the documents packed beside it.
"""

from __future__ import annotations

import argparse
import itertools
import random
from typing import Any

import fdma
import torch

VOCABULARY = 32


class Block(torch.nn.Module):  # type: ignore[misc]
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: Any, mask: fdma.BlockMask) -> Any:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(fdma.attention(q, k, v, mask, layout="bshd").flatten(2))
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):  # type: ignore[misc]
    """A causal transformer whose positions count from the start of each document."""

    def __init__(self, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.positions = torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Any, positions: Any, mask: fdma.BlockMask) -> Any:
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def documents(length: int, rng: random.Random) -> list[list[int]]:
    """Documents that fill a row; each document repeats a word of two letters."""
    packed: list[list[int]] = []
    left = length
    while left:
        size = min(left, rng.randint(20, length // 2))
        word = [rng.randrange(VOCABULARY) for _ in range(2)]
        packed.append([word[i % 2] for i in range(size)])
        left -= size
    return packed


def row(packed: list[list[int]], device: str) -> tuple[Any, Any, fdma.BlockMask]:
    """Tokens and positions [1, length], and the mask of causal attention inside documents."""
    lengths = [len(document) for document in packed]
    tokens = torch.tensor([list(itertools.chain(*packed))], device=device)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    mask = fdma.compile(fdma.causal() & fdma.documents(lengths=lengths), tokens.shape[1])
    return tokens, positions, mask


def token_losses(model: Model, tokens: Any, positions: Any, mask: fdma.BlockMask) -> Any:
    """The losses of predicting each token except the first of a document, in order."""
    logits = model(tokens, positions, mask)[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:], reduction="none")
    return losses[positions[0, 1:] > 0]


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    length, width, steps = (256, 64, 60) if options.small else (1024, 128, 200)
    rng = random.Random(0)
    torch.manual_seed(0)
    model = Model(width, width // 32, 2, length).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = float("nan")
    for step in range(steps):
        tokens, positions, mask = row(documents(length, rng), options.device)
        mean = token_losses(model, tokens, positions, mask).mean()
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        loss = mean.item()
        if step % (steps // 5) == 0 or step == steps - 1:
            print(f"step {step:4}: {mask.density:5.1%} of the pairs, loss {loss:.3f}")

    # A document has the same predictions alone and packed.
    packed = documents(length, rng)
    with torch.no_grad():
        together = token_losses(model, *row(packed, options.device))
        alone = torch.cat([token_losses(model, *row([d], options.device)) for d in packed])
    print(f"largest difference between packed and alone: {(together - alone).abs().max():.1e}")
    assert (together - alone).abs().max() < 1e-3
    return loss


if __name__ == "__main__":
    main()
