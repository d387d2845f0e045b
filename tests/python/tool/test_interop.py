"""Tests interop layouts in fdma-maskc against the code of the other systems, where installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interop_groups import fill, read, write_dense
from mask_examples import flash_mask_cells
from maskc_tool import maskc, maskc_json, needs_tool

pytestmark = needs_tool

FLEX_FIELDS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


def flex_cases() -> list[Any]:
    """Yields mask_mod, the same as a specification, q_len, kv_len, (batch, heads), BLOCK_SIZE."""

    def case(
        name: str,
        mask_mod: Any,
        spec: str,
        lengths: tuple[int, int],
        pairs: tuple[int | None, int | None] = (None, None),
        block: tuple[int, int] = (128, 128),
    ) -> Any:
        return pytest.param(mask_mod, spec, lengths, pairs, block, id=name)

    return [
        case("causal", lambda b, h, q, k: q >= k, "q >= k", (300, 500)),
        case(
            "window",
            lambda b, h, q, k: (q >= k) & (q - k < 200),
            "q >= k & q - k < 200",
            (640, 640),
        ),
        case("stride", lambda b, h, q, k: abs(q - k) % 3 == 0, "abs(q - k) % 3 == 0", (130, 257)),
        case("full", lambda b, h, q, k: q >= 0, "true", (256, 384)),
        case("empty", lambda b, h, q, k: q < 0, "false", (200, 384)),
        case("one cell", lambda b, h, q, k: q == k, "q == k", (1, 1)),
        case("prefix", lambda b, h, q, k: (q >= k) | (k < 300), "q >= k | k < 300", (1000, 1000)),
        case(
            "documents",
            lambda b, h, q, k: (q // 333 == k // 333) & (q >= k),
            "q // 333 == k // 333 & q >= k",
            (1024, 1024),
        ),
        case(
            "small blocks",
            lambda b, h, q, k: (q >= k) & (q - k < 100),
            "q >= k & q - k < 100",
            (500, 777),
            block=(64, 32),
        ),
        case(
            "heads",
            lambda b, h, q, k: (q >= k) & (q - k < 64 * (h + 1)),
            "q >= k & q - k < 64 * (h + 1)",
            (500, 500),
            (None, 3),
        ),
        case(
            "batch and heads",
            lambda b, h, q, k: (q >= k) & (k >= 150 * b) & (q - k < 64 * (h + 1)),
            "q >= k & k >= 150 * b & q - k < 64 * (h + 1)",
            (500, 500),
            (3, 2),
            (64, 128),
        ),
    ]


@pytest.mark.parametrize(("mask_mod", "spec", "lengths", "pairs", "block"), flex_cases())
def test_flex_arrays_are_those_of_create_block_mask(
    tmp_path: Path,
    mask_mod: Any,
    spec: str,
    lengths: tuple[int, int],
    pairs: tuple[int | None, int | None],
    block: tuple[int, int],
) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch is not installed")
    theirs = flex.create_block_mask(mask_mod, *pairs, *lengths, device="cpu", BLOCK_SIZE=block)
    cells = flex.create_mask(mask_mod, pairs[0] or 1, pairs[1] or 1, *lengths, device="cpu").numpy()
    fields = {name: getattr(theirs, name).numpy() for name in FLEX_FIELDS}
    fill(
        tmp_path / "flex.h5",
        "block_mask",
        seq_lengths=theirs.seq_lengths,
        BLOCK_SIZE=theirs.BLOCK_SIZE,
        **fields,
    )
    write_dense(tmp_path / "dense.h5", cells)
    source = ("flex.h5:/block_mask", "--from", "flex")
    maskc(tmp_path, "convert", *source, "--cells", "dense.h5:/mask", "-o", "by_cells.h5")
    maskc(tmp_path, "convert", *source, "--spec", spec, "-o", "by_spec.h5")
    maskc(tmp_path, "diff", "by_cells.h5", "by_spec.h5")
    maskc(tmp_path, "convert", "dense.h5:/mask", "-o", "mask.h5")
    maskc(tmp_path, "diff", "by_cells.h5", "mask.h5")
    # The export equals the result of create_block_mask in bits and types.
    words = ("mask.h5", "--to", "flex", "--block", f"{block[0]}x{block[1]}", "-o", "ours.h5")
    document = maskc_json(tmp_path, "convert", *words)
    ours = read(tmp_path / "ours.h5", "block_mask")
    for name, expected in fields.items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)
    assert tuple(ours["seq_lengths"]) == theirs.seq_lengths
    assert tuple(ours["BLOCK_SIZE"]) == theirs.BLOCK_SIZE
    assert {array["name"] for array in document["peer"]["arrays"]} == set(ours)
    # The import of our export uses its own bitmaps.
    maskc(tmp_path, "convert", "ours.h5:/block_mask", "--from", "flex", "-o", "back.h5")
    maskc(tmp_path, "diff", "back.h5", "mask.h5")


def small_flex() -> dict[str, Any]:
    """Returns a mask of 256 x 256 in blocks of 128, full on the diagonal and empty elsewhere."""
    return {
        "seq_lengths": np.array([256, 256]),
        "BLOCK_SIZE": np.array([128, 128]),
        "kv_num_blocks": np.zeros((1, 1, 2), np.int32),
        "kv_indices": np.zeros((1, 1, 2, 2), np.int32),
        "full_kv_num_blocks": np.ones((1, 1, 2), np.int32),
        "full_kv_indices": np.array([[[[0, -1], [1, -1]]]], np.int32),
    }


def test_flex_takes_the_arrays_of_any_integer_type(tmp_path: Path) -> None:
    fields = {name: values.astype(np.int64) for name, values in small_flex().items()}
    fill(tmp_path / "flex.h5", "g", **fields)
    document = maskc_json(tmp_path, "convert", "flex.h5:/g", "--from", "flex", "-o", "out.h5")
    assert document["mask"]["allowed_pairs"] == 2 * 128 * 128


def complaint(folder: Path, *words: str, status: int) -> None:
    maskc(folder, "convert", *words, "-o", "out.h5", status=status)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"kv_indices": None}, 1),
        ({"seq_lengths": None}, 1),
        ({"BLOCK_SIZE": np.array([0, 128])}, 1),
        ({"BLOCK_SIZE": np.array([128])}, 1),
        ({"BLOCK_SIZE": np.array([2048, 2048])}, 1),
        ({"kv_num_blocks": np.zeros((1, 2), np.int32)}, 1),
        ({"kv_num_blocks": np.zeros((1, 1, 2), np.float32)}, 1),
        ({"kv_num_blocks": np.full((1, 1, 2), 1 << 40)}, 1),
        ({"full_kv_num_blocks": np.full((1, 1, 2), 2, np.int32)}, 1),
        ({"full_kv_indices": np.zeros((1, 1, 2, 3), np.int32)}, 1),
        ({"kv_indexes": np.zeros(3)}, 1),
        ({"kv_num_blocks": np.ones((1, 1, 2), np.int32)}, 1),
        ({"mask_mod": "causal"}, 2),
    ],
)
def test_flex_rejects(tmp_path: Path, change: dict[str, Any], status: int) -> None:
    fields = {k: v for k, v in (small_flex() | change).items() if v is not None}
    fill(tmp_path / "flex.h5", "g", **fields)
    complaint(tmp_path, "flex.h5:/g", "--from", "flex", status=status)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(("causal", "columns"), [(True, 1), (True, 2), (False, 2), (False, 4)])
def test_flash_mask_has_the_cells_of_its_rule(tmp_path: Path, causal: bool, columns: int) -> None:
    rng = np.random.default_rng(columns)
    rows = rng.integers(0, 91, (2, 3, 70, columns)).astype(np.int32)
    fill(tmp_path / "flash.h5", "g", startend_row_indices=rows, causal=causal, q_len=90)
    write_dense(tmp_path / "dense.h5", flash_mask_cells(rows, causal, 90))
    maskc(tmp_path, "convert", "flash.h5:/g", "--from", "flash_mask", "-o", "out.h5")
    maskc(tmp_path, "convert", "dense.h5:/mask", "-o", "mask.h5")
    maskc(tmp_path, "diff", "out.h5", "mask.h5")
    maskc(tmp_path, "convert", "mask.h5", "--to", "flash_mask", "-o", "again.h5")
    again = read(tmp_path / "again.h5", "flash_mask")
    cells = flash_mask_cells(again["startend_row_indices"], bool(again["causal"]), 90)
    np.testing.assert_array_equal(cells, flash_mask_cells(rows, causal, 90))


@pytest.mark.parametrize(
    "change",
    [
        {"startend_row_indices": np.full((1, 1, 8, 1), 9)},
        {"startend_row_indices": np.zeros((1, 8, 1), np.int32)},
        {"startend_row_indices": np.zeros((1, 1, 8, 3), np.int32)},
        {"causal": 2},
        {"causal": None},
        {"block_mask": np.zeros((1, 1, 1, 1), np.int32)},
    ],
)
def test_flash_mask_rejects(tmp_path: Path, change: dict[str, Any]) -> None:
    fields = {"startend_row_indices": np.full((1, 1, 8, 1), 8), "causal": 1}
    fields = {k: v for k, v in (fields | change).items() if v is not None}
    fill(tmp_path / "flash.h5", "g", **fields)
    complaint(tmp_path, "flash.h5:/g", "--from", "flash_mask", status=1)


@pytest.mark.parametrize("blocksize", [(1, 1), (6, 5), (24, 40), (60, 100)])
def test_bsr_is_scipys(tmp_path: Path, blocksize: tuple[int, int]) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    rng = np.random.default_rng(blocksize[0])
    dense = np.kron(rng.random((12, 20)) < 0.3, np.ones((10, 10), bool))
    dense &= rng.random(dense.shape) < 0.8
    matrix = sparse.bsr_matrix(dense, blocksize=blocksize)
    fields = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    fill(tmp_path / "bsr.h5", "g", **fields)
    write_dense(tmp_path / "dense.h5", dense)
    maskc(tmp_path, "convert", "bsr.h5:/g", "--from", "bsr", "-o", "out.h5")
    maskc(tmp_path, "convert", "dense.h5:/mask", "-o", "mask.h5")
    maskc(tmp_path, "diff", "out.h5", "mask.h5")
    maskc(tmp_path, "convert", "mask.h5", "--to", "bsr", "--block", "48x16", "-o", "again.h5")
    ours = read(tmp_path / "again.h5", "bsr")
    again = sparse.bsr_matrix((ours["data"], ours["indices"], ours["indptr"]), ours["shape"])
    np.testing.assert_array_equal(again.toarray()[:120, :200], dense)
    assert again.nnz // (48 * 16) == len(ours["indices"])
    assert int(ours["data"].sum()) == int(dense.sum())


@pytest.mark.parametrize("order", ["row", "column"])
def test_bsr_takes_the_conventions_of_cusparse(tmp_path: Path, order: str) -> None:
    """Indices count from 1, block columns are not sorted, and blocks are stored by columns."""
    rng = np.random.default_rng(7)
    blocks = rng.random((5, 7)) < 0.4
    data, indices, indptr = [], [], [1]
    dense = np.zeros((5 * 6, 7 * 10), bool)
    for row in range(5):
        for col in rng.permutation(np.flatnonzero(blocks[row])).tolist():
            cells = rng.random((6, 10)) < 0.5
            dense[row * 6 : row * 6 + 6, col * 10 : col * 10 + 10] = cells
            data.append(
                cells if order == "row" else np.asfortranarray(cells).ravel("F").reshape(6, 10)
            )
            indices.append(col + 1)
        indptr.append(len(indices) + 1)
    fields = {"data": np.array(data), "indices": indices, "indptr": indptr, "shape": dense.shape}
    fill(tmp_path / "bsr.h5", "g", **fields, index_base=1, block_order=2 if order == "row" else 1)
    write_dense(tmp_path / "dense.h5", dense)
    maskc(tmp_path, "convert", "bsr.h5:/g", "--from", "bsr", "-o", "out.h5")
    maskc(tmp_path, "convert", "dense.h5:/mask", "-o", "mask.h5")
    maskc(tmp_path, "diff", "out.h5", "mask.h5")


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support")
def test_bsr_is_torchs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dense = np.random.default_rng(3).random((60, 100)) < 0.02
    theirs = torch.from_numpy(dense.astype(np.uint8)).to_sparse_bsr((6, 10))
    fill(
        tmp_path / "bsr.h5",
        "g",
        data=theirs.values().numpy(),
        indices=theirs.col_indices().numpy(),
        indptr=theirs.crow_indices().numpy(),
        shape=dense.shape,
    )
    write_dense(tmp_path / "dense.h5", dense)
    maskc(tmp_path, "convert", "bsr.h5:/g", "--from", "bsr", "-o", "out.h5")
    maskc(tmp_path, "convert", "dense.h5:/mask", "-o", "mask.h5")
    maskc(tmp_path, "diff", "out.h5", "mask.h5")


@pytest.mark.parametrize(
    "change",
    [
        {"data": np.full((1, 2, 2), 2, np.uint8)},
        {"data": np.ones((1, 2, 2), np.float32)},
        {"shape": np.array([2, 3])},
        {"shape": np.array([4, 2])},
        {"indices": np.array([1])},
        {"indptr": np.array([0, 2])},
        {"q_len": 5},
    ],
)
def test_bsr_rejects(tmp_path: Path, change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "data": np.ones((1, 2, 2), np.uint8),
        "indices": np.array([0]),
        "indptr": np.array([0, 1]),
        "shape": np.array([2, 2]),
    }
    fill(tmp_path / "bsr.h5", "g", **(fields | change))
    complaint(tmp_path, "bsr.h5:/g", "--from", "bsr", status=1)
