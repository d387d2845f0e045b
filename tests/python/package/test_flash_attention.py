"""Tests attention of the package flash_dmattn against SDPA and the definition."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from fdma_module import definition, random_tensors

# isort: split
import fdma
import flash_dmattn
from flash_dmattn import flash_dmattn_func_auto

flash_dma_attention: Any = flash_dmattn.flash_dma_attention
flash_dmattn_func: Any = flash_dmattn.flash_dmattn_func

EXAMPLE = """
from flash_dmattn import flash_dmattn_func_auto, CausalWindowMask
sparse_mask = CausalWindowMask(window_size=1024, seqlen_q=8192, seqlen_k=8192)
output = flash_dmattn_func_auto(backend="cuda")(query=query, key=key, value=value, sparse_mask=sparse_mask)
"""  # noqa: E501


def arrays(q_len: int = 60, kv_len: int = 80) -> Any:
    return random_tensors(
        7, batch=2, q_len=q_len, kv_len=kv_len, heads_q=4, heads_kv=2, head_dim=16
    )


def test_the_example_runs_verbatim_on_the_cpu() -> None:
    names: dict[str, Any] = dict(zip(("query", "key", "value"), arrays(8192, 8192), strict=True))
    names = {name: x[:1, :, :2, :] for name, x in names.items()}
    exec(EXAMPLE.replace('"cuda"', '"cpu"'), names)
    again = fdma.attention(
        names["query"], names["key"], names["value"], "causal & window(1024)", layout="bshd"
    )
    np.testing.assert_array_equal(names["output"], again)
    with pytest.raises(ValueError, match='"sm90" computes on a GPU, q is on the host'):
        exec(EXAMPLE, names)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("kind", ["bool", "int64", "float32", "torch"])
def test_dense_masks(batch: int, heads: int, rows: int, kind: str) -> None:
    q, k, v = arrays()
    cells = np.random.default_rng(8).random((batch, heads, rows, 80)) < 0.5
    cells[..., 0] = True
    full = np.broadcast_to(cells, (batch, heads, 60, 80)).repeat(
        4 // heads if heads > 1 else 1, axis=1
    )
    for is_causal in (False, True):
        seen = full & np.tri(60, 80, 20, dtype=bool) if is_causal else full
        expected, _ = definition(q, k, v, seen, 0.3)
        given: Any = (q, k, v, cells)
        if kind == "torch":
            torch: Any = pytest.importorskip("torch")
            given = [torch.from_numpy(x) for x in given]
        elif kind != "bool":
            given = q, k, v, cells.astype(kind)
        out = flash_dmattn_func(*given, scale=0.3, is_causal=is_causal)
        np.testing.assert_allclose(out, expected, atol=2e-5)


def test_probabilities_and_bias() -> None:
    torch: Any = pytest.importorskip("torch")
    q, k, v = arrays()
    bias = np.random.default_rng(9).standard_normal((2, 2, 1, 80)).astype(np.float32)
    seen = np.tri(60, 80, 20, dtype=bool)[None, None]
    expected, _ = definition(q, k, v, seen, None, bias[:, :, 0])
    given = [torch.from_numpy(x) for x in (q, k, v)]
    out, weights = flash_dmattn_func(
        *given, attn_bias=torch.from_numpy(bias), is_causal=True, return_attn_probs=True
    )
    np.testing.assert_allclose(out, expected, atol=2e-5)
    assert weights.shape == (2, 4, 60, 80)
    values = given[2].repeat_interleave(2, 2)
    by_weights = torch.einsum("bhqk,bkhd->bqhd", weights, values)
    np.testing.assert_allclose(by_weights, expected, atol=2e-5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 60))
    assert not weights[:, :, 0, 21:].any()


@pytest.mark.parametrize("shape", [(2, 4, 60, 80), (1, 2, 60, 80), (2, 1, 1, 80), (1, 4, 1, 80)])
def test_biases_of_every_shape(shape: tuple[int, ...]) -> None:
    torch: Any = pytest.importorskip("torch")
    define: Any = importlib.import_module("score_oracle").attention
    given = [torch.from_numpy(x) for x in arrays()]
    bias = torch.randn(shape)
    out, weights = flash_dmattn_func(
        *given, attn_bias=bias, is_causal=True, softcap=2.0, return_attn_probs=True
    )
    seen = torch.ones(60, 80).tril(20).bool()
    turned = (x.transpose(1, 2) for x in given)
    expected, _, by_definition = define(*turned, seen, bias=bias, softcap=2.0)
    torch.testing.assert_close(out.transpose(1, 2).double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(weights.double(), by_definition, atol=2e-5, rtol=1e-5)
    arrays_out = flash_dmattn_func(
        *(x.numpy() for x in given), attn_bias=bias.numpy(), is_causal=True, softcap=2.0
    )
    np.testing.assert_allclose(arrays_out, out, atol=1e-6)


def test_dropout_of_learned_attention() -> None:
    torch: Any = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in arrays(60, 60))
    dt_proj, a_coef = torch.randn(2, 32), -torch.ones(2)
    words: Any = {"keep_window_size": 9, "causal": True}
    whole, weights = flash_dma_attention(q, k, v, dt_proj, a_coef, return_attn_probs=True, **words)
    torch.manual_seed(2)
    out, kept = flash_dma_attention(
        q, k, v, dt_proj, a_coef, dropout_p=0.5, return_attn_probs=True, **words
    )
    torch.testing.assert_close(kept, torch.where(kept == 0, 0.0, 2 * weights))
    assert not torch.equal(out, whole)
    torch.manual_seed(2)
    again = flash_dma_attention(q, k, v, dt_proj, a_coef, dropout_p=0.5, **words)
    torch.testing.assert_close(again, out)


@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_mask_attention(causal: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    q, k, v = arrays(60, 60)
    random = np.random.default_rng(10)
    dt_proj = random.standard_normal((2, 32), np.float32)
    a_coef = -np.ones(2, np.float32)
    out = flash_dma_attention(
        q, k, v, dt_proj, a_coef, 9, causal=causal, block_size=64, mixed_processing=True
    )
    tensors = [torch.from_numpy(x) for x in (q, k, v, dt_proj, a_coef)]
    again, weights = flash_dma_attention(
        *tensors, 9, causal=causal, return_attn_probs=True, softmax_scale=0.25
    )
    np.testing.assert_allclose(again, out, atol=1e-6)
    kept = (weights > 0).sum(-1)
    assert kept.max() == 9 and (not causal or kept[0, 0, :4].tolist() == [1, 2, 3, 4])
    by_weights = torch.einsum("bhqk,bkhd->bqhd", weights, tensors[2].repeat_interleave(2, 2))
    torch.testing.assert_close(by_weights, again)


def test_what_is_not_there_is_named() -> None:
    q, k, v = arrays()
    dense = np.ones((1, 1, 60, 80), bool)
    dt_proj, a_coef = np.zeros((2, 32), np.float32), np.zeros(2, np.float32)
    refused: Any = (
        (ValueError, "softcap: expected", lambda: flash_dmattn_func(q, k, v, softcap=-3.0)),
        (ValueError, 'backend: expected "cuda"', lambda: flash_dmattn_func_auto("triton")),
        (ValueError, "attn_mask: expected", lambda: flash_dmattn_func(q, k, v, dense[0])),
        (ValueError, "another number", lambda: flash_dmattn_func(q, k, v, dense * 2)),
        (
            ValueError,
            "attn_bias: expected .batch or 1, heads or heads_kv or 1, q_len or 1, kv_len.",
            lambda: flash_dmattn_func(q, k, v, attn_bias=np.zeros((60, 80), np.float32)),
        ),
        (
            ValueError,
            "attn_bias: expected .*, got .1, 3, 1, 80.",
            lambda: flash_dmattn_func(q, k, v, attn_bias=np.zeros((1, 3, 1, 80), np.float32)),
        ),
        (
            NotImplementedError,
            "only tensors of PyTorch",
            lambda: flash_dmattn_func(q, k, v, return_attn_probs=True),
        ),
        (
            NotImplementedError,
            "dropout_p: only tensors of PyTorch",
            lambda: flash_dma_attention(q, k, v, dt_proj, a_coef, dropout_p=0.1),
        ),
        (
            NotImplementedError,
            r"costs O\(N log w\) already",
            lambda: flash_dma_attention(q, k, v, dt_proj, a_coef, selection_method="approximate"),
        ),
    )
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()
    assert "flash_dma_attention" in flash_dmattn.__all__
    attend = flash_dmattn_func_auto()
    mask = flash_dmattn.CausalMask(60, 80)
    out = attend(q, k, v, dense, sparse_mask=mask)
    np.testing.assert_array_equal(out, flash_dmattn_func(q, k, v, is_causal=True))


def test_large_probabilities_are_refused() -> None:
    torch: Any = pytest.importorskip("torch")
    q = torch.empty(1, 20000, 1, 8)
    with pytest.raises(ValueError, match=r"return_attn_probs: .* numbers, at most 268435456"):
        flash_dmattn_func(q, q, q, is_causal=True, return_attn_probs=True)
