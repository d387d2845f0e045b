"""Tests import and export of Hugging Face's masks.

They are compared with its own functions where it is installed, and with the lowest numbers of
PyTorch and NumPy.
"""

from __future__ import annotations

from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest

fdma = pytest.importorskip("fdma")

CELLS = np.random.default_rng(5).random((2, 3, 40, 50)) < 0.5


def padding_cases() -> list[Any]:
    """Yields attention_mask [batch, keys], the number of query rows, and decoder or encoder."""
    rng = np.random.default_rng(11)
    right = np.arange(33)[None, :] < np.array([[33], [20], [1]])
    left = right[:, ::-1]
    return [
        pytest.param(right, 33, True, id="right, decoder"),
        pytest.param(left, 33, True, id="left, decoder"),
        pytest.param(right, 33, False, id="right, encoder"),
        pytest.param(left, 1, True, id="left, one token after a cache"),
        pytest.param(left, 5, True, id="left, five tokens after a cache"),
        pytest.param(rng.random((4, 33)) < 0.7, 33, True, id="holes, decoder"),
    ]


def padding_cells(tokens: Any, q_len: int, causal: bool) -> Any:
    """Returns the cells [batch, 1, q_len, keys]."""
    i, j = np.arange(q_len)[:, None], np.arange(tokens.shape[1])
    seen = (j <= i + tokens.shape[1] - q_len) if causal else np.ones((q_len, len(j)), np.bool_)
    return (tokens[:, None, :] & seen)[:, None]


@pytest.mark.parametrize(("tokens", "q_len", "causal"), padding_cases())
@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float32])
def test_padding_masks(tokens: Any, q_len: int, causal: bool, dtype: Any) -> None:
    mask = fdma.from_hf_padding(tokens.astype(dtype), causal, q_len=q_len)
    cells = padding_cells(tokens, q_len, causal)
    np.testing.assert_array_equal(mask.to_dense(), cells)
    assert fdma.from_hf_mask(cells) == mask
    arrays = fdma.from_hf_mask(cells).to_hf_padding()
    assert arrays.attention_mask.dtype == np.int64
    assert fdma.from_hf_padding(**arrays._asdict()) == mask
    assert fdma.from_hf_padding(tokens, causal, q_len=q_len, heads=4).heads == 4


