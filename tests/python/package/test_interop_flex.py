"""Tests import and export of FlexAttention's BlockMask against PyTorch's own functions."""

from __future__ import annotations

from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")
fdma = pytest.importorskip("fdma")

TENSORS = tuple(
    f"{table}_{part}"
    for table in ("kv", "full_kv", "q", "full_q")
    for part in ("num_blocks", "indices")
)
DOCUMENTS = torch.tensor(np.repeat([0, 1, 2, 3], [100, 257, 130, 13]))
PREFIX = torch.tensor([0, 40, 300])


def same_document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def prefix_of_element(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) | (k < PREFIX[b])


def case(
    name: str,
    mask_mod: Any,
    lengths: tuple[int, int],
    pairs: tuple[int | None, int | None] = (None, None),
    block: Any = 128,
) -> Any:
    return pytest.param(mask_mod, lengths, pairs, block, id=name)


MASKS = [
    case("causal", lambda b, h, q, k: q >= k, (300, 500)),
    case("causal, whole tiles", lambda b, h, q, k: q >= k, (512, 512)),
    case("causal, one tile", lambda b, h, q, k: q >= k, (100, 100)),
    case("window", lambda b, h, q, k: (q >= k) & (q - k < 200), (640, 640)),
    case("window, small tiles", lambda b, h, q, k: (q >= k) & (q - k < 99), (500, 777), (1, 1), 64),
    case("oblong tiles", lambda b, h, q, k: abs(q - k) < 70, (333, 777), block=(64, 32)),
    case("stride", lambda b, h, q, k: (q - k) % 3 == 0, (130, 257)),
    case("full", lambda b, h, q, k: q >= 0, (256, 384)),
    case("full, ragged", lambda b, h, q, k: q >= 0, (250, 390)),
    case("empty", lambda b, h, q, k: q < 0, (200, 384)),
    case("one cell", lambda b, h, q, k: q == k, (1, 1)),
    case("one row", lambda b, h, q, k: k < 700, (1, 1025)),
    case("prefix", lambda b, h, q, k: (q >= k) | (k < 300), (1000, 1000)),
    case("documents", same_document, (500, 500)),
    case("heads", lambda b, h, q, k: (q >= k) & (q - k < 64 * (h + 1)), (500, 500), (None, 3)),
    case("batch", prefix_of_element, (500, 500), (3, None)),
    case(
        "batch and heads",
        lambda b, h, q, k: (q >= k) & (k >= 150 * b) & (q - k < 64 * (h + 1)),
        (500, 500),
        (3, 2),
        (64, 128),
    ),
    case("alike in every pair", lambda b, h, q, k: q >= k, (200, 200), (2, 3)),
]


def cells_of(mask_mod: Any, pairs: tuple[int | None, int | None], lengths: tuple[int, int]) -> Any:
    """Returns the cells [batch, heads, q_len, kv_len] that PyTorch evaluates."""
    cells = flex_attention.create_mask(
        mask_mod, pairs[0] or 1, pairs[1] or 1, *lengths, device="cpu"
    )
    return cells.numpy()


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    """Every tensor is equal in bits, and has the same type, extents and strides."""
    assert ours.seq_lengths == theirs.seq_lengths
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in TENSORS:
        mine, expected = getattr(ours, name), getattr(theirs, name)
        if expected is None:
            assert mine is None, name
            continue
        assert mine.dtype == expected.dtype, name
        assert mine.is_contiguous(), name
        assert torch.equal(mine, expected), name


@pytest.mark.parametrize(("mask_mod", "lengths", "pairs", "block"), MASKS)
@pytest.mark.parametrize("separate", [True, False])
def test_flex_goes_in_and_comes_out_to_the_bit(
    mask_mod: Any,
    lengths: tuple[int, int],
    pairs: tuple[int | None, int | None],
    block: Any,
    separate: bool,
) -> None:
    theirs = flex_attention.create_block_mask(
        mask_mod, *pairs, *lengths, device="cpu", BLOCK_SIZE=block, separate_full_blocks=separate
    )
    cells = cells_of(mask_mod, pairs, lengths)
    mask = fdma.from_flex(theirs)
    np.testing.assert_array_equal(mask.to_dense(), cells)
    assert tuple(mask.block) == theirs.BLOCK_SIZE
    ours = mask.to_flex("cpu", block=block, separate_full_blocks=separate)
    assert_same_arrays(ours, theirs)
    # The exported function has the cells, and makes the same BlockMask again.
    np.testing.assert_array_equal(cells_of(ours.mask_mod, pairs, lengths), cells)
    again = flex_attention.create_block_mask(
        ours.mask_mod,
        *pairs,
        *lengths,
        device="cpu",
        BLOCK_SIZE=block,
        separate_full_blocks=separate,
    )
    assert_same_arrays(again, theirs)
    assert fdma.from_flex(ours) == mask
    # The import runs with the original function, which is checked, and without PyTorch.
    assert_same_arrays(
        mask.to_flex("cpu", mask_mod, block=block, separate_full_blocks=separate), theirs
    )
    fields = mask.to_flex_arrays(block=block, separate_full_blocks=separate)
    for name in TENSORS:
        if name in fields:
            np.testing.assert_array_equal(fields[name], getattr(theirs, name).numpy())
    assert fdma.from_flex(fields) == mask


