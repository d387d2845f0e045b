"""Tests the masks of the package flash_dmattn and its examples, word for word."""

from __future__ import annotations

import pickle
from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest

# isort: split
import fdma
from flash_dmattn import (
    BCSRMask,
    BlockBitsetMask,
    CausalMask,
    CausalWindowMask,
    DynamicMask,
    WindowMask,
    calculate_memory_savings,
    create_sparse_mask,
    estimate_speedup,
)

RANDOM = np.random.default_rng(3)

FIRST_EXAMPLE = """
from flash_dmattn import CausalMask, WindowMask, BlockBitsetMask, estimate_speedup, calculate_memory_savings
causal_mask = CausalMask(seqlen_q=4096, seqlen_k=4096)
window_mask = WindowMask(window_size=512, seqlen_q=4096, seqlen_k=4096)
bitset_mask = BlockBitsetMask.from_dense_mask(dense_pattern)
speedup = estimate_speedup(causal_mask)
memory_savings = calculate_memory_savings(bitset_mask)
"""  # noqa: E501

# The lines before and after this one call attention.
SECOND_EXAMPLE = """
from flash_dmattn import CausalWindowMask
sparse_mask = CausalWindowMask(window_size=1024, seqlen_q=8192, seqlen_k=8192)
"""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_first_example_runs_verbatim(kind: str) -> None:
    dense_pattern: Any = RANDOM.random((4096, 4096)) < 0.01
    if kind == "torch":
        dense_pattern = pytest.importorskip("torch").from_numpy(dense_pattern)
    names: dict[str, Any] = {"dense_pattern": dense_pattern}
    exec(FIRST_EXAMPLE, names)
    assert names["causal_mask"].mask == fdma.compile("causal", 4096)
    assert names["window_mask"].mask == fdma.compile("window(512)", 4096)
    assert (names["bitset_mask"].to_dense()[0, 0] == np.asarray(dense_pattern)).all()
    assert 1.5 < names["speedup"] < 2.2
    expected = 100 * (1 - names["bitset_mask"].mask.nbytes / (4 * 4096 * 4096))
    assert names["memory_savings"] == expected


def test_the_mask_of_the_second_example_runs_verbatim() -> None:
    names: dict[str, Any] = {}
    exec(SECOND_EXAMPLE, names)
    assert names["sparse_mask"].mask == fdma.compile("causal & window(1024)", 8192)


@pytest.mark.parametrize(("q_len", "kv_len"), [(100, 100), (37, 200), (200, 37), (1, 1), (5, 0)])
def test_parametric_masks_are_their_definitions(q_len: int, kv_len: int) -> None:
    q, k = np.arange(q_len)[:, None] + kv_len - q_len, np.arange(kv_len)[None, :]
    near = abs(q - k) < 20
    for mask, cells, text in (
        (CausalMask(q_len, kv_len), k <= q, "causal"),
        (WindowMask(20, q_len, kv_len), near, "window(20)"),
        (CausalWindowMask(20, q_len, kv_len), (k <= q) & near, "causal & window(20)"),
    ):
        assert (mask.to_dense()[0, 0] == cells).all()
        assert mask.mask.format == "parametric"
        assert mask.nbytes == 0
        assert calculate_memory_savings(mask) == (100 if q_len * kv_len else 0)
        assert str(mask.expr) == text
        assert fdma.compile(mask.expr, q_len, kv_len) == mask.mask
        assert (mask.seqlen_q, mask.seqlen_k) == (q_len, kv_len)


