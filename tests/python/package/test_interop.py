"""Tests FlashMask, block sparse rows and cu_seqlens as imports and exports of the package.

SciPy and PyTorch say which cells their matrices hold. FlashMask and FlashAttention run on GPUs
only, so their published rules are restated here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import fdma_module
import numpy as np
import pytest
from mask_examples import flash_mask_cells
from sequence_cells import offsets, sequence_cells, window_cells

fdma = pytest.importorskip("fdma")


def dense(cells: Any) -> Any:
    """Returns the mask of a boolean array of two to four dimensions."""
    return fdma.from_hf_mask(np.reshape(cells, (1,) * (4 - np.ndim(cells)) + np.shape(cells)))


# The tests below are of FlashMask.


FORMS = [(True, 1), (True, 2), (False, 2), (False, 4)]


@pytest.mark.parametrize(("causal", "columns"), FORMS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_flashmask_has_the_cells_of_its_rule(causal: bool, columns: int, dtype: Any) -> None:
    rng = np.random.default_rng(columns)
    rows = rng.integers(0, 91, (2, 3, 70, columns)).astype(dtype)
    mask = fdma.from_flashmask(rows, causal, q_len=90)
    cells = flash_mask_cells(rows, causal, 90)
    np.testing.assert_array_equal(mask.to_dense(), cells)
    arrays = mask.to_flashmask()
    assert arrays.startend_row_indices.dtype == np.int32
    np.testing.assert_array_equal(
        flash_mask_cells(arrays.startend_row_indices, arrays.causal, arrays.q_len), cells
    )
    assert fdma.from_flashmask(**arrays._asdict()) == mask
    # The import takes any form of the array; the export gives its canonical form, equal in bits.
    wide = mask.to_flashmask(causal=False, num_columns=4) if columns < 4 and not causal else arrays
    assert fdma.from_flashmask(**wide._asdict()) == mask
    again = fdma.from_flashmask(**arrays._asdict()).to_flashmask()
    np.testing.assert_array_equal(again.startend_row_indices, arrays.startend_row_indices)


def test_flashmask_heads_are_shared() -> None:
    rows = np.random.default_rng(3).integers(0, 51, (2, 2, 50, 1))
    mask = fdma.from_flashmask(rows, True, heads=6)
    expected = np.repeat(flash_mask_cells(rows, True, 50), 3, axis=1)
    np.testing.assert_array_equal(mask.to_dense(), expected)
    with pytest.raises(ValueError, match="heads"):
        fdma.from_flashmask(rows, True, heads=5)


def test_flashmask_rejects() -> None:
    rows = np.full((1, 1, 8, 1), 8)
    for change, causal, match in (
        (rows + 1, True, "startend_row_indices"),
        (rows[0], True, "dimensions"),
        (np.repeat(rows, 3, axis=3), True, "columns"),
        (rows, False, "columns"),
        (rows - 9, True, "startend_row_indices"),
        (rows + (1 << 33), True, "fit int32"),
    ):
        with pytest.raises(ValueError, match=match):
            fdma.from_flashmask(change, causal)
    with pytest.raises(TypeError, match="integers"):
        fdma.from_flashmask(rows.astype(np.float32), True)
    with pytest.raises(TypeError):
        fdma.from_flashmask("startend", True)
    scattered = dense(np.arange(64)[:, None] % 2 == np.zeros(64))
    with pytest.raises(NotImplementedError, match="key"):
        scattered.to_flashmask()
    with pytest.raises(ValueError):
        fdma.compile("causal", 8).to_flashmask(num_columns=3)
    with pytest.raises(NotImplementedError):
        fdma.compile("window(3)", 80).to_flashmask(causal=True)


# The tests below are of block sparse rows.


def random_blocks(seed: int, shape: tuple[int, int], block: tuple[int, int]) -> Any:
    rng = np.random.default_rng(seed)
    tiles = rng.random((shape[0] // block[0], shape[1] // block[1])) < 0.3
    return np.kron(tiles, np.ones(block, np.bool_)) & (rng.random(shape) < 0.8)


@pytest.mark.parametrize(
    "kind", ["bsr_array", "bsr_matrix", "csr_array", "csc_matrix", "coo_array"]
)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int64, np.float32])
def test_bsr_is_scipys(kind: str, dtype: Any) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    cells = random_blocks(1, (120, 200), (10, 10))
    for blocksize in ((1, 1), (24, 40), (60, 100)) if kind.startswith("bsr") else (None,):
        options = {} if blocksize is None else {"blocksize": blocksize}
        matrix = getattr(sparse, kind)(cells.astype(dtype), **options)
        mask = fdma.from_bsr(matrix)
        np.testing.assert_array_equal(mask.to_dense()[0, 0], cells)
    back = mask.to_bsr(block=(24 * 2, 16), pad=True)
    assert isinstance(back, sparse.bsr_array)
    assert back.shape == (144, 208)
    assert back.dtype == np.bool_
    np.testing.assert_array_equal(back.toarray()[:120, :200], cells)
    assert fdma.from_bsr(back, q_len=120, kv_len=200) == mask
    padded = np.zeros(back.shape, np.bool_)
    padded[:120, :200] = cells
    expected = sparse.bsr_array(padded, blocksize=(48, 16))
    expected.sort_indices()
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(back, name), getattr(expected, name))


def test_bsr_of_whole_blocks_needs_no_lengths() -> None:
    pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    mask = dense(random_blocks(2, (96, 160), (16, 32)))
    matrix = mask.to_bsr(block=(16, 32))
    assert matrix.shape == (96, 160)
    assert fdma.from_bsr(matrix) == mask
    with pytest.raises(ValueError, match="pad=True"):
        mask.to_bsr(block=64)
    arrays = mask.to_bsr(block=64, arrays=True)
    assert fdma.from_bsr(arrays) == mask
    assert fdma.from_bsr(tuple(arrays[:3]), q_len=96, kv_len=160) == mask


def test_bsr_with_stored_zeros_and_unsorted_columns() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    data = np.array([np.ones((2, 2)), np.zeros((2, 2)), np.eye(2)])
    matrix = sparse.bsr_array((data, [2, 0, 1], [0, 2, 3]), shape=(4, 6))
    np.testing.assert_array_equal(fdma.from_bsr(matrix).to_dense()[0, 0], matrix.toarray() != 0)
    twice = sparse.bsr_array((data, [2, 2, 1], [0, 2, 3]), shape=(4, 6))
    with pytest.raises(ValueError, match="sum_duplicates"):
        fdma.from_bsr(twice)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_bsr_is_torchs() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    cells = random_blocks(3, (64, 96), (16, 16))
    for dtype in (torch.bool, torch.uint8, torch.float32, torch.bfloat16):
        tensor = torch.from_numpy(cells).to(dtype)
        for theirs in (tensor.to_sparse_bsr((8, 32)), tensor.to_sparse_csr()):
            mask = fdma.from_bsr(theirs)
            np.testing.assert_array_equal(mask.to_dense()[0, 0], cells)
    ours = mask.to_bsr(block=16, device="cpu")
    theirs = torch.from_numpy(cells).to_sparse_bsr((16, 16))
    assert ours.layout == torch.sparse_bsr
    for name in ("crow_indices", "col_indices", "values"):
        assert torch.equal(getattr(ours, name)(), getattr(theirs, name)())
    assert fdma.from_bsr(ours) == mask
    assert isinstance(mask.to_bsr(block=16, arrays=True, device="cpu").data, torch.Tensor)
    with pytest.raises(TypeError, match="sparse_coo"):
        fdma.from_bsr(torch.from_numpy(cells).to_sparse())
    with pytest.raises(NotImplementedError, match="2 dimensions"):
        fdma.from_bsr(torch.ones(2, 32, 32).to_sparse_bsr((16, 16)))


@pytest.mark.parametrize("order", ["row", "column"])
def test_bsr_takes_the_conventions_of_cusparse(order: Any) -> None:
    """Indices count from 1, block columns are not sorted, and blocks are stored by columns."""
    rng = np.random.default_rng(7)
    blocks = rng.random((5, 7)) < 0.4
    data, indices, indptr = [], [], [1]
    cells = np.zeros((5 * 6, 7 * 10), np.bool_)
    for row in range(5):
        for col in rng.permutation(np.flatnonzero(blocks[row])).tolist():
            block = rng.random((6, 10)) < 0.5
            cells[row * 6 : row * 6 + 6, col * 10 : col * 10 + 10] = block
            data.append(block if order == "row" else block.ravel("F").reshape(6, 10))
            indices.append(col + 1)
        indptr.append(len(indices) + 1)
    mask = fdma.from_bsr((np.array(data), indices, indptr), kv_len=70, index_base=1, order=order)
    np.testing.assert_array_equal(mask.to_dense()[0, 0], cells)


def test_bsr_rejects() -> None:
    one = np.ones((1, 2, 2), np.uint8)
    for arrays, options, match in (
        ((one * 2, [0], [0, 1]), {"kv_len": 2}, r"data\[0, 0, 0\]: 2"),
        ((one * np.nan, [0], [0, 1]), {"kv_len": 2}, "data"),
        ((one, [1], [0, 1]), {"kv_len": 2}, "indices"),
        ((one, [0], [0, 2]), {"kv_len": 2}, "indptr"),
        ((one, [0], [0, 1]), {"kv_len": 1}, "data: cell"),
        ((one[0], [0], [0, 1]), {"kv_len": 2}, "data: expected 3 dimensions"),
        ((one, [0], [1, 2]), {"kv_len": 2}, "index_base"),
        ((one, [0], [0, 1]), {"kv_len": 2, "order": "F"}, "order"),
    ):
        with pytest.raises(ValueError, match=match):
            fdma.from_bsr(arrays, **options)
    with pytest.raises(TypeError, match="kv_len"):
        fdma.from_bsr((one, [0], [0, 1]))
    with pytest.raises(TypeError, match="sparse matrix"):
        fdma.from_bsr(np.eye(4))
    with pytest.raises(NotImplementedError):
        fdma.compile("causal", 128, heads=2).to_bsr()
    with pytest.raises(MemoryError):
        fdma.compile("causal", 128).to_bsr(max_bytes=100)


# The tests below are of cu_seqlens.


@pytest.mark.parametrize("window", [(-1, -1), (20, -1), (-1, 9), (20, 9), (0, 0), (500, 500)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("square", [False, True])
def test_cu_seqlens_are_flash_attentions(
    square: bool, causal: bool, window: tuple[int, int]
) -> None:
    q = [70, 0, 200, 1, 30, 5]
    k = q if square else [90, 7, 130, 40, 0, 5]
    cells = sequence_cells(q, k, causal, window)
    mask = fdma.from_cu_seqlens(
        offsets(q).astype(np.int32),
        None if square else offsets(k).tolist(),
        causal=causal,
        window_size=window,
        heads=2,
    )
    np.testing.assert_array_equal(mask.to_dense()[0], [cells, cells])
    # From the cells alone the export finds arguments with the same meaning.
    arguments = dense(cells).to_cu_seqlens()
    lengths = [np.diff(values).tolist() for values in arguments[:2]]
    again = sequence_cells(lengths[0], lengths[1], arguments.causal, arguments.window_size)
    np.testing.assert_array_equal(again, cells)
    assert fdma.from_cu_seqlens(**mask.to_cu_seqlens()._asdict()) == mask
    call = arguments.flash_attention()
    assert call["cu_seqlens_q"].dtype == call["cu_seqlens_k"].dtype == np.int32
    assert call["max_seqlen_q"] == max(lengths[0]) and call["max_seqlen_k"] == max(lengths[1])


def test_cu_seqlens_of_a_batch() -> None:
    """seqused_k gives the filled keys of a cache of 50 keys for each sequence."""
    used = [50, 20, 1, 0]
    mask = fdma.from_cu_seqlens(
        offsets([4] * 4), offsets([50] * 4), causal=True, seqused_k=used, packed=False, heads=2
    )
    cells = np.zeros((4, 2, 4, 50), np.bool_)
    for b, keys in enumerate(used):
        cells[b, :, :, :keys] = window_cells(4, keys, True, (-1, -1))
    np.testing.assert_array_equal(mask.to_dense(), cells)
    arguments = mask.to_cu_seqlens()
    assert arguments.seqused_k.tolist() == used and arguments.seqused_q is None
    assert not arguments.packed and arguments.heads == 2
    assert "seqused_k" in arguments.flash_attention()
    assert fdma.from_cu_seqlens(**arguments._asdict()) == mask


def test_cu_seqlens_come_as_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    offsets = torch.tensor([0, 30, 100], dtype=torch.int32)
    mask = fdma.from_cu_seqlens(offsets, causal=True)
    arguments = mask.to_cu_seqlens(device="cpu")
    assert torch.equal(arguments.cu_seqlens_q, offsets)
    assert arguments.cu_seqlens_k.dtype == torch.int32
    assert arguments.flash_attention()["max_seqlen_k"] == 70
    rows = mask.to_flashmask(device="cpu").startend_row_indices
    assert rows.dtype == torch.int32 and fdma.from_flashmask(rows, True) == mask


def test_cu_seqlens_rejects() -> None:
    for changes, match in (
        ({"cu_seqlens_q": [1, 2]}, "cu_seqlens_q"),
        ({"cu_seqlens_q": [0, 3, 2]}, "cu_seqlens_q"),
        ({"cu_seqlens_k": [0, 1, 2, 3]}, "cu_seqlens"),
        ({"window_size": (-2, 0)}, "window"),
        ({"seqused_k": [9, 0]}, "seqused_k"),
        ({"cu_seqlens_q": [[0, 3]]}, "dimension"),
        ({"block": 100}, "block"),
    ):
        with pytest.raises(ValueError, match=match):
            fdma.from_cu_seqlens(**({"cu_seqlens_q": [0, 2, 5]} | changes))
    with pytest.raises(TypeError, match="window_size"):
        fdma.from_cu_seqlens([0, 2], window_size=(1, 2, 3))
    with pytest.raises(NotImplementedError, match="key"):
        fdma.compile("causal | k < 5", 40).to_cu_seqlens()


def test_numpy_alone_suffices() -> None:
    """Imports and exports of NumPy arrays and lists import no other package."""
    program = """
import sys
import fdma

mask = fdma.compile("causal & documents(lengths=@n)", 48, n=[20, 28])
assert fdma.from_flex(mask.to_flex_arrays()) == mask
assert fdma.from_flashmask(**mask.to_flashmask()._asdict()) == mask
assert fdma.from_cu_seqlens([0, 20, 48], causal=True) == mask
assert fdma.from_bsr(mask.to_bsr(block=16, arrays=True)) == mask
assert fdma.from_hf_mask(mask.to_hf_mask("float16")) == mask
assert fdma.from_hf_padding([[1, 1]], True) == fdma.compile("causal", 2)
print(sorted({"torch", "scipy", "h5py", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.fspath(fdma_module.FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
