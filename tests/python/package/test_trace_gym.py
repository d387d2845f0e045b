"""Tests every mask generator of the package attn-gym, traced, against PyTorch's create_mask."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
from mask_mods import MaskMod, assert_exact, torch

attn_gym = pytest.importorskip("attn_gym", reason="attn-gym is not installed")

Sizes = tuple[int, int, int, int]


def _offsets(*lengths: int) -> Any:
    from attn_gym.masks.document_mask import length_to_offsets

    return length_to_offsets(list(lengths), "cpu")


def _ancestors() -> Any:
    from attn_gym.masks import build_tree_ancestor_matrix

    return build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 5], "cpu")


def _chosen_tiles(batch: int, heads: int, q_tiles: int, kv_tiles: int, most: int) -> Any:
    torch.manual_seed(3)
    return torch.rand(batch, heads, q_tiles, kv_tiles).argsort(-1)[..., :most].to(torch.int32)


# Each entry says how the generator is called, and sizes (batch, heads, q_len, kv_len). Few sizes
# are multiples of a block.
CASES: dict[str, list[tuple[Callable[[Any], MaskMod], Sizes]]] = {
    "causal.causal_mask": [(lambda f: f, (1, 1, 131, 257))],
    "batchify.batchify_mask_mod": [
        (lambda f: f(attn_gym.masks.causal_mask, 37), (1, 1, 200, 190)),
        (lambda f: f(attn_gym.masks.generate_sliding_window(5), 64), (1, 1, 130, 200)),
    ],
    "block_diffusion.generate_block_diffusion_mask": [
        (lambda f: f(50, 8), (1, 1, 100, 100)),
        (lambda f: f(96, 32), (1, 1, 192, 192)),
    ],
    "dilated_sliding_window.generate_dilated_sliding_window": [
        (lambda f: f(40, 3), (1, 1, 150, 171)),
        (lambda f: f(7, 1), (1, 1, 65, 64)),
    ],
    "document_mask.generate_doc_mask_mod": [
        (lambda f: f(attn_gym.masks.causal_mask, _offsets(20, 1, 70, 40)), (1, 1, 131, 131)),
        (lambda f: f(attn_gym.masks.generate_sliding_window(9), _offsets(64, 66)), (1, 1, 130, 99)),
    ],
    "document_mask.generate_packed_causal_doc_mask_mod": [
        (lambda f: f(_offsets(20, 1, 70, 40)), (1, 1, 131, 131)),
    ],
    "flamingo.generate_vision_cross_attention_mask_mod": [
        (
            lambda f: f(torch.tensor([[0, 40], [40, 90], [60, 131]], dtype=torch.int32), 21),
            (1, 1, 131, 63),
        ),
    ],
    "global_sliding_window.generate_global_sliding_window": [
        (lambda f: f(11, torch.arange(140) % 37 == 0), (1, 1, 139, 140)),
    ],
    "jetspec.generate_jetspec_training_mask_mod": [
        (lambda f: f(40, 7), (1, 1, 91, 131)),
        (lambda f: f(0, 16), (1, 1, 50, 50)),
    ],
    "jetspec.generate_jetspec_tree_causal_mask_mod": [
        (lambda f: f(40, _ancestors()), (1, 1, 7, 50)),
    ],
    "natten.generate_natten": [(lambda f: f(12, 11, 5, 3), (1, 1, 132, 132))],
    "natten.generate_tiled_natten": [(lambda f: f(12, 12, 5, 3, 4, 6), (1, 1, 144, 144))],
    "natten.generate_morton_natten": [(lambda f: f(16, 16, 5, 7), (1, 1, 256, 256))],
    "prefix_lm.generate_prefix_lm_mask": [(lambda f: f(33), (1, 1, 70, 131))],
    "shared_prefix.generate_shared_prefix_mask_mod": [
        (
            lambda f: f(_offsets(20, 11, 70, 30), torch.tensor([0, 0, 0, 3], dtype=torch.int32)),
            (1, 1, 131, 131),
        ),
    ],
    "sliding_window.generate_sliding_window": [(lambda f: f(31), (1, 1, 131, 99))],
    "sta.generate_sta_mask_mod_2d": [
        (lambda f: f((12, 12), (8, 4), (4, 2)), (1, 1, 144, 144)),
        (lambda f: f((8, 12), (8, 6), (4, 2), 13), (1, 1, 109, 111)),
    ],
    "sta.generate_sta_mask_mod_3d": [
        (lambda f: f((4, 4, 6), (2, 4, 2), (2, 2, 2), 9), (1, 1, 105, 106)),
    ],
    "svg.generate_spatial_head_mask_mod": [
        (lambda f: f(16, 3, 40, 2, False, 16), (1, 1, 136, 131)),
        (lambda f: f(16, 3, 40, 2, True, 16), (1, 1, 131, 136)),
    ],
    "svg.generate_temporal_head_mask_mod": [(lambda f: f(16, 3, 40, 2), (1, 1, 136, 135))],
    "vsa.generate_vsa_mask_mod": [
        (lambda f: f(_chosen_tiles(2, 3, 5, 7, 3), 8), (2, 3, 40, 56)),
        (
            lambda f: f(_chosen_tiles(1, 2, 4, 9, 6), 8, torch.tensor([8, 8, 3, 8, 1, 8, 8, 5, 0])),
            (1, 2, 31, 71),
        ),
    ],
    "vsa.generate_vsa_padding_mask_mod": [
        (lambda f: f(torch.tensor([8, 3, 8, 0]), 8), (1, 1, 9, 32)),
    ],
}


def _generators() -> dict[str, Any]:
    """Returns the objects that the modules define and that are a mask_mod or make one."""
    found = {}
    for entry in pkgutil.iter_modules(attn_gym.masks.__path__):
        module = importlib.import_module(f"attn_gym.masks.{entry.name}")
        for name, value in vars(module).items():
            if not inspect.isfunction(value) or value.__module__ != module.__name__:
                continue
            returns = str(inspect.signature(value).return_annotation)
            takes = list(inspect.signature(value).parameters)
            if "_mask_mod_signature" in returns or "mask_mod" in name or takes[:1] == ["b"]:
                found[f"{entry.name}.{name}"] = value
    # The rules above miss names that say mask in other ways.
    for name in attn_gym.masks.__dict__:
        value = getattr(attn_gym.masks, name)
        if inspect.isfunction(value) and name.startswith("generate_"):
            found[f"{value.__module__.rpartition('.')[2]}.{name}"] = value
    return found


def test_no_generator_is_missed() -> None:
    assert sorted(_generators()) == sorted(CASES)
    assert len(CASES) >= 20


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))]
)
def test_generator_is_exact(name: str, number: int) -> None:
    make, sizes = CASES[name][number]
    assert_exact(make(_generators()[name]), sizes)


def test_masks_of_its_score_functions_are_exact() -> None:
    # alibi and the others bring their own causal mask, which is the one above.
    from attn_gym.masks import causal_mask

    assert str(assert_exact(causal_mask, (1, 1, 40, 50))) == "q >= k"
