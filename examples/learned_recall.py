"""A learned mask, trained: recall of a few marked keys among many that are noise.

    python examples/learned_recall.py [--small] [--device cpu|cuda]

A row holds pairs of a key and its value, each pair in one position. A few pairs are marked, and the
questions at the end of the row ask only for those. A query keeps `w` keys, far fewer than it may
see, so the layer (`fdma.nn.DynamicMaskAttention`) has to learn which keys to keep. Its scores must
rank the marked pairs first. A kept score is added to the logits as a bias, and the scores are
learned through this bias. The program prints the accuracy on rows that were not trained on, beside
the accuracy of the untrained model and of chance.
"""

from __future__ import annotations

import argparse
from typing import Any

import fdma.nn
import torch

NAMES = 16  # as many keys as values


class Recall(torch.nn.Module):  # type: ignore[misc]
    """Embeds pairs and questions, attends once, and reads the value off."""

    def __init__(self, width: int, w: int) -> None:
        super().__init__()
        self.key = torch.nn.Embedding(NAMES, width)
        self.value = torch.nn.Embedding(NAMES + 1, width)  # the last one stands for a question
        self.mark = torch.nn.Embedding(2, width)
        self.attention = fdma.nn.DynamicMaskAttention(width, 2, keep_window_size=w)
        torch.nn.init.constant_(self.attention.a_coef, -1.0)  # scores between 0 and 1
        self.head = torch.nn.Linear(width, NAMES)

    def forward(self, keys: Any, values: Any, marks: Any) -> Any:
        x = self.key(keys) + self.value(values) + self.mark(marks)
        return self.head(x + self.attention(x))


def rows(count: int, length: int, marked: int, device: str) -> tuple[Any, Any, Any, Any]:
    """keys, values, marks, answers [count, length + marked]; an answer of -100 has no question."""
    keys = torch.randint(NAMES, (count, length + marked))
    values = torch.randint(NAMES, (count, length + marked))
    marks = torch.zeros(count, length + marked, dtype=torch.int64)
    answers = torch.full((count, length + marked), -100)
    for i in range(count):
        places = torch.randperm(length)[:marked]
        keys[i, places] = torch.randperm(NAMES)[:marked]
        marks[i, places] = 1
        keys[i, length:] = keys[i, places]
        answers[i, length:] = values[i, places]
    values[:, length:] = NAMES
    return tuple(x.to(device) for x in (keys, values, marks, answers))


def accuracy(model: Recall, batch: tuple[Any, Any, Any, Any]) -> float:
    keys, values, marks, answers = batch
    with torch.no_grad():
        said = model(keys, values, marks).argmax(-1)
    asked = answers >= 0
    return float((said == answers)[asked].float().mean())


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    length, marked, w = (32, 4, 8) if options.small else (192, 4, 12)
    steps, batch = (200, 16) if options.small else (600, 64)
    torch.manual_seed(0)
    model = Recall(64, w).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    test = rows(128, length, marked, options.device)
    print(f"{length} pairs, {marked} marked, a query keeps {w}; chance {1 / NAMES:.1%}")
    print(f"untrained: {accuracy(model, test):.1%}")
    for step in range(1, steps + 1):
        keys, values, marks, answers = rows(batch, length, marked, options.device)
        logits = model(keys, values, marks).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:  # decays to 0, so that the last steps settle
            group["lr"] = 4e-3 * (1 - (step - 1) / steps)
        optimizer.step()
        if step % (steps // 5) == 0:
            print(f"step {step:4}: loss {loss.item():.3f}, accuracy {accuracy(model, test):.1%}")
    return accuracy(model, test)


if __name__ == "__main__":
    main()