@pytest.mark.parametrize(("tokens", "q_len", "causal"), padding_cases())
def test_masks_are_hugging_faces(tokens: Any, q_len: int, causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    masks = pytest.importorskip(
        "transformers.masking_utils", reason="transformers is not installed"
    )
    arguments: dict[str, Any] = {
        "batch_size": len(tokens),
        "q_length": q_len,
        "kv_length": tokens.shape[1],
        "q_offset": tokens.shape[1] - q_len,
        "mask_function": masks.causal_mask_function
        if causal
        else masks.bidirectional_mask_function,
        "attention_mask": torch.from_numpy(np.ascontiguousarray(tokens)),
    }
    theirs = masks.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = fdma.from_hf_padding(arguments["attention_mask"], causal, q_len=q_len)
    assert fdma.from_hf_mask(theirs) == mask
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        eager = masks.eager_mask(**arguments, dtype=dtype)
        assert fdma.from_hf_mask(eager) == mask
        assert torch.equal(mask.to_hf_mask(dtype), eager)


def numpy_masks() -> list[Any]:
    return [
        pytest.param(CELLS, id="bool"),
        pytest.param(CELLS.astype(np.uint8), id="uint8"),
        pytest.param(CELLS.astype(np.int64), id="int64"),
        pytest.param(np.where(CELLS, np.float16(-0.0), np.float16(-np.inf)), id="-inf"),
        pytest.param(np.where(CELLS, 0.0, -65504.0).astype(np.float32), id="widened"),
        pytest.param(np.where(CELLS, 0.0, np.finfo(np.float64).min), id="float64"),
        pytest.param(np.asfortranarray(CELLS), id="by columns"),
        pytest.param(CELLS[::-1][::-1], id="reversed twice"),
    ]


@pytest.mark.parametrize("array", numpy_masks())
def test_four_dimensional_masks(array: Any) -> None:
    mask = fdma.from_hf_mask(array, block=(32, 16))
    np.testing.assert_array_equal(mask.to_dense(), CELLS)
    assert tuple(mask.block) == (32, 16)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("use_infinity", [False, True])
def test_additive_masks_of_numpy(dtype: str, use_infinity: bool) -> None:
    mask = fdma.from_hf_mask(CELLS)
    additive = mask.to_hf_mask(dtype, use_infinity=use_infinity)
    lowest = -np.inf if use_infinity else np.finfo(dtype).min
    np.testing.assert_array_equal(additive, np.where(CELLS, 0, lowest).astype(dtype))
    assert additive.dtype == dtype
    assert fdma.from_hf_mask(additive) == mask
    np.testing.assert_array_equal(mask.to_hf_mask(), CELLS)
    assert mask.to_hf_mask().dtype == np.bool_


def test_additive_masks_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    mask = fdma.from_hf_mask(torch.from_numpy(CELLS))
    np.testing.assert_array_equal(mask.to_dense(), CELLS)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        expected = torch.zeros(CELLS.shape, dtype=dtype).masked_fill_(
            ~torch.from_numpy(CELLS), torch.finfo(dtype).min
        )
        ours = mask.to_hf_mask(dtype)
        assert ours.dtype == dtype and torch.equal(ours, expected)
        assert fdma.from_hf_mask(expected) == mask
        assert fdma.from_hf_mask(expected.double()) == mask
        assert fdma.from_hf_mask(expected.requires_grad_()) == mask
    assert torch.equal(mask.to_hf_mask(torch.bool), torch.from_numpy(CELLS))
    assert torch.equal(mask.to_hf_mask(device="cpu"), torch.from_numpy(CELLS))
    assert mask.to_hf_mask("bfloat16", device="cpu").dtype == torch.bfloat16
    # The mask is expanded over heads with stride 0, as models do it.
    expanded = torch.from_numpy(CELLS[:, :1]).expand(2, 3, 40, 50)
    assert fdma.from_hf_mask(expanded) == fdma.from_hf_mask(CELLS[:, :1], heads=3)
    tokens = torch.tensor([[0, 1, 1]])
    padding = fdma.from_hf_padding(tokens, True).to_hf_padding(device="cpu")
    assert torch.equal(padding.attention_mask, tokens)


def test_bfloat16_of_numpy_by_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    lowest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    additive = np.where(CELLS, 0.0, lowest).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(fdma.from_hf_mask(additive).to_dense(), CELLS)


def test_masks_without_cells() -> None:
    for shape in ((1, 1, 0, 5), (2, 3, 5, 0), (1, 2, 0, 0)):
        mask = fdma.from_hf_mask(np.zeros(shape, np.bool_))
        assert mask.shape == shape
        assert mask.to_hf_mask("float32").shape == shape
    assert fdma.from_hf_padding(np.zeros((2, 0)), True).shape == (2, 1, 0, 0)


def test_rejects() -> None:
    ones = np.ones((1, 1, 2, 2), np.float32)
    for array, match in (
        (ones, r"attention_mask\[0, 0, 0, 0\]"),
        (ones * -10000, r"attention_mask\[0, 0, 0, 0\]"),
        (ones * np.nan, "attention_mask"),
        (ones.astype(np.int64) * 2, r"attention_mask\[0, 0, 0, 0\]: 2"),
        (np.ones((2, 2), np.bool_), "4 dimensions"),
    ):
        with pytest.raises(ValueError, match=match):
            fdma.from_hf_mask(array)
    with pytest.raises(TypeError):
        fdma.from_hf_mask("causal")
    with pytest.raises(ValueError, match="heads"):
        fdma.from_hf_mask(CELLS, heads=4)
    for tokens, match in (([[2, 1]], r"attention_mask\[0, 0\]: 2"), ([1, 1], "2 dimensions")):
        with pytest.raises(ValueError, match=match):
            fdma.from_hf_padding(tokens, True)
    with pytest.raises(TypeError, match="causal"):
        fdma.from_hf_padding([[1, 1]], None)
    mask = fdma.compile("causal", 40)
    for dtype in ("int32", "bfloat16", "float128x"):
        with pytest.raises((ValueError, TypeError)):
            mask.to_hf_mask(dtype)
    with pytest.raises(MemoryError):
        mask.to_hf_mask(max_bytes=100)
    with pytest.raises(NotImplementedError):
        fdma.compile("causal", [4, 5], batch=2).to_hf_mask()
    with pytest.raises(NotImplementedError, match=r"cell|key"):
        fdma.compile("window(3)", 40).to_hf_padding()
    with pytest.raises(NotImplementedError):
        mask.to_hf_padding(causal=False)
