"""Tests models that do more to logits and weights than mask them, against "eager"."""

from __future__ import annotations

import importlib
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
hf: Any = importlib.import_module("fdma.hf")
import fdma  # noqa: E402
from test_hf import SIZES, llama, padding, pair, prompt  # noqa: E402
from test_hf_keywords import BERT, IDS  # noqa: E402

GENERATES = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def gpt_oss() -> Any:
    """Every layer has sinks."""
    return transformers.GptOssConfig(
        **SIZES, **IDS, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"], initializer_range=0.5,
    )  # fmt: skip


def both(kind: str, make: Any) -> list[Any]:
    """A model of transformers with "eager" and with "fdma", without dropout."""
    models: list[Any] = []
    for name in ("eager", "fdma"):
        torch.manual_seed(0)
        config = make()
        config._attn_implementation = name
        models.append(getattr(transformers, kind).from_config(config).eval())
    models[1].load_state_dict(models[0].state_dict())
    return models


def expect_gradients(a: Any, b: Any) -> None:
    for (name, wanted), (_, got) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (got.grad is None) == (wanted.grad is None), name
        if wanted.grad is not None:
            largest = float(wanted.grad.abs().max())
            torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4 * largest, rtol=1e-3)


def test_sinks_of_gpt_oss() -> None:
    a, b = pair(gpt_oss, "eager")
    tokens, mask = prompt(), padding(30, "left")
    seen = mask.bool()
    expected, out = (m(tokens, attention_mask=mask).logits[seen] for m in (a, b))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    expected.square().mean().backward()
    out.square().mean().backward()
    assert b.model.layers[0].self_attn.sinks.grad.abs().max() > 0
    expect_gradients(a, b)
    for cache in ("dynamic", "static"):
        words = {"cache_implementation": cache, "disable_compile": True, **GENERATES}
        made = [m.generate(tokens, attention_mask=mask, **words) for m in (a, b)]
        assert torch.equal(*made)


def test_sinks_in_compiled_models() -> None:
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 2, 4, 20, 16)
    sinks = torch.randn(4, requires_grad=True)
    module = torch.nn.Module()
    mask = padding(20, "left").bool()

    def layer(q: Any, k: Any, v: Any, sinks: Any, mask: Any) -> Any:
        layers = hf.mask_function(2, 20, 20, attention_mask=mask)
        return hf.attention_forward(module, q, k, v, layers, s_aux=sinks)[0]

    expected = layer(q, k, v, sinks, mask)
    (wanted,) = torch.autograd.grad(expected.square().sum(), sinks)
    out = torch.compile(layer, backend="aot_eager", fullgraph=True)(q, k, v, sinks, mask)
    (got,) = torch.autograd.grad(out.square().sum(), sinks)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(got, wanted)
    torch._dynamo.reset()


def test_sinks_of_rows_come_with_an_axis_of_keys() -> None:
    q, k, v = torch.randn(3, 2, 4, 20, 16)
    sinks = torch.randn(2, 4, 20, 1)
    out = hf.attention_forward(torch.nn.Module(), q, k, v, None, sinks=sinks, is_causal=True)[0]
    expected = fdma.attention(q, k, v, "causal", sinks=sinks[..., 0])
    assert torch.equal(out, expected.transpose(1, 2))


def t5() -> Any:
    return transformers.T5Config(
        vocab_size=97, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=8, relative_attention_max_distance=20,
        decoder_start_token_id=0,
    )  # fmt: skip


def test_position_biases_of_t5() -> None:
    a, b = both("AutoModelForSeq2SeqLM", t5)
    tokens, mask, labels = prompt(), padding(30, "right"), prompt(12)
    words = {"input_ids": tokens, "attention_mask": mask}
    expected, out = (m(**words, labels=labels) for m in (a, b))
    torch.testing.assert_close(out.logits, expected.logits, atol=1e-4, rtol=1e-4)
    expected.loss.backward()
    out.loss.backward()
    biases = b.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    assert biases.weight.grad.abs().max() > 0
    expect_gradients(a, b)
    made = [m.generate(**words, **GENERATES) for m in (a, b)]
    assert torch.equal(*made)


def bert() -> Any:
    return transformers.BertConfig(
        **BERT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def test_dense_masks_of_any_numbers_are_added() -> None:
    a, b = both("AutoModel", bert)
    tokens = prompt()
    mask = torch.randn(2, 1, 30, 30)
    mask[0, :, :, 25:] = torch.finfo(torch.float32).min
    for _ in range(2):  # the second time it is known that the tensor is no mask
        expected, out = (m(tokens, attention_mask=mask).last_hidden_state for m in (a, b))
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    leaves = [mask.clone().requires_grad_() for _ in range(2)]
    for model, leaf in zip((a, b), leaves, strict=True):
        model(tokens, attention_mask=leaf).last_hidden_state.square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, atol=1e-4, rtol=1e-3)


def test_a_bias_and_a_dense_mask_add_up() -> None:
    q, k, v = torch.randn(3, 2, 4, 20, 16)
    bias, mask = torch.randn(1, 4, 20, 20), torch.randn(2, 1, 20, 20)
    out = hf.attention_forward(torch.nn.Module(), q, k, v, mask, position_bias=bias)[0]
    expected = fdma.attention(q, k, v, bias=bias + mask)
    assert torch.equal(out, expected.transpose(1, 2))


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_is_that_of_attention(compiled: bool) -> None:
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 2, 4, 20, 16)
    module = torch.nn.Module()

    def layer(q: Any, k: Any, v: Any) -> Any:
        return hf.attention_forward(module, q, k, v, None, dropout=0.25, is_causal=True)[0]

    if compiled:
        layer = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.manual_seed(4)
    out = layer(q, k, torch.ones_like(v))
    assert 0.5 < float(out.mean()) < 1.5 and not torch.equal(out, torch.ones_like(out))
    if not compiled:
        torch.manual_seed(4)
        expected = fdma.attention(q, k, torch.ones_like(v), "causal", dropout_p=0.25)
        assert torch.equal(out, expected.transpose(1, 2))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("AutoModelForCausalLM", lambda: transformers.LlamaConfig(**SIZES, attention_dropout=0.2)),
        ("AutoModelForCausalLM", lambda: transformers.GPT2Config(vocab_size=97, **IDS)),
        ("AutoModelForMaskedLM", lambda: transformers.BertConfig(**BERT)),
    ],
)
def test_models_train_with_dropout(kind: str, make: Any) -> None:
    model = both(kind, make)[1].train()
    tokens = prompt()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        losses.append(float(loss))
    assert losses[0] == losses[1] != losses[2]
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_llama_does_not_notice() -> None:
    """A model without any of these parts calls as before."""
    a, b = pair(llama, "eager")
    torch.testing.assert_close(b(prompt()).logits, a(prompt()).logits, atol=1e-4, rtol=1e-4)