@pytest.mark.parametrize("made", [BlockBitsetMask, BCSRMask])
@pytest.mark.parametrize("shape", [(100, 130), (2, 50, 70), (2, 3, 40, 60), (0, 5), (1, 1)])
def test_given_cells_are_exact(made: Any, shape: tuple[int, ...]) -> None:
    cells = RANDOM.random(shape) < 0.3
    mask = made.from_dense_mask(cells, block_size=16)
    full = (1,) * (4 - len(shape)) + shape
    if len(shape) == 3:
        full = (shape[0], 1, *shape[1:])
    assert (mask.to_dense() == cells.reshape(full)).all()
    assert mask.mask.format == {BlockBitsetMask: "bitset", BCSRMask: "bcsr"}[made]
    assert mask.mask.block == (16, 16)
    assert mask.nbytes == mask.mask.nbytes
    assert made.from_dense_mask(cells[..., ::-1, :]).mask.block == (128, 128)
    assert made(mask.mask).mask == mask.mask
    expr = mask.expr
    batch, heads = full[:2]
    again = fdma.compile(expr, full[2], full[3], batch=batch, heads=heads)
    assert again == mask.mask


def test_tensors_and_lists_are_dense_masks() -> None:
    torch = pytest.importorskip("torch")
    cells = torch.rand(3, 40, 50) < 0.2
    mask = BCSRMask.from_dense_mask(cells, block_size=32)
    assert (mask.to_dense()[:, 0] == cells.numpy()).all()
    transposed = BCSRMask.from_dense_mask(cells.transpose(1, 2), block_size=32)
    assert (transposed.to_dense()[:, 0] == cells.numpy().swapaxes(1, 2)).all()
    assert BlockBitsetMask.from_dense_mask([[True, False], [True, True]]).mask == fdma.compile(
        "causal", 2
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dense_mask": np.zeros((3, 3))}, TypeError, "expected booleans, .* got float64"),
        ({"dense_mask": np.zeros((3, 3), np.uint8)}, TypeError, "expected booleans, .* got uint8"),
        ({"dense_mask": np.zeros(3, bool)}, ValueError, "expected 2 dimensions .* got 1"),
        ({"dense_mask": np.zeros((1,) * 5, bool)}, ValueError, "expected 2 dimensions .* got 5"),
        ({"dense_mask": "causal"}, TypeError, "dense_mask: expected booleans"),
        (
            {"dense_mask": np.ones((3, 3), bool), "block_size": 100},
            ValueError,
            "block_size: expected a multiple of 16 from 16 to 1024, got 100",
        ),
        (
            {"dense_mask": np.ones((3, 3), bool), "block_size": 12.5},
            TypeError,
            "block_size: expected an integer, got float",
        ),
    ],
)
def test_dense_masks_are_checked(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BlockBitsetMask.from_dense_mask(**arguments)


def definition_of_topk(scores: Any, kept: int, visible: Any) -> Any:
    """Returns the `kept` visible keys of highest score for each query.

    Among equal scores the first keys come first.
    """
    cells = np.zeros(visible.shape, bool)
    order = np.argsort(-scores, kind="stable")
    for q, row in enumerate(visible):
        cells[q, order[row[order]][:kept]] = True
    return cells


@pytest.mark.parametrize("causal", [True, False])
def test_dynamic_masks_take_scores(causal: bool) -> None:
    mask = DynamicMask(90, 120, max_keys=17, causal=causal, heads=4)
    visible = np.ones((90, 120), bool)
    if causal:
        visible = np.tri(90, 120, 30, dtype=bool)
    for dtype in (np.float32, np.float16):
        scores = RANDOM.integers(0, 40, (2, 120)).astype(dtype)
        mask.update(scores)
        for h in range(4):
            expected = definition_of_topk(scores[h // 2], 17, visible)
            assert (mask.to_dense()[0, h] == expected).all()
    assert mask.num_updates == 2


def test_dynamic_masks_take_tensors() -> None:
    torch = pytest.importorskip("torch")
    mask = DynamicMask(64, max_keys=8)
    scores = torch.rand(64)
    for given in (scores, scores.to(torch.bfloat16), scores.half()):
        expected = definition_of_topk(given.float().numpy(), 8, np.tri(64, dtype=bool))
        assert (mask.update(given).to_dense()[0, 0] == expected).all()
    cells = torch.zeros(64, 64, dtype=torch.bool)
    assert mask.update(cells).mask.density == 0
    with pytest.raises(ValueError, match="requires a gradient"):
        mask.update(scores.clone().requires_grad_())


def test_dynamic_masks_take_masks() -> None:
    mask = DynamicMask(300, max_bytes=1 << 20, batch=2, heads=2)
    cells = RANDOM.random((2, 2, 300, 300)) < 0.1
    assert (mask.update(cells).to_dense() == cells).all()
    for given in ("causal & window(5)", fdma.causal() & fdma.window(5), CausalWindowMask(5, 300)):
        mask.update(given)
        assert (mask.to_dense() == fdma.compile("causal & window(5)", 300).to_dense()).all()
    compiled = fdma.compile("k <= q & q - k < h + b", 300, batch=2, heads=2)
    assert mask.update(compiled).mask == compiled
    assert fdma.compile(mask.expr, 300, batch=2, heads=2) == compiled
    assert mask.num_updates == 5


def test_capacity_is_kept_and_the_pattern_before_stays() -> None:
    mask = DynamicMask(1000, max_bytes=5000)
    with pytest.raises(ValueError, match="no pattern yet; call update first"):
        _ = mask.mask
    mask.update("causal")
    held = mask.mask
    noise = RANDOM.random((1000, 1000)) < 0.5
    size = fdma.BlockMask.from_dense(noise).nbytes
    message = f"update: the pattern takes {size} bytes, but max_bytes is 5000"
    with pytest.raises(ValueError, match=message):
        mask.update(noise)
    with pytest.raises(ValueError, match="scores need the number of keys that a query keeps"):
        mask.update(np.zeros(1000, np.float32))
    with pytest.raises(ValueError, match=r"pattern: expected \[batch, heads, q, k\] of"):
        mask.update(fdma.compile("causal", 999))
    with pytest.raises(TypeError, match="pattern: expected booleans, float32 scores"):
        mask.update(np.zeros((1000, 1000)))
    with pytest.raises(ValueError, match="NaN"):
        DynamicMask(1000, max_keys=5).update(np.full(1000, np.nan, np.float32))
    assert mask.mask is held
    keys = DynamicMask(1000, max_keys=10)
    keys.update("window(5) & causal").update("k < 10")
    with pytest.raises(ValueError, match="has queries with 11 keys, but max_keys is 10"):
        keys.update("k < 11")
    assert keys.mask == fdma.compile("k < 10", 1000)
    assert repr(keys) == "<DynamicMask [1, 1, 1000, 1000], max_keys=10, 2 updates>"


def test_dynamic_masks_need_a_capacity() -> None:
    with pytest.raises(TypeError, match="expected a capacity: max_bytes, max_keys or both"):
        DynamicMask(10)
    with pytest.raises(ValueError, match="keep_window_size: expected at most max_keys 5, got 6"):
        DynamicMask(10, max_keys=5, keep_window_size=6)
    with pytest.raises(ValueError, match="max_bytes: expected 0 or more, got -1"):
        DynamicMask(10, max_bytes=-1)


def test_masks_by_name() -> None:
    dense = RANDOM.random((50, 50)) < 0.5
    lengths = {"seqlen_q": 50, "seqlen_k": 50}
    for kind, parameters, made in (
        ("causal", lengths, CausalMask),
        ("window", {"window_size": 9, **lengths}, WindowMask),
        ("causal_window", {"window_size": 9, **lengths}, CausalWindowMask),
        ("bitset", {"dense_mask": dense, "block_size": 16}, BlockBitsetMask),
        ("bcsr", {"dense_mask": dense}, BCSRMask),
        ("dynamic", {"max_keys": 9, **lengths}, DynamicMask),
    ):
        assert type(create_sparse_mask(kind, **parameters)) is made
    text = "documents(ids=@doc) & k - q < 3"
    mask = create_sparse_mask(text, **lengths, doc=np.arange(50) // 20, heads=2, block_size=32)
    assert mask.mask == fdma.compile(text, 50, heads=2, doc=np.arange(50) // 20)
    assert mask.mask.block == (32, 32)
    assert str(mask.expr) == text


@pytest.mark.parametrize(
    ("kind", "parameters", "error", "message"),
    [
        ("casual", {}, fdma.MaskSyntaxError, "got 'casual'; did you mean 'causal'?"),
        ("causal &", {"seqlen_q": 5}, fdma.MaskSyntaxError, "expected an expression"),
        ("causal", {}, TypeError, "create_sparse_mask('causal'): missing a required argument"),
        ("window", {"seqlen_q": 5}, TypeError, "missing a required argument: 'window_size'"),
        ("causal", {"seqlen_q": 5, "size": 3}, TypeError, "unexpected keyword argument 'size'"),
        ("causal & sink(4)", {}, TypeError, "missing a required argument: 'seqlen_q'"),
        ("causal", {"seqlen_q": -1}, ValueError, "seqlen_q: expected 0 or more, got -1"),
        ("causal", {"seqlen_q": 1.5}, TypeError, "seqlen_q: expected an integer, got float"),
        ("window", {"window_size": 0, "seqlen_q": 5}, ValueError, "window_size: expected 1 or mor"),
        (7, {}, TypeError, "kind: expected a str, got int"),
    ],
)
def test_wrong_names_and_parameters_are_refused(
    kind: Any, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        create_sparse_mask(kind, **parameters)
    assert message in str(raised.value)


def test_speedups_are_those_of_estimates() -> None:
    mask = CausalWindowMask(window_size=256, seqlen_q=8192, seqlen_k=8192)
    assert estimate_speedup(mask) == fdma.estimate(mask.mask).speedup
    assert estimate_speedup(mask) == estimate_speedup(mask.mask, heads=32, head_dim=128)
    other = fdma.estimate(mask.mask, heads=4, head_dim=64, device="cpu", dtype="fp32").speedup
    assert estimate_speedup(mask, heads=4, head_dim=64, device="cpu", dtype="fp32") == other
    wide = fdma.compile("k <= q & q - k < shl(64, h)", 512, heads=3)
    assert estimate_speedup(wide) == fdma.estimate(wide, heads=3).speedup
    causal: Any = fdma.causal()
    for function in (estimate_speedup, calculate_memory_savings):
        with pytest.raises(TypeError, match="mask: expected a mask of flash_dmattn or an fdma"):
            function(causal)


def test_savings_count_every_pair_that_the_mask_tells_apart() -> None:
    mask = fdma.compile("k < h + b + 1", [100, 200], [300, 50], batch=2, heads=3)
    cells = 3 * (100 * 300 + 200 * 50)
    assert calculate_memory_savings(mask) == 100 * (1 - mask.nbytes / (4 * cells))
    one = BCSRMask.from_dense_mask(np.eye(5, dtype=bool))
    assert calculate_memory_savings(one) == 100 * (1 - one.nbytes / 100) < 0


def test_masks_pickle_and_show_themselves() -> None:
    for mask in (
        CausalMask(300),
        WindowMask(5, 300),
        BCSRMask.from_dense_mask(np.eye(300, dtype=bool)),
        DynamicMask(300, max_keys=5).update("k < 5"),
        create_sparse_mask("causal & sink(3)", seqlen_q=300),
    ):
        again = pickle.loads(pickle.dumps(mask))
        assert type(again) is type(mask)
        assert again.mask == mask.mask
        assert "300 x 300 cells" in str(mask)
        assert mask._repr_html_().startswith("<figure")
    assert repr(WindowMask(5, 300, 200)) == "WindowMask(window_size=5, seqlen_q=300, seqlen_k=200)"


def test_tensors_on_a_gpu_are_copied() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cells = torch.rand(2, 60, 70, device="cuda") < 0.2
    assert (BCSRMask.from_dense_mask(cells).to_dense()[:, 0] == cells.cpu().numpy()).all()
    scores = torch.rand(2, 64, device="cuda", dtype=torch.bfloat16)
    mask = DynamicMask(64, max_keys=8, heads=2).update(scores)
    on_host = DynamicMask(64, max_keys=8, heads=2).update(scores.float().cpu())
    assert mask.mask == on_host.mask