@pytest.mark.parametrize(
    ("mask_mod", "lengths", "pairs"),
    [
        (lambda b, h, q, k: (q >= k) & (q - k < 90 * (h + 1)), (200, 200), (None, 4)),
        (lambda b, h, q, k: (q >= k) & (k >= 20 * b), (130, 300), (2, None)),
        (lambda b, h, q, k: (q >= k) & (k >= 20 * b) & ((q + h) % 3 > 0), (256, 150), (2, 4)),
        (lambda b, h, q, k: q >= k + 30, (200, 200), (None, None)),
    ],
)
def test_flex_attention_runs_the_exported_mask(
    mask_mod: Any, lengths: tuple[int, int], pairs: tuple[int | None, int | None]
) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, lengths[0], 16)
    k, v = torch.randn(2, 2, 4, lengths[1], 16).unbind()
    mask = fdma.from_flex(flex_attention.create_block_mask(mask_mod, *pairs, *lengths, "cpu"))
    exported = mask.to_flex("cpu", block=64)
    out = flex_attention.flex_attention(q, k, v, block_mask=exported)
    cells = torch.from_numpy(mask.to_dense())
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=cells)
    rows = cells.any(-1).expand(2, 4, -1)  # FlexAttention gives 0 in rows without keys
    torch.testing.assert_close(out[rows], expected[rows], rtol=1e-4, atol=1e-5)
    assert not out[~rows].any()


def test_functions_that_are_combined_with_the_exported_one_trace() -> None:
    """The table function is ordinary arithmetic, so and_masks of it is a function like others."""
    mask = fdma.compile("causal & (q + k) % 5 != 1", 300)
    combined = flex_attention.and_masks(mask.to_flex("cpu").mask_mod, lambda b, h, q, k: q - k < 77)
    theirs = flex_attention.create_block_mask(combined, None, None, 300, 300, "cpu")
    expected = fdma.compile("causal & (q + k) % 5 != 1 & q - k < 77", 300)
    assert fdma.from_flex(theirs) == expected


def causal_block_mask(q_len: int = 300, kv_len: int = 300) -> Any:
    return flex_attention.create_block_mask(
        lambda b, h, q, k: q >= k, None, None, q_len, kv_len, "cpu"
    )


def test_cells_may_come_from_a_second_mask() -> None:
    expected = fdma.compile("causal", 300)
    for cells in (expected, "causal", fdma.causal(), lambda b, h, q, k: k <= q):
        assert fdma.from_flex(causal_block_mask(), cells=cells) == expected


def test_padding_order_and_width_of_the_tables_are_free() -> None:
    """PyTorch's tests pad with -1, others with zeros; lists need not ascend."""
    fields = fdma.compile("causal", 1000).to_flex_arrays()
    for table in ("kv", "full_kv", "q", "full_q"):
        counts, indices = fields[f"{table}_num_blocks"], fields[f"{table}_indices"].copy()
        for row in np.ndindex(counts.shape):
            used = indices[row][: counts[row]].copy()
            indices[row] = -1
            indices[row][: len(used)] = used if table == "kv" else used[::-1]
        fields[f"{table}_indices"] = indices.astype(np.int64)
    widest = max(int(fields[f"{table}_num_blocks"].max()) for table in ("kv", "full_kv"))
    for table in ("kv", "full_kv"):
        fields[f"{table}_indices"] = fields[f"{table}_indices"][..., :widest]
    assert fdma.from_flex(fields) == fdma.compile("causal", 1000)


