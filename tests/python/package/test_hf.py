"""Tests attn_implementation="fdma" against "sdpa".

The models are a small Llama and one with windows and chunks.
"""

from __future__ import annotations

import importlib
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
hf: Any = importlib.import_module("fdma.hf")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
KINDS = ["sliding_attention", "full_attention"]


def llama() -> Any:
    return transformers.LlamaConfig(**SIZES)


def mistral() -> Any:
    return transformers.MistralConfig(**SIZES, sliding_window=9)


def gemma() -> Any:
    """Returns a model that has layers with windows and layers without."""
    return transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=7, layer_types=KINDS)


def gemma_2() -> Any:
    """Logits of attention are capped by 0.5, far below the largest ones."""
    return transformers.Gemma2Config(
        **SIZES, head_dim=16, sliding_window=5, attn_logit_softcapping=0.5, query_pre_attn_scalar=4
    )


MODELS = {"llama": llama, "mistral": mistral, "gemma": gemma}


def pair(make: Any, other: str = "sdpa") -> list[Any]:
    """Returns the same model twice, with another attention and with fdma."""
    models = []
    for name in (other, "fdma"):
        torch.manual_seed(0)
        config = make()
        config._attn_implementation = name
        models.append(transformers.AutoModelForCausalLM.from_config(config).eval())
    models[1].load_state_dict(models[0].state_dict())
    return models


def prompt(length: int = 30) -> Any:
    torch.manual_seed(1)
    return torch.randint(3, 97, (2, length))


def padding(length: int, side: str) -> Any:
    mask = torch.ones(2, length, dtype=torch.int64)
    if side == "left":
        mask[0, :11] = 0
    else:
        mask[0, -11:] = 0
    return mask


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_forward(name: str, side: str) -> None:
    a, b = pair(MODELS[name])
    tokens = prompt()
    mask = None if side == "none" else padding(30, side)
    with torch.no_grad():
        expected, out = (m(tokens, attention_mask=mask).logits for m in (a, b))
    seen = torch.ones(2, 30, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(out[seen], expected[seen], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(name: str, cache: str) -> None:
    a, b = pair(MODELS[name])
    options = {
        "attention_mask": padding(30, "left"),
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "pad_token_id": 0,
        "disable_compile": True,
    }
    expected, out = (m.generate(prompt(), **options) for m in (a, b))
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", MODELS)
def test_packed_documents(name: str) -> None:
    a, b = pair(MODELS[name])
    positions = torch.cat([torch.arange(11), torch.arange(19)])[None].expand(2, -1)
    with torch.no_grad():
        expected, out = (
            m(prompt(), position_ids=positions, use_cache=False).logits for m in (a, b)
        )
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_chunks() -> None:
    sizes = {**SIZES, "intermediate_size_mlp": 96, "head_dim": 16}
    kinds = ["chunked_attention", "full_attention"]

    def llama4() -> Any:
        return transformers.Llama4TextConfig(
            **sizes, attention_chunk_size=8, layer_types=kinds, num_local_experts=2,
            interleave_moe_layer_step=1000, attn_temperature_tuning=False,
        )  # fmt: skip

    a, b = pair(llama4)
    mask = padding(30, "left")
    with torch.no_grad():
        expected, out = (m(prompt(), attention_mask=mask).logits for m in (a, b))
    seen = mask.bool()
    torch.testing.assert_close(out[seen], expected[seen], atol=1e-4, rtol=1e-4)


def test_a_dense_mask_of_ones_own() -> None:
    a, b = pair(llama)
    cells = torch.ones(30, 30, dtype=torch.bool).tril() & (torch.rand(30, 30) < 0.7)
    cells |= torch.eye(30, dtype=torch.bool)
    with torch.no_grad():
        expected, out = (
            m(prompt(), attention_mask=cells.expand(2, 1, -1, -1)).logits for m in (a, b)
        )
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str) -> None:
    a, b = pair(MODELS[name])
    tokens, mask = prompt(), padding(30, "right")
    labels = tokens.masked_fill(mask == 0, -100)
    losses = []
    for model in (a, b):
        model.train()
        loss = model(tokens, attention_mask=mask, labels=labels).loss
        try:
            loss.backward()
        except NotImplementedError as error:
            pytest.skip(f"no gradients yet: {error}")
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], atol=1e-4, rtol=1e-4)
    for (key, wanted), (_, got) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-3, msg=key)


def qwen() -> Any:
    return transformers.Qwen3Config(**SIZES, head_dim=16)


def gpt_2() -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2Config(
        vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=256, **ids
    )


@pytest.mark.parametrize("make", [llama, mistral, gemma, gemma_2, qwen, gpt_2])
def test_models_are_as_by_eager(make: Any) -> None:
    """Logits and gradients agree up to rounding, and tokens are equal.

    Caches that grow and static caches are both tested.
    """
    a, b = pair(make, "eager")
    tokens, mask = prompt(), padding(30, "left")
    seen = mask.bool()
    expected, out = (m(tokens, attention_mask=mask).logits[seen] for m in (a, b))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    expected.square().sum().backward()
    out.square().sum().backward()
    for wanted, got in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-3, rtol=1e-3)
    words = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for cache in ("dynamic", "static"):
        for padded in (None, mask):
            made = [
                m.generate(
                    tokens, attention_mask=padded, cache_implementation=cache,
                    disable_compile=True, **words,
                )
                for m in (a, b)
            ]  # fmt: skip
            assert torch.equal(*made)


def test_what_is_not_there_is_named() -> None:
    q = torch.randn(1, 2, 8, 16)
    module = torch.nn.Module()
    forward = hf.attention_forward
    with pytest.raises(ValueError, match="softcap: expected a number above 0"):
        forward(module, q, q, q, None, softcap=-30.0)
    with pytest.raises(NotImplementedError, match="indices: keys that the model selects"):
        forward(module, q, q, q, None, indices=torch.zeros(2))
    with pytest.raises(TypeError, match=r"attention_mask: expected a mask of fdma.hf, got str"):
        forward(module, q, q, q, "causal")
    causal = forward(module, q, q, q, None, is_causal=True)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(causal.transpose(1, 2), expected)
