"""The messages that a user of another library meets: what was expected, what came, what to write.

Each row is a mistake and the whole text of its error.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import numpy as np
import pytest

# isort: split
import fdma

Call = Callable[[], Any]
f: Any = fdma  # arguments of wrong types
Q = np.zeros((1, 4, 64, 16), np.float32)
TURNED = Q.swapaxes(1, 2).copy()
CAUSAL = fdma.compile("causal", 64)
CELLS = np.ones((64, 64), bool)
ATTENTION = "mask: expected a BlockMask, a MaskExpr, a text of the mask language or None, got "
COMPILE = (
    "mask: expected a MaskExpr, a text of the mask language or a function of (b, h, q_idx, "
    "kv_idx), got "
)
DENSE = (
    "a dense mask, bool [64, 64]; fdma.BlockMask.from_dense(cells) compiles booleans [.., q, k], "
    "True where a query attends (negate those of torch.nn.MultiheadAttention), once for all calls"
)
ADDITIVE = (
    "a dense mask, float32 [64, 64]; fdma.from_hf_mask(cells) compiles an additive mask [batch, "
    "heads, q, k] of 0 and -inf, once for all calls; other numbers are "
    "the bias= of fdma.attention"
)
PADDING = (
    "a dense mask, int64 [2, 64]; fdma.from_hf_padding(tokens, causal=..) compiles padding [batch, "
    "len], 1 where a key is real, fdma.BlockMask.from_dense(cells) booleans [q, k], once for all "
    "calls"
)
FLEX = "a BlockMask of PyTorch's FlexAttention; fdma.from_flex(block_mask) gives FDMA's mask of it"
FUNCTION = "mask_mod: expected a function of (b, h, q_idx, kv_idx), got one of "
EXPRESSION = "MaskExpr, which has no lengths yet; fdma.compile(mask, q_len) gives its BlockMask"
COMPILED = (
    "BlockMask, which is compiled; combine it with fdma.compile(expression, mask.q_lens, "
    "mask.kv_lens)"
)


def message_of(call: Call) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:
        call()
    return caught.type, str(caught.value)


MASKS: list[tuple[Call, str]] = [
    (lambda: f.attention(Q, Q, Q, CELLS), ATTENTION + DENSE),
    (lambda: f.compile(CELLS, 64), COMPILE + DENSE),
    (lambda: f.plan(CELLS, q=Q, k=Q), ATTENTION + DENSE),
    (
        lambda: f.attention(Q, Q, Q, np.zeros((64, 64), np.float32)),
        ATTENTION + ADDITIVE.replace("the bias= of fdma.attention", "bias="),
    ),
    (lambda: f.compile(np.zeros((64, 64), np.float32), 64), COMPILE + ADDITIVE),
    (lambda: f.attention(Q, Q, Q, np.ones((2, 64), int)), ATTENTION + PADDING),
    (
        lambda: f.attention(Q, Q, Q, True),
        f'{ATTENTION}True; write "causal" for causal attention, None for attention to every key',
    ),
    (
        lambda: f.attention(Q, Q, Q, [CAUSAL, CAUSAL]),
        f"{ATTENTION}list of BlockMasks; fdma.BlockMask.concatenate(masks) makes one mask with "
        "their batch elements",
    ),
    (
        lambda: f.attention(Q, Q, Q, [[1, 0], [0, 1]]),
        f"{ATTENTION}list; fdma.BlockMask.from_dense(cells) compiles booleans [.., q, k], True "
        "where a query attends",
    ),
    (
        lambda: f.attention(Q, Q, Q, lambda b, h, q, k: q >= k),
        f"{ATTENTION}function; fdma.compile takes functions of (b, h, q_idx, kv_idx), "
        "fdma.compile(function, q_len)",
    ),
    (
        lambda: f.attention(Q, Q, Q, fdma.causal),
        f"{ATTENTION}the function that makes it: call causal(..)",
    ),
    (
        lambda: f.compile(fdma.window, 64),
        "mask: expected a mask, got the function that makes it: call window(..)",
    ),
    (
        lambda: f.attention(Q, Q, Q, fdma.q - fdma.k),
        f"{ATTENTION}IntExpr; compare the integer, for example with != 0",
    ),
    (
        lambda: f.compile(CAUSAL, 64),
        f"{COMPILE}BlockMask, which is compiled already (to_format converts it)",
    ),
    (
        lambda: f.estimate(fdma.causal()),
        f"mask: expected a BlockMask (fdma.compile makes them), got {EXPRESSION}",
    ),
    (
        lambda: f.estimate("causal"),
        "mask: expected a BlockMask (fdma.compile makes them), got str; "
        "fdma.compile(text, q_len) gives the BlockMask of a text",
    ),
    (
        lambda: f.from_flex(CAUSAL),
        "block_mask: expected a BlockMask of FlexAttention or a mapping of its fields, got "
        "BlockMask, which is compiled already (to_format converts it)",
    ),
    (
        lambda: f.BlockMask.from_dense(fdma.causal()),
        f"cells: expected an array of booleans, got {EXPRESSION}",
    ),
    (
        lambda: f.BlockMask.from_dense(np.zeros((4, 4), np.float32)),
        "cells: expected booleans, or uint8 0 and 1, got float32; write cells > 0 for scores, "
        "cells == 0 or fdma.from_hf_mask(cells) for an additive mask",
    ),
    (
        lambda: f.BlockMask.concatenate([fdma.causal()]),
        f"masks: expected a BlockMask, got {EXPRESSION}",
    ),
]

OPERATORS: list[tuple[Call, str]] = [
    (lambda: f.causal() & CAUSAL, f"&: expected a condition, got {COMPILED}"),
    (lambda: CAUSAL & f.causal(), f"&: expected a BlockMask on both sides, got {EXPRESSION}"),
    (lambda: f.causal() | CAUSAL, f"|: expected a condition, got {COMPILED}"),
    (lambda: CAUSAL - f.causal(), f"-: expected a BlockMask on both sides, got {EXPRESSION}"),
    (
        lambda: f.causal() & "sink(4)",
        "&: expected a condition, got str; fdma.MaskExpr.parse(text) makes an expression of a text",
    ),
    (
        lambda: "sink(4)" ^ f.causal(),
        "^: expected a condition, got str; fdma.MaskExpr.parse(text) makes an expression of a text",
    ),
    (
        lambda: f.compile("causal", 64) & "sink(4)",
        "&: expected a BlockMask on both sides, got str; fdma.compile(text, q_len) gives the "
        "BlockMask of a text",
    ),
    (
        lambda: "sink(4)" | f.compile("causal", 64),
        "|: expected a BlockMask on both sides, got str; fdma.compile(text, q_len) gives the "
        "BlockMask of a text",
    ),
    (lambda: CAUSAL & CELLS, f"&: expected a BlockMask on both sides, got {DENSE}"),
    (lambda: CELLS & CAUSAL, f"&: expected a BlockMask on both sides, got {DENSE}"),
    (lambda: f.causal() == CAUSAL, f"==: expected a condition, got {COMPILED}"),
]

_CAUSAL_WORDS = (
    'write mask="causal", in which the last query stands at the last key as in flash-attn, or '
    'mask="k <= q" for PyTorch\'s is_causal, which differs where q_len != kv_len'
)
_WINDOW_WORDS = (
    'write mask="causal & window(w)", or mask="window(left, right)" with inf for a side without a '
    "bound (-1 in flash-attn)"
)
KEYWORDS: list[tuple[str, str]] = [
    ("is_causal", _CAUSAL_WORDS),
    ("causal", _CAUSAL_WORDS),
    (
        "attn_mask",
        "write mask=fdma.BlockMask.from_dense(attn_mask) for booleans, "
        "fdma.from_hf_mask(attn_mask) for floats of 0 and -inf, and keep it for all calls; other "
        "floats are bias= of 4 dimensions [batch, heads, q_len, kv_len], or for numbers of keys "
        "alone key_bias= [batch, heads_kv, kv_len]",
    ),
    ("dropout", "write dropout_p="),
    ("return_attn_probs", "write return_probabilities=True, for at most 2^28 of them"),
    (
        "score_mod",
        "functions of scores are not traced; write softcap=, alibi_slopes=, relative=(table, left) "
        "or bias=, and a condition into the mask, fdma.compile(mask_mod, q_len)",
    ),
    ("window_size", _WINDOW_WORDS),
    ("sliding_window", _WINDOW_WORDS),
    ("sink", "write sinks="),
    ("s_aux", "write sinks="),
    ("block_mask", "write mask=fdma.from_flex(block_mask)"),
    ("enable_gqa", "leave it out: k and v may have fewer heads than q, whose number they divide"),
    ("softmax_scale", "write scale="),
    ("return_lse_", "did you mean return_lse=?"),
    (
        "frobnicate",
        "it has q, k, v, mask, bias, key_bias, scale, softcap, alibi_slopes, relative, sinks, "
        "dropout_p, generator, dropout_seed, return_lse, return_max_logit, return_probabilities, "
        "deterministic, layout, backend, num_threads",
    ),
]

OTHER_KEYWORDS: list[tuple[Call, str]] = [
    (
        lambda: f.plan("causal", q=Q, k=Q, scale=1.0),
        "scale: no argument of fdma.plan; it belongs to each run, "
        "fdma.plan(..).run(.., softmax_scale=)",
    ),
    (
        lambda: f.plan("causal", q=Q, k=Q, dropout_p=0.1),
        "dropout_p: no argument of fdma.plan; write dropout=True, and dropout_p= in each run",
    ),
    (
        lambda: f.dynamic_mask_attention(Q, Q, Q, Q, Q, 4, mask="causal"),
        "mask: no argument of fdma.dynamic_mask_attention; write among=",
    ),
    (
        lambda: f.compile("causal", 64, window_size=3),
        "window_size: the mask has no table @window_size (it has none), and compile no argument "
        'window_size; write it in the mask, "causal & window(w)"',
    ),
    (
        lambda: f.compile("causal", 64, H=3),
        "H: the mask has no table @H (it has none), and compile no argument H; write heads=",
    ),
    (
        lambda: f.compile("causal", None, None, 64, 64),
        "q_len: expected an integer, got NoneType; the order is fdma.compile(mask, q_len, kv_len, "
        "batch, heads), that of create_block_mask is mask_mod, B, H, Q_LEN, KV_LEN",
    ),
    (
        lambda: f.compile("window(@heads)", 8, heads=3),
        'heads: no array for table @heads; give it as tables={"heads": ..}',
    ),
    (lambda: f.compile("causal", 64, heads=0), "heads: expected at least 1, got 0"),
    (lambda: f.compile("causal", 64, batch=0), "batch: expected at least 1, got 0"),
]


def two(q: Any, k: Any) -> Any:
    return q >= k


FUNCTIONS: list[tuple[Call, str]] = [
    (lambda: f.compile(two, 8), "(q, k); write lambda b, h, q_idx, kv_idx: two(q_idx, kv_idx)"),
    (
        lambda: f.compile(two, 8, sample=True),
        "(q, k); write lambda b, h, q_idx, kv_idx: two(q_idx, kv_idx)",
    ),
    (
        lambda: f.compile(lambda h, q, k: q >= k, 8),
        "(h, q, k); write lambda b, h, q_idx, kv_idx: .. and use the indices that you need",
    ),
    (
        lambda: f.compile(lambda score, b, h, q, k: score, 8),
        "(score, b, h, q, k); a score_mod has five; functions of scores are not traced, and "
        "fdma.attention has softcap=, alibi_slopes=, relative= and bias= in their place",
    ),
    (
        lambda: f.compile(lambda width: lambda b, h, q, k: q - k < width, 8),
        "(width); if it makes a mask function, call it",
    ),
    (
        lambda: f.compile(lambda b, h, q, k, *, width: q - k < width, 8),
        "(b, h, q, k, width); its arguments after * have no place; give them by functools.partial",
    ),
]

NUMBERS: list[tuple[Call, str]] = [
    (
        lambda: f.select_topk(np.ones(8), 2),
        "topk: scores: expected float32, got float64 [8]; write .astype('float32')",
    ),
    (
        lambda: f.topk(np.ones(8, int), 2),
        "topk: scores: expected float32, got int64 [8]; write .astype('float32')",
    ),
    (
        lambda: f.documents(ids=np.ones(8, np.float32)),
        "documents: ids: expected integers, got float32 [8]; write .astype(int)",
    ),
    (
        lambda: f.compile("@t[q] == 0", 8, t=np.ones(8)),
        "t: expected booleans or integers (float32 for the scores of topk), got float64; write "
        ".astype('float32') for scores, .astype(int) for whole numbers",
    ),
    (lambda: f.compile("window(@w)", 8, w=10**20), f"w: {10**20} does not fit in 64 bits"),
    (lambda: f.compile("window(@w)", 8, w=3.0), "w: expected an integer, got 3.0; write 3"),
    (
        lambda: f.compile("window(@w)", 8, w=np.float32(2.5)),
        "w: expected an integer, got 2.5; floats serve as scores of fdma.topk only",
    ),
    (
        lambda: f.window(3.0),
        'window: w: expected an integer, an integer expression or "@name", got float; write 3',
    ),
    (lambda: f.window(10**20), f"window: w: {10**20} does not fit in 64 bits"),
]

LAYOUTS: list[tuple[Call, str]] = [
    (
        lambda: f.attention(TURNED, TURNED, TURNED, CAUSAL),
        "mask: its q_len is 64, the tensors have 4; these tensors look like [batch, len, heads, "
        'head_dim]: pass layout="bshd"',
    ),
    (
        lambda: f.attention(Q, Q, Q, CAUSAL, layout="bshd"),
        "mask: its q_len is 64, the tensors have 4; these tensors look like [batch, heads, len, "
        'head_dim]: pass layout="bhsd"',
    ),
    (
        lambda: f.plan(fdma.compile("window(h + 1)", 64, heads=4), q=TURNED, k=TURNED),
        "mask: its q_len is 64, the tensors have 4; these tensors look like [batch, len, heads, "
        'head_dim]: pass layout="bshd"',
    ),
    (
        lambda: f.attention(Q, Q, Q, fdma.compile("causal", 32)),
        "mask: its q_len is 32, the tensors have 64; lengths that are shorter belong to the mask, "
        "per batch element",
    ),
    (
        lambda: f.attention(TURNED[:, :1], TURNED[:, :, :2], TURNED[:, :, :2]),
        "k: expected a number of heads that divides the 1 of q, got 64; if these tensors are "
        '[batch, len, heads, head_dim], pass layout="bshd"',
    ),
    (
        lambda: f.attention(Q[0], Q[0], Q[0]),
        "q: expected 4 dimensions [batch, heads, len, head_dim], got [4, 64, 16]; write q[None] "
        "for a batch of one",
    ),
    (
        lambda: f.attention(Q[0, 0], Q[0, 0], Q[0, 0], layout="bshd"),
        "q: expected 4 dimensions [batch, len, heads, head_dim], got [64, 16]; write "
        "q[None, :, None] for one head",
    ),
    (
        lambda: f.attention(Q, Q, Q, layout="BHND"),
        'layout: expected "bhsd" or "bshd", got \'BHND\'; write "bhsd"',
    ),
    (lambda: f.attention(Q[:, :0], Q, Q), "q: expected at least 1 head, got 0"),
    (lambda: f.attention(Q, Q[:, :0], Q[:, :0]), "k: expected at least 1 head, got 0"),
]

CALLS: list[tuple[Call, str]] = [
    (lambda: f.compile("causal", 64.0), "q_len: expected an integer, got float; write 64"),
    (
        lambda: f.compile("causal", "64"),
        "q_len: expected an integer, got str; write 64, without quotes",
    ),
    (
        lambda: f.compile("causal", Q),
        "q_len: expected an integer or one for each batch element, got the shape [1, 4, 64, 16]; "
        "write one extent, q.shape[-2] for tensors [batch, heads, len, head_dim]",
    ),
    (lambda: f.compile("causal", [4, 5], batch=3), "q_len: 2 lengths, expected 1 or batch = 3"),
    (
        lambda: f.compile(None, 8),
        f'{COMPILE}NoneType; "true" is the mask that keeps every key',
    ),
    (
        lambda: f.compile("lambda b, h, q, k: q >= k", 8),
        "mask: expected a text of the mask language, got a lambda in quotes; write the function "
        "without quotes",
    ),
    (
        lambda: f.compile("masks.h5", 8),
        "mask: expected a text of the mask language, got the name of a file; fdma.load(path) reads "
        "the masks of a file",
    ),
    (lambda: f.attention(Q, Q, Q, 0.125), f"{ATTENTION}float; a number is scale="),
    (
        lambda: f.attention(Q, Q, Q, CAUSAL, key_bias=np.zeros((1, 4, 64, 64), np.float32)),
        "key_bias: expected 3 dimensions [batch, heads_kv, kv_len] = [1, 4, 64], each 1 or that, "
        "got [1, 4, 64, 64]; a bias for each query and key is bias=",
    ),
    (
        lambda: f.attention(Q, Q, Q, CAUSAL, bias=np.zeros((1, 4, 64), np.float32)),
        "bias: expected 4 dimensions [batch, heads, q_len, kv_len] = [1, 4, 64, 64], each but the "
        "last 1 or that, got [1, 4, 64]; write bias[None] or bias[:, None]; a number for each key "
        "alone is key_bias=, [batch, heads_kv, kv_len]",
    ),
    (
        lambda: f.attention(Q, Q, Q, backend="cuda"),
        'backend: expected "auto", "cpu" or "sm90", got \'cuda\'; write "sm90", or leave it out',
    ),
    (
        lambda: f.plan("causal", q=Q, k=Q, closed_form=True).run(Q, Q, Q, kv_lens=[64]),
        "kv_lens: expected an int32 array, got list; write numpy.asarray(kv_lens, numpy.int32)",
    ),
    (
        lambda: f.estimate(CAUSAL, device="a100"),
        "device: expected h200, h100, cpu, a profile (dict) or its file (.json), got 'a100'; "
        "fdma-maskc calibrate measures a device",
    ),
    (
        lambda: f.estimate(CAUSAL, device="H100"),
        "device: expected h200, h100, cpu, a profile (dict) or its file (.json), got 'H100'; did "
        "you mean h100?",
    ),
    (
        lambda: f.documents([3, 4]),
        "documents: expected ids=, lengths=, cu_seqlens=, or q_ids= and k_ids=, got an argument "
        "without a name; write lengths=, or ids= for the id of each key",
    ),
    (
        lambda: f.padding(np.ones((2, 8), int)),
        "padding: lengths: expected 1 dimensions, got int64 [2, 8]; fdma.from_hf_padding reads an "
        "attention_mask [batch, len]",
    ),
    (
        lambda: f.from_hf_mask(np.ones((4, 4), bool)),
        "attention_mask: expected 4 dimensions [batch, heads, queries, keys], got shape (4, 4); "
        "write attention_mask[None, None]",
    ),
    (
        lambda: f.from_cu_seqlens([3, 7]),
        "cu_seqlens_q[0]: 3, expected 0; offsets begin with 0, numpy.cumsum([0, *lengths]) makes "
        "them of lengths",
    ),
    (
        lambda: f.compile("causal", 64)[0],
        "BlockMask has no indices: to_dense(batch=0, heads=0) gives cells, crop(q=slice(..), "
        "kv=slice(..), batch=.., heads=..) a part as a mask",
    ),
    (lambda: f.compile("causal", 64) + CAUSAL, "+: masks combine with & | ^ - ~; write a | b"),
    (
        lambda: f.causal() + f.causal(),
        "+: unsupported operand: conditions combine with & | ^ ~; write a | b, or to_int(a) + "
        "to_int(b)",
    ),
    (
        lambda: f.causal() - f.sink(4),
        "-: unsupported operand: conditions combine with & | ^ ~; write a & ~b",
    ),
    (
        lambda: f.causal() * f.sink(4),
        "*: unsupported operand: conditions combine with & | ^ ~; write a & b",
    ),
    (lambda: 1.5 * f.q, "unsupported operand 1.5: masks have integers only"),
    (lambda: f.q < 8.0, "unsupported operand 8.0: masks have integers only; write 8"),
    (
        lambda: f.q == 8.0,
        "==: expected an integer, a condition or a table entry, got float; masks have integers "
        "only",
    ),
    (
        lambda: [1, 2][f.q],
        "an expression is no index of an array, a list or a range: fdma.table(array)[q] looks an "
        "entry up, fdma.any_of(n, lambda i: ..) loops",
    ),
]

TABLE = [*MASKS, *CALLS, *OPERATORS, *OTHER_KEYWORDS, *NUMBERS, *LAYOUTS]
TABLE += [(call, FUNCTION + text) for call, text in FUNCTIONS]


@pytest.mark.parametrize(("call", "text"), TABLE, ids=[text[-60:] for _, text in TABLE])
def test_message(call: Call, text: str) -> None:
    kind, message = message_of(call)
    assert message == text
    assert issubclass(kind, TypeError | ValueError | OverflowError)


@pytest.mark.parametrize(("name", "instead"), KEYWORDS, ids=[name for name, _ in KEYWORDS])
def test_keyword_of_another_library(name: str, instead: str) -> None:
    kind, message = message_of(lambda: f.attention(Q, Q, Q, **{name: None}))
    assert (kind, message) == (TypeError, f"{name}: no argument of fdma.attention; {instead}")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            "q_idx >= kv_idx",
            "unknown name 'q_idx': the query row is q here, and pos is its position among the keys",
        ),
        ("kv <= q", "unknown name 'kv': the key is k here"),
        (
            "sliding_window(3)",
            "unknown function or mask 'sliding_window': write causal & window(w) for the last w "
            "keys, or window(left, right)",
        ),
        (
            "slidng_window(3)",
            "unknown function or mask 'slidng_window': write causal & window(w) for the last w "
            "keys, or window(left, right)",
        ),
        ("doc[q] == doc[k]", "unknown name 'doc' (a table is written @doc)"),
    ],
)
def test_names_of_others_in_a_text(text: str, first: str) -> None:
    with pytest.raises(fdma.MaskSyntaxError) as caught:
        fdma.compile(text, 8)
    assert str(caught.value).split("\n")[0] == f"spec:1:1: error: {first}"


def test_masks_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    bias = importlib.import_module("torch.nn.attention.bias")
    theirs = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, "cpu")
    q = torch.zeros(1, 4, 64, 16)
    for call, text in (
        (lambda: f.attention(q, q, q, theirs), ATTENTION + FLEX),
        (lambda: f.attention(Q, Q, Q, theirs), ATTENTION + FLEX),
        (lambda: f.compile(theirs, 64), COMPILE + FLEX),
        (lambda: f.plan(theirs, q=q, k=q), ATTENTION + FLEX),
        (lambda: CAUSAL & theirs, f"&: expected a BlockMask on both sides, got {FLEX}"),
        (
            lambda: f.causal() & theirs,
            f"&: expected a condition, got {FLEX}, which combines with "
            "fdma.compile(expression, q_len)",
        ),
        (
            lambda: f.BlockMask.from_dense(theirs),
            f"cells: expected an array of booleans, got {FLEX}",
        ),
        (lambda: f.attention(q, q, q, torch.ones(64, 64, dtype=torch.bool)), ATTENTION + DENSE),
        (
            lambda: f.attention(q, q, q, bias.causal_lower_right(64, 64)),
            f'{ATTENTION}a CausalBias of PyTorch; write "causal"',
        ),
        (
            lambda: f.attention(q, q, q, bias.causal_upper_left(64, 64)),
            f'{ATTENTION}a CausalBias of PyTorch; write "k <= q"',
        ),
        (
            lambda: f.select_topk(torch.ones(8, dtype=torch.float64), 2),
            "topk: scores: expected float32, got float64 [8]; write .float()",
        ),
    ):
        kind, message = message_of(call)
        assert (kind, message) == (TypeError, text)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("to", "; a mask lies on the host and serves tensors on every device"),
        ("numpy", "; to_dense() gives the cells as an array of NumPy"),
        ("BLOCK_SIZE", "; to_flex() gives PyTorch's BlockMask"),
        ("densty", "; did you mean density?"),
        ("frobnicate", ""),
    ],
)
def test_attributes_of_tensors(name: str, instead: str) -> None:
    kind, message = message_of(lambda: getattr(CAUSAL, name))
    assert (kind, message) == (AttributeError, f"{name}: no attribute of a BlockMask{instead}")
    assert not hasattr(CAUSAL, name) and getattr(CAUSAL, name, 3) == 3


@pytest.mark.parametrize(
    ("operation", "remedy"),
    [
        ("sqrt", "compare squares: x <= r * r instead of sqrt(x) <= r"),
        ("cumsum", "compute it outside the function and capture the result"),
        ("item", "use operators, lookups in tensors and torch.where, which need no value"),
        ("float", "compare integers, squares instead of roots, powers of 2 instead of logarithms"),
    ],
)
def test_operations_that_no_mask_has(operation: str, remedy: str) -> None:
    kind, message = message_of(lambda: f.compile(lambda b, h, q, k: getattr(q, operation)() > k, 8))
    assert issubclass(kind, fdma.TraceError)
    assert message.startswith(f"mask_mod: Tensor.{operation} cannot be traced (")
    assert message.endswith(f"; {remedy}, or pass sample=True to evaluate every cell instead")


def test_floats_in_a_function() -> None:
    remedy = (
        "use integers: q // 2, or 2 * k < q instead of k < q * 0.5; return conditions instead of "
        "0.0 and -inf"
    )
    _, message = message_of(lambda: f.compile(lambda b, h, q, k: k < q * 0.5, 8))
    assert f"; {remedy}, or pass" in message
    whole = np.array([1, 2, 4, 8], np.float32)
    _, message = message_of(lambda: f.compile(lambda b, h, q, k: q - k < whole[h] * q, 8))
    assert "; capture whole.astype(int), or pass" in message


def test_advice_is_right() -> None:
    """What the messages say to write gives the results of the other library."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    sdpa = torch.nn.functional.scaled_dot_product_attention
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, n, 16, generator=random) for n in (40, 64))
    close = torch.testing.assert_close
    close(fdma.attention(q, k, k, "k <= q"), sdpa(q, k, k, is_causal=True))
    bias = importlib.import_module("torch.nn.attention.bias")
    lower = bias.causal_lower_right(40, 64)
    close(fdma.attention(q, k, k, "causal"), sdpa(q, k, k, lower._materialize("cpu")))
    sinks = torch.randn(4, generator=random)
    logits = torch.cat([q @ k.mT / 4, sinks[None, :, None, None].expand(1, 4, 40, 1)], -1)
    out, lse = fdma.attention(q, k, k, return_lse=True)
    merged, _ = fdma.merge([(out, lse)], sinks=sinks)
    close(merged, logits.softmax(-1)[..., :-1] @ k)


