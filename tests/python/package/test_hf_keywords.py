"""Tests the keywords that models hand to attention_forward besides tensors.

Each keyword is applied, has no effect, or is refused.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
hf: Any = importlib.import_module("fdma.hf")
keywords: Any = importlib.import_module("fdma.interop.hf_keywords")
from test_hf import SIZES, pair, prompt  # noqa: E402

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {name: n for name, n in SIZES.items() if name != "num_key_value_heads"}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip


def forward(**options: Any) -> Any:
    q = torch.randn(1, 2, 8, 16)
    return hf.attention_forward(torch.nn.Module(), q, q, q, None, **options)


@pytest.mark.parametrize(
    "name",
    ["block_indices", "indices", "cache", "head_mask", "novel"],
)
def test_keywords_that_would_be_dropped_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf'^{name}: .*attn_implementation="eager"'):
        forward(**{name: torch.zeros(2)})
    assert forward(**{name: None})[0].shape == (1, 8, 2, 16)


def test_attention_weights_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"^output_attentions: the attention weights"):
        forward(output_attentions=True)
    assert forward(output_attentions=False)[1] is None
    model = pair(lambda: transformers.LlamaConfig(**SIZES))[1]
    with pytest.raises(NotImplementedError, match="output_attentions"):
        model(prompt(), output_attentions=True)


def test_harmless_keywords_change_nothing() -> None:
    torch.manual_seed(0)
    expected = forward()[0]
    torch.manual_seed(0)
    out = forward(
        position_ids=torch.arange(8)[None], use_cache=True, output_router_logits=True,
        num_items_in_batch=3, deterministic=True, max_length_q=8, max_length_k=8,
    )[0]  # fmt: skip
    assert torch.equal(out, expected)


def words_of_calls(text: str) -> set[str]:
    """Returns the keywords of all calls of an attention interface in the source of a model."""
    found = set()
    for start in (match.start() for match in re.finditer(r"\battention_interface\(", text)):
        depth, end = 0, start
        for end in range(start, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if text[end] == ")" and depth == 0:
                break
        call = ast.parse(text[start : end + 1].replace("\n", " "), mode="eval").body
        assert isinstance(call, ast.Call)
        found |= {word.arg for word in call.keywords if word.arg is not None}
    return found


def test_every_keyword_of_transformers_is_known() -> None:
    """The keywords are those that models of transformers hand to an attention interface."""
    found: set[str] = set()
    for path in Path(transformers.__file__).parent.rglob("modeling_*.py"):
        text = re.sub(r"#.*", "", path.read_text())
        found |= words_of_calls(text)
    assert {"indices", "block_indices", "s_aux"} <= found
    honoured = set(inspect.signature(hf.attention_forward).parameters)
    assert found <= honoured | keywords._WITHOUT_EFFECT | set(keywords._REFUSED)


def deepseek() -> Any:
    return transformers.DeepseekV32Config(
        **{**SIZES, **LATENT}, index_topk=4, index_n_heads=2, index_head_dim=16
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(deepseek, r'^indices: .*"eager" or "sdpa"', id="DeepSeek V3.2"),
    ],
)
def test_models_with_more_than_a_mask_are_refused(make: Any, message: str) -> None:
    config = make()
    config._attn_implementation = "fdma"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(NotImplementedError, match=message):
        model(prompt())


@pytest.mark.parametrize(("q_len", "kv_len"), [(8, 8), (1, 8), (5, 9), (9, 5)])
@pytest.mark.parametrize("causal", [True, False])
def test_without_a_mask_is_as_sdpa(q_len: int, kv_len: int, causal: bool) -> None:
    sdpa = importlib.import_module("transformers.integrations.sdpa_attention")
    q, k, v = (torch.randn(1, 2, n, 16) for n in (q_len, kv_len, kv_len))
    words = {"is_causal": causal, "scaling": 0.3}
    module = torch.nn.Module()
    expected = sdpa.sdpa_attention_forward(module, q, k, v, None, **words)[0]
    torch.testing.assert_close(
        hf.attention_forward(module, q, k, v, None, **words)[0], expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("q_len", "causal"), [(12, True), (1, True), (12, False)])
def test_a_window_without_a_mask_is_not_ignored(q_len: int, causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (q_len, 12, 12))
    distance = torch.arange(12 - q_len, 12)[:, None] - torch.arange(12)
    seen = (distance < 4) & (distance >= 0 if causal else distance > -4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
    for window, wanted in ((4, expected), (12, None)):
        out = hf.attention_forward(
            torch.nn.Module(), q, k, v, None, is_causal=causal, sliding_window=window
        )[0].transpose(1, 2)
        if wanted is not None:
            torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
        else:
            assert not torch.allclose(out, expected, atol=1e-3)


def test_packed_sequences_by_cu_seq_lens() -> None:
    """The model has position_ids that show the sequences, with and without use_cache=False."""
    a, b = pair(lambda: transformers.LlamaConfig(**SIZES))
    tokens = prompt()[:1]
    positions = torch.cat([torch.arange(11), torch.arange(19)])[None]
    lens = torch.tensor([0, 11, 30], dtype=torch.int32)
    packed = {"cu_seq_lens_q": lens, "cu_seq_lens_k": lens, "max_length_q": 19, "max_length_k": 19}
    with torch.no_grad():
        expected = a(tokens, position_ids=positions, use_cache=False).logits
        for use_cache in (False, True):
            out = b(tokens, position_ids=positions, use_cache=use_cache, **packed).logits
            torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A module with the one thing that attention reads: the type of its weights."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 4, dtype=dtype)


@pytest.mark.parametrize(
    ("types", "weights"),
    [
        (("float32", "bfloat16", "bfloat16"), "bfloat16"),
        (("float32", "float32", "float32"), "bfloat16"),
        (("bfloat16", "float32", "bfloat16"), "bfloat16"),
        (("float32", "bfloat16", "float32"), "float32"),
    ],
)
def test_activations_of_mixed_types_are_cast(types: tuple[str, ...], weights: str) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 8, 16).to(getattr(torch, t)).requires_grad_() for t in types]
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    dtype = getattr(torch, weights)
    out = hf.attention_forward(Layer(dtype), *inputs, None, is_causal=True)[0].transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.to(dtype) for x in copies), is_causal=True
    )
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
    out.float().square().sum().backward()
    expected.float().square().sum().backward()
    for x, copy in zip(inputs, copies, strict=True):
        assert x.grad.dtype == x.dtype
        torch.testing.assert_close(x.grad, copy.grad, atol=1e-1, rtol=5e-2)


def test_autocast_decides_where_it_is_on() -> None:
    q, k = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16).bfloat16()
    with torch.autocast("cpu", torch.float16):
        out = hf.attention_forward(Layer(torch.bfloat16), q, k, k, None)[0]
    assert out.dtype == torch.float16
