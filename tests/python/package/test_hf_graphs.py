"""Tests Hugging Face models under torch.compile(fullgraph=True) and torch.export."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fdma_module
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
hf: Any = importlib.import_module("fdma.hf")
masks: Any = importlib.import_module("transformers.masking_utils")
mask_text: Any = importlib.import_module("fdma.interop.hf_mask_text")
from fdma.attention.score import ScoreArguments  # noqa: E402
from test_hf import SIZES, gemma, llama, mistral, padding, pair, prompt  # noqa: E402


def llama_4() -> Any:
    """Returns a model that attends in chunks."""
    return transformers.Llama4TextConfig(
        **SIZES, intermediate_size_mlp=96, head_dim=16, attention_chunk_size=8,
        layer_types=["chunked_attention", "full_attention"], num_local_experts=2,
        interleave_moe_layer_step=1000, attn_temperature_tuning=False,
    )  # fmt: skip


MODELS = {"llama": llama, "mistral": mistral, "gemma": gemma, "llama 4": llama_4}
FEW = {"llama": llama, "gemma": gemma}


class Logits(torch.nn.Module):  # type: ignore[misc]
    """A model whose result is a tensor, so that loading it does not need transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any, mask: Any) -> Any:
        return self.model(tokens, attention_mask=mask, use_cache=False).logits


def compiled(model: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager", **options)


def compare(out: Any, expected: Any, seen: Any = None) -> None:
    seen = torch.ones(expected.shape[:2], dtype=torch.bool) if seen is None else seen.bool()
    torch.testing.assert_close(out[seen], expected[seen], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_fullgraph(name: str) -> None:
    a, b = pair(MODELS[name])
    run = compiled(b)
    with torch.no_grad():
        for length in (30, 21, 25):
            tokens = prompt(length)
            compare(run(tokens).logits, a(tokens).logits)


@pytest.mark.parametrize("name", FEW)
def test_fullgraph_with_tensors_that_say_the_mask(name: str) -> None:
    """Tensors give the padding and the packed documents, which differ between calls of a graph."""
    a, b = pair(FEW[name])
    run = compiled(b)
    tokens = prompt()
    with torch.no_grad():
        for side in ("left", "right"):
            mask = padding(30, side)
            out = run(tokens, attention_mask=mask).logits
            compare(out, a(tokens, attention_mask=mask).logits, mask)
        for first in (11, 17):
            ids = torch.cat([torch.arange(first), torch.arange(30 - first)])[None].expand(2, -1)
            words = {"position_ids": ids, "use_cache": False}
            compare(run(tokens, **words).logits, a(tokens, **words).logits)


def test_fullgraph_decoding() -> None:
    a, b = pair(llama)
    tokens = prompt()
    run = compiled(b)
    for kind in ("dynamic", "static"):
        caches = [
            transformers.DynamicCache(config=m.config)
            if kind == "dynamic"
            else transformers.StaticCache(config=m.config, max_cache_len=40)
            for m in (a, b)
        ]
        with torch.no_grad():
            a(tokens[:, :20], past_key_values=caches[0])
            b(tokens[:, :20], past_key_values=caches[1])
            for i in range(20, 26):
                piece = tokens[:, i : i + 1]
                out = run(piece, past_key_values=caches[1]).logits
                compare(out, a(piece, past_key_values=caches[0]).logits)


@pytest.mark.parametrize("words", [{}, {"use_cache": False}, {"padded": True}])
def test_fullgraph_training(words: dict[str, Any]) -> None:
    a, b = pair(llama)
    tokens, labels = prompt(), prompt()
    if words.pop("padded", False):
        words["attention_mask"] = padding(30, "right")
        labels = labels.masked_fill(words["attention_mask"] == 0, -100)
    losses = [m(tokens, labels=labels, **words).loss for m in (a, compiled(b))]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0], atol=1e-4, rtol=1e-4)
    for wanted, got in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_export(name: str) -> None:
    a, b = pair(MODELS[name])
    tokens = prompt()
    program = torch.export.export(b, (tokens,), {"use_cache": False}).module()
    with torch.no_grad():
        compare(program(tokens, use_cache=False).logits, a(tokens).logits)


