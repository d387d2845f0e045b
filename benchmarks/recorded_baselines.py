"""What others reach, as it was recorded once on the same model of GPU as FDMA is measured on (one
NVIDIA H200, CUDA 13.0, bf16, 2026-11), with cuDNN's full attention beside it.

They cannot run in one process with FDMA, and cards and clocks differ, so goals are compared as
ratios to cuDNN's full attention: FDMA / cuDNN measured in one run against peer / cuDNN recorded.
All figures are TFLOP/s on allowed pairs, head_dim 128; None: not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

LENGTHS = (8192, 32768, 131072)
# Built-in masks of FlashAttention: there the goal is to reach it; elsewhere `goal_factor` of the
# best peer.
BUILT_IN = ("full", "causal", "sliding_window")
Rates = dict[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Peers:
    """Of one direction, 32 heads; by mask: at each of LENGTHS."""

    flashmask: Rates
    """FlashMask V3."""
    flash_attention: Rates
    """The better of FlashAttention-3 and -4."""
    cudnn_full: tuple[float, ...]
    goal_factor: float

    def floor(self, mask: str, tokens: int) -> float | None:
        """FlashMask V3's rate / cuDNN's."""
        return self._to_cudnn(self.flashmask[mask], tokens)

    def goal(self, mask: str, tokens: int) -> float | None:
        """The rate that the goal asks for / cuDNN's."""
        attention = self._to_cudnn(self.flash_attention.get(mask, ()), tokens)
        if mask in BUILT_IN:
            return attention
        best = max(attention or 0.0, self.floor(mask, tokens) or 0.0)
        return self.goal_factor * best or None

    def _to_cudnn(self, rates: tuple[float | None, ...], tokens: int) -> float | None:
        at = LENGTHS.index(tokens)
        rate = rates[at] if at < len(rates) else None
        return None if rate is None else rate / self.cudnn_full[at]


FORWARD = Peers(
    flashmask={
        "full": (610, 618, 613),
        "causal": (544, 610, 553),
        "sliding_window": (336, 511, 582),
        "causal_document": (455, 474, 562),
        "document": (509, 516, 585),
        "share_question": (352, 376, 501),
        "global_sliding_window": (323, 497, 580),
        "causal_blockwise": (503, 509, 580),
        "prefix_lm_document": (456, 468, 561),
        "prefix_lm_causal": (578, 621, None),
        "qk_sparse": (534, 596, 568),
        "random_eviction": (353, 374, 362),
    },
    flash_attention={
        "full": (689, 688, 693),
        "causal": (640, 654, 660),
        "sliding_window": (388, 559, 637),
        "causal_document": (440, 474),
        "document": (546, 552),
        "random_eviction": (236, 254),
    },
    cudnn_full=(626, 617, 601),
    goal_factor=1.1,
)
BACKWARD = Peers(
    flashmask={
        "full": (594, 609, 611),
        "causal": (555, 602, 614),
        "sliding_window": (307, 499, 586),
        "causal_document": (446, 484, 570),
        "document": (515, 531, 583),
        "share_question": (333, 382, 518),
        "global_sliding_window": (352, 509, 582),
        "causal_blockwise": (529, 552, 598),
        "prefix_lm_document": (451, 490, 579),
        "prefix_lm_causal": (566, 604, None),
        "qk_sparse": (542, 597, 608),
        "random_eviction": (393, 420, 428),
    },
    flash_attention={
        "full": (602, 598, 614),
        "causal": (577, 625, 619),
        "sliding_window": (339, 493, 567),
        "causal_document": (371, 400),
        "document": (451, 456),
        "random_eviction": (149, 161),
    },
    cudnn_full=(541, 551, 545),
    goal_factor=1.0,
)

# Forward with batch 1 and 8 heads, at 8K and 32K; cuDNN was not recorded beside these.
FLASHMASK_FEW_HEADS: Rates = {
    "causal": (418, 593),
    "sliding_window": (253, None),
    "causal_document": (284, None),
    "document": (364, None),
    "share_question": (245, 351),
    "global_sliding_window": (126, 345),
    "causal_blockwise": (335, 393),
    "prefix_lm_document": (285, None),
    "qk_sparse": (366, None),
    "random_eviction": (226, None),
}
FLASH_ATTENTION_FEW_HEADS: Rates = {
    "full": (686, 690),
    "causal": (658, 653),
    "sliding_window": (329, 557),
    "causal_document": (332, None),
    "document": (441, None),
    "random_eviction": (187, None),
}