def test_a_function_that_cannot_be_traced_is_sampled_on_request() -> None:
    def odd(b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.fmod(q * 7 + k, 5).to(torch.float32).sin() > 0

    theirs = flex_attention.create_block_mask(odd, None, None, 200, 150, "cpu")
    with pytest.raises(NotImplementedError):
        fdma.from_flex(theirs)
    mask = fdma.from_flex(theirs, sample=True)
    np.testing.assert_array_equal(mask.to_dense(), cells_of(odd, (1, 1), (200, 150)))
    with pytest.raises(NotImplementedError):
        mask.to_flex("cpu", odd)
    assert_same_arrays(mask.to_flex("cpu", odd, sample=True), theirs)
    assert mask.to_flex("cpu", odd, check=False).mask_mod is odd


def test_a_wrong_function_is_refused() -> None:
    mask = fdma.compile("causal", 300)
    with pytest.raises(ValueError, match="mask_mod: other cells"):
        mask.to_flex("cpu", lambda b, h, q, k: q > k)
    assert mask.to_flex("cpu", lambda b, h, q, k: q > k, check=False)
    # The function of another export keeps its cells, also where its mask has one head.
    of_all_heads = fdma.compile("causal & (h >= 0)", 300, heads=3)
    function = mask.to_flex("cpu", block=64).mask_mod
    assert of_all_heads.to_flex("cpu", function).mask_mod is function
    with pytest.raises(ValueError, match="mask_mod: other cells"):
        fdma.compile("causal & q - k != h", 300, heads=3).to_flex("cpu", function)


def test_lists_without_a_function_are_taken_whole_on_request() -> None:
    """Compiled kernels compute the listed tiles whole if from_kv_blocks gets no mask_mod."""
    tiles = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], np.bool_)
    counts = torch.tensor(tiles.sum(1)[None, None], dtype=torch.int32)
    indices = torch.tensor(np.argsort(~tiles, 1, kind="stable")[None, None], dtype=torch.int32)
    theirs = flex_attention.BlockMask.from_kv_blocks(
        counts, indices, BLOCK_SIZE=64, seq_lengths=(150, 180)
    )
    with pytest.raises(ValueError) as caught:
        fdma.from_flex(theirs)
    assert str(caught.value) == (
        "batch 0, head 0, tile (0, 1): not listed, but full in the mask that gives the cells; if "
        "the lists are a selection of blocks without a function, fdma.from_flex(block_mask, "
        "tiles_only=True) takes the listed tiles whole, as PyTorch's compiled kernels do"
    )
    cells = np.kron(tiles, np.ones((64, 64), np.bool_))[:150, :180]
    mask = fdma.from_flex(theirs, tiles_only=True)
    np.testing.assert_array_equal(mask.to_dense()[0, 0], cells)
    # This mask has full and partial lists.
    everything = fdma.from_flex(causal_block_mask(), tiles_only=True)
    np.testing.assert_array_equal(
        everything.to_dense()[0, 0],
        np.kron(np.tri(3, dtype=np.bool_), np.ones((128, 128), np.bool_))[:300, :300],
    )
    with pytest.raises(TypeError, match="tiles_only"):
        fdma.from_flex(theirs, "true", tiles_only=True)
    theirs.BLOCK_SIZE = (1 << 30, 1 << 30)
    with pytest.raises(NotImplementedError, match="BLOCK_SIZE"):
        fdma.from_flex(theirs, tiles_only=True)


def test_lists_with_fewer_tiles_than_the_function() -> None:
    """As those of modded-nanogpt: a short window is made of the lists of a long one."""

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def lists(tiles: Any) -> tuple[Any, Any]:
        order = np.argsort(~tiles, 1, kind="stable")[None, None]
        counts = tiles.sum(1)[None, None]
        return torch.tensor(counts, dtype=torch.int32), torch.tensor(order, dtype=torch.int32)

    diagonal, below = np.eye(4, dtype=bool), np.eye(4, k=-1, dtype=bool)
    words = {"BLOCK_SIZE": 64, "seq_lengths": (250, 250)}
    make = flex_attention.BlockMask.from_kv_blocks
    theirs = make(*lists(diagonal), *lists(below), mask_mod=causal, **words)
    with pytest.raises(ValueError) as caught:
        fdma.from_flex(theirs)
    assert str(caught.value) == (
        "batch 0, head 0, tile (2, 0): not listed, but full in the mask that gives the cells; if "
        "the lists are meant to have other tiles than the function, fdma.from_flex(block_mask, "
        "tiles_only=True) & fdma.compile(block_mask.mask_mod, q_len, kv_len) is what PyTorch's "
        "compiled kernels compute"
    )
    mask = fdma.from_flex(theirs, tiles_only=True) & fdma.compile(theirs.mask_mod, 250)
    whole = np.kron(diagonal | below, np.ones((64, 64), bool))[:250, :250]
    np.testing.assert_array_equal(mask.to_dense()[0, 0], whole & np.tri(250, dtype=bool))
    # Where a full tile is not full, this would be another mask than the kernels'.
    theirs = make(*lists(below), *lists(diagonal), mask_mod=causal, **words)
    with pytest.raises(ValueError, match=r"in the mask that gives the cells$"):
        fdma.from_flex(theirs)


def test_no_function_means_all_cells() -> None:
    theirs = flex_attention.create_block_mask(flex_attention.noop_mask, None, None, 200, 300, "cpu")
    assert fdma.from_flex(theirs) == fdma.compile("true", 200, 300)


