"""Writes and reads groups of arrays of other systems with h5py, as their users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np


def fill(path: Path, name: str, **fields: Any) -> None:
    """Fills group `name` with one dataset for each field, as an h5py user would."""
    with h5py.File(path, "w") as file:
        group = file.create_group(name)
        for field, values in fields.items():
            group[field] = values


def read(path: Path, name: str) -> dict[str, Any]:
    with h5py.File(path, "r") as file:
        group = file[name]
        arrays = {field: group[field][...] for field in group}
        return arrays | {field: group.attrs[field] for field in group.attrs}


def write_dense(path: Path, cells: Any) -> None:
    with h5py.File(path, "w") as file:
        file["mask"] = np.asarray(cells, np.bool_)
