"""Writes the demo's inputs as a user would: a dense boolean mask and document lengths, with h5py.

    python3 demo_inputs.py <document_lengths.json> <dense.h5> <docs.h5>

The mask is that of packed documents under causal attention: query q sees key k iff both lie in one
document and k <= q. Lengths are the first 8192-token sample of the JSON file.
"""

import json
import sys
from pathlib import Path

import h5py
import numpy as np


def main() -> None:
    source, dense_path, docs_path = sys.argv[1:]
    samples = json.loads(Path(source).read_text(encoding="utf-8"))["8192"]
    lengths = np.array([length for _, length in samples[0]["documents"]], dtype=np.int32)

    document = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(document.size)
    mask = (document[:, None] == document[None, :]) & (position[None, :] <= position[:, None])
    with h5py.File(dense_path, "w") as file:
        file.create_dataset("mask", data=mask, chunks=(256, 1024), compression="gzip")
    with h5py.File(docs_path, "w") as file:
        file.create_dataset("lengths", data=lengths)
    print(
        f"{dense_path}:/mask is {mask.shape[0]} x {mask.shape[1]} {mask.dtype}, "
        f"{mask.sum()} of {mask.size} cells true; {docs_path}:/lengths is {lengths.tolist()}"
    )


if __name__ == "__main__":
    main()
