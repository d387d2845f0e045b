"""Tests attn_implementation="fdma" in bfloat16 on a GPU against "sdpa" in float32.

The error is no larger than that of sdpa in bfloat16. The models and masks are those of test_hf.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

# isort: split

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from test_hf import MODELS, padding, pair, prompt  # noqa: E402

pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or not torch.cuda.is_available(),
    reason="no GPU of compute capability 9.0",
)


def trio(name: str) -> list[Any]:
    """Returns one model with sdpa in float32, with sdpa in bfloat16 and with fdma in bfloat16."""
    exact, ours = pair(MODELS[name])
    theirs, _ = pair(MODELS[name])
    return [exact.cuda(), theirs.cuda().bfloat16(), ours.cuda().bfloat16()]


def check(exact: Any, theirs: Any, ours: Any) -> None:
    """The error of fdma is at most twice that of sdpa; both are norms."""
    size = exact.double().norm()
    allowed = 2 * (theirs.double() - exact).norm() + 2e-3 * size
    assert (ours.double() - exact).norm() <= allowed


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_forward(name: str, side: str) -> None:
    tokens = prompt().cuda()
    mask = None if side == "none" else padding(30, side).cuda()
    seen = torch.ones(2, 30, dtype=torch.bool) if mask is None else mask.bool()
    with torch.no_grad():
        check(*(m(tokens, attention_mask=mask).logits[seen] for m in trio(name)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(name: str, cache: str) -> None:
    model = trio(name)[2]
    made = model.generate(
        prompt().cuda(),
        attention_mask=padding(30, "left").cuda(),
        max_new_tokens=12,
        do_sample=False,
        cache_implementation=cache,
        pad_token_id=0,
        eos_token_id=-1,
        disable_compile=True,
        return_dict_in_generate=True,
        output_scores=True,
    )
    # The model decodes step by step over a cache, and all at once.
    mask = torch.cat([padding(30, "left"), torch.ones(2, 12, dtype=torch.int64)], 1).cuda()
    with torch.no_grad():
        logits = model(made.sequences, attention_mask=mask).logits[:, 29:-1]
    steps = torch.stack(made.scores, 1)
    assert (steps - logits).norm() <= 2e-2 * logits.norm()


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str) -> None:
    tokens, mask = prompt().cuda(), padding(30, "right").cuda()
    labels = tokens.masked_fill(mask == 0, -100)
    grads = []
    for model in trio(name):
        model.train()
        model(tokens, attention_mask=mask, labels=labels).loss.backward()
        grads.append(torch.cat([x.grad.flatten() for x in model.parameters()]))
    check(*grads)
