"""Tests random masks through every interop layout of the package and back.

The cells stay the same, or the layout refuses the mask.
"""

from __future__ import annotations

from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

fdma = pytest.importorskip("fdma")

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
SIDES = st.sampled_from([16, 32, 48, 64])


@st.composite
def block_sparse(draw: Any, most_pairs: int = 3) -> tuple[Any, tuple[int, int]]:
    """Returns cells [batch, heads, q_len, kv_len] of tiles of every class, and the tile sides."""
    block = draw(st.tuples(SIDES, SIDES))
    q_len, kv_len = (draw(st.integers(1, 3 * side + 20)) for side in block)
    batch, heads = draw(st.integers(1, most_pairs)), draw(st.integers(1, most_pairs))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = -(-q_len // block[0]), -(-kv_len // block[1])
    density = rng.choice([0.0, 0.5, 1.0], (batch, heads, rows, columns), p=draw(weights()))
    per_cell = np.kron(density, np.ones(block))[:, :, :q_len, :kv_len]
    cells = rng.random(per_cell.shape) < per_cell
    if draw(st.booleans()):  # all heads are alike
        cells[:] = cells[:, :1]
    return cells, block


def weights() -> Any:
    return st.sampled_from([(0.4, 0.2, 0.4), (0.9, 0.1, 0.0), (0.0, 0.1, 0.9), (0.0, 1.0, 0.0)])


@SETTINGS
@given(block_sparse())
def test_flex(drawn: tuple[Any, tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")
    cells, block = drawn
    table = torch.from_numpy(cells)
    theirs = flex_attention.create_block_mask(
        lambda b, h, q, k: table[b, h, q, k], *cells.shape, device="cpu", BLOCK_SIZE=block
    )
    mask = fdma.from_flex(theirs)
    np.testing.assert_array_equal(mask.to_dense(), cells)
    ours = mask.to_flex("cpu", block=block)
    for name in theirs._TENSOR_ATTRS:
        expected = getattr(theirs, name)
        assert expected is None or torch.equal(getattr(ours, name), expected), name
    seen = flex_attention.create_mask(ours.mask_mod, *cells.shape, device="cpu")
    assert torch.equal(seen, table)
    assert fdma.from_flex(ours) == mask
    assert fdma.from_flex(mask.to_flex_arrays(block=32)) == mask


@SETTINGS
@given(block_sparse(1), st.sampled_from(["bsr_array", "csr_array"]))
def test_bsr(drawn: tuple[Any, tuple[int, int]], kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    cells, block = drawn
    q_len, kv_len = cells.shape[2:]
    mask = fdma.from_bsr(getattr(sparse, kind)(cells[0, 0]))
    np.testing.assert_array_equal(mask.to_dense(), cells)
    matrix = mask.to_bsr(block=block, pad=True)
    np.testing.assert_array_equal(matrix.toarray()[:q_len, :kv_len], cells[0, 0])
    assert fdma.from_bsr(matrix, q_len=q_len, kv_len=kv_len) == mask
    assert fdma.from_bsr(mask.to_bsr(block=block, arrays=True)) == mask


@SETTINGS
@given(block_sparse(), st.sampled_from(["bool", "float16", "float32", "float64"]), st.booleans())
def test_hf_mask(drawn: tuple[Any, tuple[int, int]], dtype: str, use_infinity: bool) -> None:
    cells, block = drawn
    mask = fdma.from_hf_mask(cells, block=block)
    np.testing.assert_array_equal(mask.to_dense(), cells)
    array = mask.to_hf_mask(dtype, use_infinity=use_infinity)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array if dtype == "bool" else array == 0, cells)
    assert fdma.from_hf_mask(array) == mask


@SETTINGS
@given(block_sparse())
def test_layouts_that_hold_some_masks_hold_them_or_refuse(
    drawn: tuple[Any, tuple[int, int]],
) -> None:
    mask = fdma.from_hf_mask(drawn[0])
    for layout in ("flashmask", "cu_seqlens", "hf_padding"):
        try:
            arrays = getattr(mask, f"to_{layout}")()
        except NotImplementedError:
            continue
        assert getattr(fdma, f"from_{layout}")(**arrays._asdict()) == mask


@st.composite
def flash_arrays(draw: Any) -> dict[str, Any]:
    causal, columns = draw(st.sampled_from([(True, 1), (True, 2), (False, 2), (False, 4)]))
    q_len = draw(st.integers(0, 80))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(0, 80)), columns)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.integers(0, q_len + 1, shape, dtype=np.int32)
    return {"startend_row_indices": rows, "causal": causal, "q_len": q_len}


@SETTINGS
@given(flash_arrays())
def test_flashmask(arrays: dict[str, Any]) -> None:
    mask = fdma.from_flashmask(**arrays)
    again = mask.to_flashmask()
    assert fdma.from_flashmask(**again._asdict()) == mask
    assert again.startend_row_indices.shape[3] <= arrays["startend_row_indices"].shape[3]


@st.composite
def sequences(draw: Any) -> dict[str, Any]:
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6)
    )
    window = st.one_of(st.just(-1), st.integers(0, 50))
    offsets = np.concatenate([[(0, 0)], np.cumsum(lengths, axis=0)])
    return {
        "cu_seqlens_q": offsets[:, 0],
        "cu_seqlens_k": offsets[:, 1],
        "causal": draw(st.booleans()),
        "window_size": draw(st.tuples(window, window)),
        "packed": draw(st.booleans()),
        "heads": draw(st.integers(1, 3)),
    }


@SETTINGS
@given(sequences())
def test_cu_seqlens(arguments: dict[str, Any]) -> None:
    mask = fdma.from_cu_seqlens(**arguments)
    assert fdma.from_cu_seqlens(**mask.to_cu_seqlens()._asdict()) == mask
