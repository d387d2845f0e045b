"""Writes the demo's inputs as a user would, with h5py: a mask, document lengths, tensors.

    python3 demo_inputs.py <document_lengths.json> <dense.h5> <docs.h5> <qkv.h5>

The mask is that of packed documents under causal attention: query q sees key k iff both lie in one
document and k <= q. Lengths are the first 8192-token sample of the JSON file. The tensors are
normal random numbers in float16: 8 query heads of 64 elements on 2 key and value heads.
"""

import json
import sys
from pathlib import Path

import h5py
import numpy as np


def write_tensors(path: str, length: int) -> str:
    random = np.random.default_rng(seed=8192)
    shown = []
    with h5py.File(path, "w") as file:
        for name, heads in (("q", 8), ("k", 2), ("v", 2)):
            values = random.standard_normal((1, length, heads, 64), dtype=np.float32)
            dataset = file.create_dataset(name, data=values.astype(np.float16))
            shown.append(f"/{name} {list(dataset.shape)}")
        return f"{path} holds {', '.join(shown)} {dataset.dtype}"


def main() -> None:
    source, dense_path, docs_path, tensors_path = sys.argv[1:]
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
    print(write_tensors(tensors_path, document.size))


if __name__ == "__main__":
    main()