def test_an_untraceable_method_is_a_trace_error() -> None:
    with pytest.raises(fdma.TraceError, match=r"^mask_mod: Tensor\.foo cannot be traced") as caught:
        fdma.compile(lambda b, h, q, k: q.foo(k), 8)
    assert caught.type.__name__ == "TraceError"
    assert isinstance(caught.value, AttributeError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is fdma.TraceError and str(again) == str(caught.value)


def test_functions_of_jax_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of that name stands for JAX, whose functions take arrays of its own alone."""

    def where(*_: Any) -> Any:
        raise TypeError("where requires ndarray or scalar arguments")

    jnp: Any = types.ModuleType("jax.numpy")
    jnp.where = where
    monkeypatch.setitem(sys.modules, "jax.numpy", jnp)
    with pytest.raises(fdma.TraceError, match=r"^mask_mod: JAX cannot .*; capture numpy"):
        fdma.compile(lambda b, h, q, k: jnp.where(q > k, True, False), 8)


def test_what_a_function_returns() -> None:
    for function, text in (
        (lambda b, h, q, k: None, "NoneType; return the comparison"),
        (
            lambda b, h, q, k: lambda *_: q >= k,
            "function; call the function that makes the mask function",
        ),
        (lambda b, h, q, k: q - k, "int64; compare it with 0"),
    ):
        expected = f"mask_mod: expected it to return a boolean, got {text}"
        assert message_of(partial(f.compile, function, 8)) == (TypeError, expected)
