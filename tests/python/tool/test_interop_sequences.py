"""Tests cu_seqlens and Hugging Face's masks in fdma-maskc.

FlashAttention runs on GPUs only, so its rule is restated here from its documentation. Hugging
Face's own functions define its masks where transformers is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from interop_groups import fill, read, write_dense
from maskc_tool import maskc, maskc_json, needs_tool
from sequence_cells import offsets, sequence_cells, window_cells

pytestmark = needs_tool


def same_as_dense(folder: Path, peer: str, layout: str, cells: Any) -> None:
    """The mask of the group, in out.h5, has these cells; mask.h5 is made of the cells alone."""
    write_dense(folder / "dense.h5", cells)
    maskc(folder, "convert", peer, "--from", layout, "--force", "-o", "out.h5")
    dims = {2: "qk", 3: "bqk", 4: "bhqk"}[cells.ndim]
    maskc(folder, "convert", "dense.h5:/mask", "--dims", dims, "--force", "-o", "mask.h5")
    maskc(folder, "diff", "out.h5", "mask.h5")


@pytest.mark.parametrize("window", [(-1, -1), (20, -1), (-1, 9), (20, 9), (0, 0), (500, 500)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("square", [False, True])
def test_cu_seqlens_are_flash_attentions(
    tmp_path: Path, square: bool, causal: bool, window: tuple[int, int]
) -> None:
    q = [70, 0, 200, 1, 30, 5]
    k = q if square else [90, 7, 130, 40, 0, 5]
    cells = sequence_cells(q, k, causal, window)
    fill(
        tmp_path / "varlen.h5",
        "g",
        cu_seqlens_q=offsets(q),
        cu_seqlens_k=offsets(k),
        causal=causal,
        window_size=window,
    )
    same_as_dense(tmp_path, "varlen.h5:/g", "cu_seqlens", cells)
    # From the cells alone the export finds arguments with the same meaning.
    maskc(tmp_path, "convert", "mask.h5", "--to", "cu_seqlens", "-o", "again.h5")
    again = read(tmp_path / "again.h5", "cu_seqlens")
    lengths = [np.diff(again[name]).tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    left, right = again["window_size"].tolist()
    np.testing.assert_array_equal(
        sequence_cells(lengths[0], lengths[1], bool(again["causal"]), (left, right)), cells
    )
    assert len(lengths[0]) <= len(q) + 3


def test_cu_seqlens_of_a_batch(tmp_path: Path) -> None:
    """seqused_k gives the filled keys of a cache of 50 keys for each sequence."""
    used = [50, 20, 1, 0]
    fill(
        tmp_path / "varlen.h5",
        "g",
        cu_seqlens_q=offsets([4] * 4),
        cu_seqlens_k=offsets([50] * 4),
        seqused_k=used,
        causal=1,
        packed=0,
        num_heads=2,
    )
    cells = np.zeros((4, 2, 4, 50), bool)
    for b, keys in enumerate(used):
        cells[b, :, :, :keys] = window_cells(4, keys, True, (-1, -1))
    same_as_dense(tmp_path, "varlen.h5:/g", "cu_seqlens", cells)
    maskc(tmp_path, "convert", "mask.h5", "--to", "cu_seqlens", "-o", "again.h5")
    again = read(tmp_path / "again.h5", "cu_seqlens")
    assert again["seqused_k"].tolist() == used
    assert "seqused_q" not in again and not again["packed"] and again["num_heads"] == 2


def test_cu_seqlens_names_the_cell_that_does_not_fit(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal | k < 5", "--q-len", "40", "-o", "prefix.h5")
    maskc(tmp_path, "convert", "prefix.h5", "--to", "cu_seqlens", "-o", "no.h5", status=4)
    assert not (tmp_path / "no.h5").exists()


def hf_cases() -> list[Any]:
    """Yields attention_mask [batch, keys], query rows, their first position, decoder or encoder."""
    rng = np.random.default_rng(11)
    right = np.arange(33)[None, :] < np.array([[33], [20], [1]])
    left = right[:, ::-1]
    return [
        pytest.param(right, 33, 0, True, id="right, decoder"),
        pytest.param(left, 33, 0, True, id="left, decoder"),
        pytest.param(right, 33, 0, False, id="right, encoder"),
        pytest.param(left, 1, 32, True, id="left, one token after a cache"),
        pytest.param(left, 5, 28, True, id="left, five tokens after a cache"),
        pytest.param(rng.random((4, 33)) < 0.7, 33, 0, True, id="holes, decoder"),
    ]


@pytest.mark.parametrize(("tokens", "q_len", "first", "causal"), hf_cases())
def test_hf_masks_are_hugging_faces(
    tmp_path: Path, tokens: Any, q_len: int, first: int, causal: bool
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    masks = pytest.importorskip(
        "transformers.masking_utils", reason="transformers is not installed"
    )
    arguments: dict[str, Any] = {
        "batch_size": len(tokens),
        "q_length": q_len,
        "kv_length": tokens.shape[1],
        "q_offset": first,
        "mask_function": masks.causal_mask_function
        if causal
        else masks.bidirectional_mask_function,
        "attention_mask": torch.from_numpy(np.ascontiguousarray(tokens)),
    }
    cells = masks.sdpa_mask(**arguments, allow_is_causal_skip=False).numpy()
    assert cells.shape == (len(tokens), 1, q_len, tokens.shape[1])
    fill(
        tmp_path / "padding.h5",
        "g",
        attention_mask=tokens.astype(np.int64),
        causal=causal,
        q_len=q_len,
    )
    same_as_dense(tmp_path, "padding.h5:/g", "hf_padding", cells)
    maskc(tmp_path, "convert", "mask.h5", "--to", "hf_padding", "-o", "again.h5")
    if causal and q_len > 1 and np.asarray(tokens)[:, :-1].any():
        assert read(tmp_path / "again.h5", "hf_padding")["causal"]
    maskc(tmp_path, "convert", "again.h5:/hf_padding", "--from", "hf_padding", "-o", "back.h5")
    maskc(tmp_path, "diff", "back.h5", "mask.h5")
    # The masks of four dimensions are SDPA's, and the additive ones of eager attention in each
    # type.
    fill(tmp_path / "sdpa.h5", "g", attention_mask=cells)
    same_as_dense(tmp_path, "sdpa.h5:/g", "hf_mask", cells)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        eager = masks.eager_mask(**arguments, dtype=dtype)
        with h5py.File(tmp_path / "eager.h5", "w") as file:
            group = file.create_group("g")
            if dtype is torch.bfloat16:
                group["attention_mask"] = eager.view(torch.uint16).numpy()
                group["attention_mask"].attrs["dtype"] = "bfloat16"
            else:
                group["attention_mask"] = eager.numpy()
            widened = file.create_group("widened")
            widened["attention_mask"] = eager.double().numpy()
        same_as_dense(tmp_path, "eager.h5:/g", "hf_mask", cells)
        same_as_dense(tmp_path, "eager.h5:/widened", "hf_mask_additive", cells)
        if dtype is torch.float32:
            maskc(tmp_path, "convert", "mask.h5", "--to", "hf_mask_additive", "-o", "ours.h5")
            ours = read(tmp_path / "ours.h5", "hf_mask")["attention_mask"]
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, eager.numpy())
    maskc(tmp_path, "convert", "mask.h5", "--to", "hf_mask", "-o", "ours.h5")
    ours = read(tmp_path / "ours.h5", "hf_mask")["attention_mask"]
    assert ours.dtype == np.bool_
    np.testing.assert_array_equal(ours, cells)


def test_hf_mask_holds_heads(tmp_path: Path) -> None:
    cells = np.random.default_rng(5).random((2, 3, 40, 50)) < 0.5
    for values in (
        cells,
        cells.astype(np.uint8),
        np.where(cells, np.float16(-0.0), np.float16(-np.inf)),
        np.where(cells, 0.0, -65504.0).astype(np.float32),
    ):
        fill(tmp_path / "hf.h5", "g", attention_mask=values)
        same_as_dense(tmp_path, "hf.h5:/g", "hf_mask", cells)
    document = maskc_json(tmp_path, "convert", "mask.h5", "--to", "hf_mask", "-o", "ours.h5")
    assert document["peer"]["arrays"] == [
        {"name": "attention_mask", "dtype": "boolean", "extents": [2, 3, 40, 50]}
    ]
