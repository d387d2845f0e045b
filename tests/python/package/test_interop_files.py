"""Tests the package's interop arrays as HDF5 groups.

fdma-maskc reads the groups that Python makes, and Python reads those of the tool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest
from interop_groups import fill, read
from maskc_tool import maskc, needs_tool

fdma = pytest.importorskip("fdma")
pytestmark = needs_tool

# Each mask belongs to the layouts that can hold it.
SPECS = {"hf_padding": "causal & (k < 20 | k >= 31)", "cu_seqlens": "window(20, 0)"}


def to_fields(layout: str, mask: Any) -> dict[str, Any]:
    """Returns Python's result under the names that the tool reads."""
    if layout == "flex":
        return dict(mask.to_flex_arrays())
    if layout == "bsr":
        arrays = mask.to_bsr(block=16, arrays=True)._asdict()
        return {**arrays, "shape": np.array([112, 128])}
    if layout == "hf_mask":
        return {"attention_mask": mask.to_hf_mask()}
    if layout == "hf_mask_additive":
        return {"attention_mask": mask.to_hf_mask("float32")}
    if layout == "flash_mask":
        return dict(mask.to_flashmask()._asdict())
    fields = dict(getattr(mask, f"to_{layout}")()._asdict())
    fields["num_heads"] = fields.pop("heads")
    return {name: values for name, values in fields.items() if values is not None}


def from_fields(layout: str, fields: dict[str, Any]) -> Any:
    """Returns the mask of a group that the tool wrote."""
    if layout == "flex":
        return fdma.from_flex(fields)
    if layout == "bsr":
        arrays = tuple(fields[name] for name in ("data", "indices", "indptr"))
        return fdma.from_bsr(arrays, q_len=int(fields["q_len"]), kv_len=int(fields["kv_len"]))
    if layout.startswith("hf_mask"):
        return fdma.from_hf_mask(fields["attention_mask"])
    for name in {"causal", "packed"} & set(fields):
        fields[name] = bool(fields[name])
    for name in {"q_len", "num_heads"} & set(fields):
        fields[name] = int(fields[name])
    if "num_heads" in fields:
        fields["heads"] = fields.pop("num_heads")
    if layout == "flash_mask":
        return fdma.from_flashmask(**fields)
    return getattr(fdma, f"from_{layout}")(**fields)


GROUPS = {
    "flex": "block_mask",
    "bsr": "bsr",
    "flash_mask": "flash_mask",
    "cu_seqlens": "cu_seqlens",
    "hf_mask": "hf_mask",
    "hf_mask_additive": "hf_mask",
    "hf_padding": "hf_padding",
}


@pytest.mark.parametrize("layout", GROUPS)
def test_both_ways(layout: str, tmp_path: Path) -> None:
    spec = SPECS.get(layout, "causal & q // 37 == k // 37")
    lengths = ("--q-len", "100", "--kv-len", "117")
    expected = fdma.compile(spec, 100, 117)
    fill(tmp_path / "ours.h5", "g", **to_fields(layout, expected))
    maskc(tmp_path, "convert", "ours.h5:/g", "--from", layout, "-o", "by_tool.h5")
    assert fdma.load(tmp_path / "by_tool.h5") == expected
    maskc(tmp_path, "compile", "--spec", spec, *lengths, "-o", "mask.h5")
    maskc(tmp_path, "convert", "mask.h5", "--to", layout, "--block", "128x128", "-o", "theirs.h5")
    assert from_fields(layout, read(tmp_path / "theirs.h5", GROUPS[layout])) == expected
    # Python and the tool write the same arrays.
    if layout != "bsr":  # these masks have other block sides
        ours, theirs = (
            read(tmp_path / name, group)
            for name, group in (("ours.h5", "g"), ("theirs.h5", GROUPS[layout]))
        )
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values, err_msg=name)