def wrong_fields() -> list[Any]:
    def change(name: str, **fields: Any) -> Any:
        return pytest.param(fields, name, id=f"{name} {len(fields)}")

    full = np.ones((1, 1, 2), np.int32)
    return [
        change("kv_indices", kv_indices=None),
        change("seq_lengths", seq_lengths=None),
        change("seq_lengths", seq_lengths=(256, 1 << 40)),
        change("kv_num_blocks", seq_lengths=(512, 256)),
        change("BLOCK_SIZE", BLOCK_SIZE=(0, 128)),
        change("kv_num_blocks", kv_num_blocks=np.zeros((1, 2), np.int32)),
        change("kv_num_blocks", kv_num_blocks=np.full((1, 1, 2), 1 << 40)),
        change("full_kv_indices", full_kv_num_blocks=full * 2),
        change("full_kv_indices", full_kv_indices=np.zeros((1, 1, 2, 3), np.int32)),
        change("full_kv_num_blocks", full_kv_num_blocks=None),
        change("q_num_blocks", q_indices=np.zeros((1, 1, 2, 2), np.int32)),
        change("kv_indexes", kv_indexes=full),
        change("partial", kv_num_blocks=full, kv_indices=np.full((1, 1, 2, 2), 1)),
        change("full_q_indices", full_q_num_blocks=full * 2, full_q_indices=[[[[0, 1], [0, 1]]]]),
    ]


@pytest.mark.parametrize(("fields", "name"), wrong_fields())
def test_rejects_wrong_fields(fields: dict[str, Any], name: str) -> None:
    good = {
        "seq_lengths": (256, 256),
        "BLOCK_SIZE": (128, 128),
        "kv_num_blocks": np.zeros((1, 1, 2), np.int32),
        "kv_indices": np.zeros((1, 1, 2, 2), np.int32),
        "full_kv_num_blocks": np.ones((1, 1, 2), np.int32),
        "full_kv_indices": np.array([[[[0, -1], [1, -1]]]], np.int32),
    }
    assert fdma.from_flex(good) == fdma.compile("q // 128 == k // 128", 256)
    with pytest.raises(ValueError, match=name):
        fdma.from_flex({k: v for k, v in (good | fields).items() if v is not None})


def test_rejects_what_does_not_agree() -> None:
    theirs = causal_block_mask()
    for cells in ("q - k > 200", "true", "k <= q & q - k < 100"):
        with pytest.raises(ValueError, match="tile"):
            fdma.from_flex(theirs, cells=cells)
    with pytest.raises(ValueError, match="seq_lengths"):
        fdma.from_flex(theirs, cells=fdma.compile("causal", 301))
    theirs.mask_mod = None
    with pytest.raises(ValueError, match="partial tile"):
        fdma.from_flex(theirs)
    theirs = causal_block_mask()
    theirs.full_kv_num_blocks = theirs.full_kv_num_blocks.float()
    with pytest.raises(TypeError, match="full_kv_num_blocks"):
        fdma.from_flex(theirs)
    with pytest.raises(TypeError, match="BlockMask of FlexAttention"):
        fdma.from_flex(np.zeros(3))
    odd = flex_attention.create_block_mask(
        lambda b, h, q, k: q >= k, None, None, 300, 300, "cpu", BLOCK_SIZE=100
    )
    with pytest.raises(NotImplementedError, match="BLOCK_SIZE"):
        fdma.from_flex(odd)


def test_rejects_what_flex_cannot_hold() -> None:
    mask = fdma.compile("causal", [100, 200], batch=2)
    with pytest.raises(NotImplementedError):
        mask.to_flex("cpu")
    mask = fdma.compile("causal", 300)
    with pytest.raises(ValueError, match="block"):
        mask.to_flex("cpu", block=100)
    with pytest.raises(TypeError, match="block"):
        mask.to_flex("cpu", block=(1, 2, 3))
    with pytest.raises(MemoryError):
        mask.to_flex("cpu", max_bytes=10)
    with pytest.raises(TypeError, match="mask_mod"):
        mask.to_flex("cpu", "causal")


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 300), (300, 0), (0, 0)])
def test_masks_without_cells(q_len: int, kv_len: int) -> None:
    mask = fdma.compile("causal", q_len, kv_len)
    assert fdma.from_flex(mask.to_flex("cpu")) == mask


def test_a_slice_keeps_the_cells_that_are_named() -> None:
    theirs = flex_attention.create_block_mask(
        lambda b, h, q, k: q - k >= 50 * h, None, 3, 300, 300, "cpu"
    )
    mask = fdma.from_flex(theirs)
    one = fdma.from_flex(theirs[:, 1:2], cells=mask.crop(heads=slice(1, 2)))
    assert one == fdma.compile("q - k >= 50", 300)
    with pytest.raises(RuntimeError, match="sliced"):  # these are PyTorch's own words
        fdma.from_flex(theirs[:, 1:2])
