"""Tests LayerMask: how models use the mask that they get, and its cost with static caches."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fdma_module  # noqa: F401 (skips this file where the build has no package)
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
hf: Any = importlib.import_module("fdma.hf")
from test_hf import SIZES, gemma, gpt_2, llama, padding, pair, prompt  # noqa: E402
from test_hf_keywords import BERT, IDS  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


def gemma_4() -> Any:
    """Returns a model whose prefill takes the last rows of the masks for layers that share keys."""
    sizes = {**SIZES, "num_hidden_layers": 4}
    return transformers.Gemma4TextConfig(
        **sizes, **IDS, head_dim=16, global_head_dim=16, sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
        hidden_size_per_layer_input=16, vocab_size_per_layer_input=97,
    )  # fmt: skip


def generated(model: Any, **options: Any) -> Any:
    return model.generate(
        prompt(), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
        disable_compile=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("make", [gpt_2, gemma_4])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("padded", [False, True])
def test_models_that_look_at_their_mask(make: Any, cache: str, padded: bool) -> None:
    a, b = pair(make)
    options: dict[str, Any] = {"cache_implementation": cache}
    if padded:
        options["attention_mask"] = padding(30, "left")
    assert torch.equal(generated(b, **options), generated(a, **options))


def test_a_layer_mask_answers_as_a_boolean_tensor_does() -> None:
    tokens = padding(12, "left")
    mask = hf.mask_function(2, 12, 12, attention_mask=tokens.bool())
    cells = torch.from_numpy(mask.mask.to_dense())
    assert mask.ndim == mask.dim() == 4 and mask.dtype == torch.bool
    assert mask.size() == mask.shape == cells.shape and mask.size(-1) == 12
    assert not mask.is_floating_point() and not torch.is_floating_point(mask)
    assert mask.to("cpu").to(torch.bool).shape == mask.shape and mask[...] is mask
    for index in (
        (..., slice(-1, None), slice(None)),
        (slice(None), slice(None), slice(3, 9)),
        (slice(None), slice(None), slice(None), slice(None, 7)),
        (slice(1, 2),),
    ):
        part = mask[index]
        assert isinstance(part, hf.LayerMask) and part.shape == cells[index].shape
        assert torch.equal(torch.from_numpy(part.mask.to_dense()), cells[index])
    other = torch.rand(2, 1, 12, 12) < 0.5
    for got, expected in (
        (mask[:, 0], cells[:, 0]),
        (mask[:, 0, :, :].unsqueeze(1)[:, :, 2:3], cells[:, :, 2:3]),
        (mask[:, :, torch.tensor([3])], cells[:, :, torch.tensor([3])]),
        (mask & ~other, cells & ~other),
        (other & mask, cells & other),
        (mask | other, cells | other),
        (~mask, ~cells),
        (~mask[:, 0] | other[:, 0], ~cells[:, 0] | other[:, 0]),
    ):
        assert got.tolist() == expected.tolist()


def test_the_last_rows_of_a_mask_are_attended_alike() -> None:
    mask = hf.mask_function(1, 12, 12)
    q, k, v = torch.randn(3, 1, 2, 12, 16)
    module = torch.nn.Module()
    whole = hf.attention_forward(module, q, k, v, mask)[0]
    last = hf.attention_forward(module, q[:, :, -2:], k, v, mask[:, :, -2:, :])[0]
    torch.testing.assert_close(last, whole[:, -2:], atol=1e-6, rtol=1e-5)
    # A row of a dense mask and conditions on such a row are masks, too.
    dense = hf.attention_forward(module, q, k, v, mask[:, 0][:, None])[0]
    torch.testing.assert_close(dense, whole, atol=1e-6, rtol=1e-5)


def test_layer_masks_refuse_to_be_numbers() -> None:
    mask = hf.mask_function(1, 4, 4)
    scores = torch.randn(1, 1, 4, 4)
    uses: list[Callable[[], Any]] = [
        lambda: scores + mask,
        lambda: mask + scores,
        lambda: 1.0 - mask,
        lambda: mask * 2,
        lambda: mask == 0,
        lambda: scores.masked_fill(mask, 0),
        lambda: torch.where(mask, scores, 0),
        lambda: mask.kv_num_blocks,
        lambda: mask.dq_kv_order,
        lambda: mask.float(),
        lambda: mask.to(torch.float32),
        lambda: mask.to(scores),
        lambda: mask[:, 0] < 0,
        lambda: scores + mask[:, 0],
        lambda: scores.masked_fill(mask[:, 0], 0),
        lambda: mask[:, 0].to(torch.float32),
    ]
    for use in uses:
        with pytest.raises(NotImplementedError, match="this model computes with its mask itself"):
            use()
    assert not hasattr(mask, "kv_num_blocks") and getattr(mask, "values", None) is None


def test_layer_masks_are_copied_and_pickled() -> None:
    for mask in (hf.mask_function(1, 4, 4), hf.mask_function(1, 1, 12, torch.tensor(5))):
        for twin in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            assert twin.shape == mask.shape and twin.mask == mask.mask


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (
            "AutoModelForCausalLM",
            lambda: transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=1, n_head=4),
        ),
        (
            "AutoModelForCausalLM",
            lambda: transformers.MptConfig(vocab_size=97, d_model=64, n_layers=1, n_heads=4),
        ),
        ("AutoModel", lambda: transformers.LongformerConfig(**BERT, **IDS, attention_window=4)),
    ],
    ids=["Bloom", "MPT", "Longformer"],
)
def test_models_that_compute_attention_themselves_are_told(kind: str, make: Any) -> None:
    config = make()
    config._attn_implementation = "fdma"
    model = getattr(transformers, kind).from_config(config).eval()
    with pytest.raises(
        NotImplementedError, match=r'computes with its mask itself .* use attn_implementation="eag'
    ):
        model(prompt(12), attention_mask=padding(12, "left"))


class _Reads(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations that bring numbers of a tensor to Python; on a GPU each would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        aten = torch.ops.aten
        copied = (kwargs or {}).get("device") == torch.device("cpu")
        self.count += function is aten._local_scalar_dense.default
        self.count += function is aten._to_copy.default and copied
        return function(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[list[tuple[int, int]]]:
    """Returns (queries, reads) of every mask that models ask for."""
    seen: list[tuple[int, int]] = []

    def mask_function(**options: Any) -> Any:
        with _Reads() as reads:
            mask = hf.mask_function(**options)
        seen.append((options["q_length"], reads.count))
        return mask

    transformers.AttentionMaskInterface.register("fdma", mask_function)
    try:
        yield seen
    finally:
        hf.register()


@pytest.mark.parametrize("make", [llama, gpt_2, gemma])
def test_static_caches_wait_for_nothing_after_the_first_token(make: Any) -> None:
    _, model = pair(make)
    with counted() as seen:
        generated(model, cache_implementation="static")
    decoding = [reads for queries, reads in seen if queries == 1]
    assert len(decoding) >= 7 and sum(decoding) == 1, seen
    with counted() as seen:
        generated(model, cache_implementation="dynamic")
    assert not any(reads for _, reads in seen)


def test_a_static_cache_that_was_set_back_is_read_again() -> None:
    """After reset() and the caller's writes, counts differ from what the last pass implies."""
    a, b = pair(llama)
    tokens = prompt()
    caches = [transformers.StaticCache(config=m.config, max_cache_len=48) for m in (a, b)]

    def step(piece: Any) -> None:
        with torch.no_grad():
            expected, out = (
                m(piece, past_key_values=cache).logits
                for m, cache in zip((a, b), caches, strict=True)
            )
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)

    for start in (0, 10, 11, 12):
        step(tokens[:, start : 10 if start == 0 else start + 1])
    for cache in caches:
        cache.reset()
    step(tokens[:, :1])
    step(tokens[:, 1:2])
    for cache in caches:
        for layer in cache.layers:
            layer.cumulative_length.sub_(1)
    step(tokens[:, 5:6])
    step(tokens[:, 6:7])


def test_padding_of_a_tensor_is_read_once() -> None:
    tokens = padding(12, "left").bool()
    with _Reads() as reads:
        first = hf.mask_function(2, 12, 12, attention_mask=tokens)
        again = hf.mask_function(2, 12, 12, attention_mask=tokens)
        assert reads.count == 1 and again.mask == first.mask
        tokens[0, :] = True
        changed = hf.mask_function(2, 12, 12, attention_mask=tokens)
    assert changed.mask != first.mask