def test_export_of_a_padded_batch_travels(tmp_path: Path) -> None:
    """Another process runs the program on padding that its example did not have."""
    a, b = pair(llama)
    tokens, mask = prompt(), padding(30, "left")
    program = torch.export.export(Logits(b), (tokens, torch.ones_like(mask)))
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((tokens, mask), tmp_path / "inputs.pt")
    code = (
        "import torch, fdma\n"
        "tokens, mask = torch.load('inputs.pt')\n"
        "run = torch.export.load('model.pt2').module()\n"
        "torch.save(run(tokens, mask).detach(), 'out.pt')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(fdma_module.FOLDER)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    with torch.no_grad():
        compare(torch.load(tmp_path / "out.pt"), a(tokens, attention_mask=mask).logits, mask)


def test_what_is_read_on_the_host_is_named() -> None:
    lens = torch.tensor([0, 11, 30], dtype=torch.int32)
    _, b = pair(llama)
    words = {"use_cache": False, "cu_seq_lens_q": lens, "cu_seq_lens_k": lens}
    with pytest.raises(NotImplementedError, match=r"^cu_seq_lens_q; it is read on the host"):
        torch.export.export(b, (prompt(),), words)
    with pytest.raises(Exception, match=r"cu_seq_lens_q: it is read on the host"):
        compiled(b)(prompt(), **words)
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    operators = importlib.import_module("fdma.interop.hf_operators")
    tables = [torch.tensor([3])]
    out = operators.attention_with_tables(q, q, q, tables, "q - k < @t0[0]", None, False)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second gradients"):
        grad.sum().backward()


def test_operators_keep_pytorchs_rules() -> None:
    importlib.import_module("fdma.interop.hf_operators")
    q, k, v = (torch.randn(2, heads, 8, 16, requires_grad=True) for heads in (4, 2, 2))
    tables = [torch.tensor([[True] * 8, [False] * 3 + [True] * 5]), torch.tensor(2)]
    text = "((k <= q) & (q - k < @t1)) & @t0[b, k]"
    operator = torch.ops.fdma.attention_with_tables.default
    score = ScoreArguments(softcap=1.5)
    torch.library.opcheck(operator, (q, k, v, tables, text, 0.3, False, *score))


@pytest.mark.parametrize("offsets", [(0, 0), (6, 0), (9, 3), (5, 1)])
def test_formulas_are_the_functions(offsets: tuple[int, int]) -> None:
    """Each mask function of transformers is compared as a text with tables and as a trace."""
    ids = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 3] * 3, [0] * 10 + [1] * 14])
    positions = torch.arange(24) - 2 * ids
    q_length, kv_length = 10, 16
    for function in (
        masks.causal_mask_function,
        masks.bidirectional_mask_function,
        masks.sliding_window_causal_mask_function(4),
        masks.sliding_window_bidirectional_mask_function(3),
        masks.chunked_causal_mask_function(5, torch.tensor([0, 2])),
        masks.and_masks(masks.causal_mask_function, masks.padding_mask_function(ids == 1)),
        masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(ids)),
        masks.packed_sequence_compatibility_function(masks.causal_mask_function, positions, ids),
    ):
        text, tables = mask_text.mask_text_of(function, q_length, kv_length, *offsets)
        expected = hf.mask_function(2, q_length, kv_length, *offsets, function).mask
        got = importlib.import_module("fdma.interop.hf_operators").table_mask(
            text, tables, 2, q_length, kv_length
        )
        assert got == expected, text
    causal = mask_text.mask_text_of(masks.causal_mask_function, 1, 9, 8, 0)
    assert causal == ("(k <= pos)", [])
