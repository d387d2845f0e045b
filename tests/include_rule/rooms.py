"""Which room of a library may include which: the folders below its sources, and their arrows.

A room, or an arrow, that is not named here is an error; so is a cycle among the arrows.
"""

from __future__ import annotations

# Folder of private headers -> room -> rooms whose headers it may include.
ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "formats/src": {
        "base": (),
        "segment": (),
        "bands": (),
        "algebra": ("bands", "segment"),
        "encodings": ("algebra", "segment"),
        "validate": ("segment",),
        "stored": ("encodings", "segment", "validate"),
        "view": ("segment",),
        "interop": ("validate",),
    },
    "formats/io": {
        "include": (),
        "arrays": (),
        "hdf5": ("arrays",),
        "masks": ("arrays", "hdf5"),
        "dense": ("arrays", "hdf5"),
        "isolated": ("hdf5",),
        "interop": ("hdf5",),
    },
    "masks/src": {
        "language": (),
        "ir": (),
        "bind": ("ir", "language"),
        "lower": ("bind", "ir", "language"),
        "intervals": ("ir", "lower"),
        "boxes": ("ir", "lower"),
        "periodic": ("boxes", "ir", "lower"),
    },
    # A plan knows no backend; cuda is what every GPU backend shares; selection knows no attention.
    "kernels/src": {
        "call": (),
        "plan": ("call",),
        "estimate": ("plan",),
        "cpu": ("call", "plan"),
        "ptx": (),
        "cuda": ("call", "plan", "ptx"),
        "sm90/shared": ("plan", "ptx"),
        "sm90/forward": ("call", "cuda", "ptx", "sm90/shared"),
        "sm90/backward": ("call", "cuda", "plan", "ptx", "sm90/forward", "sm90/shared"),
        "cusparse": ("call", "cuda"),
        "selection/host": (),
        "selection/include": (),
        "selection/scores": ("cuda", "ptx"),
        "selection/topk": ("cuda", "ptx"),
        "dynamic_mask": (
            "call",
            "cuda",
            "plan",
            "ptx",
            "selection/topk",
            "sm90/backward",
            "sm90/forward",
        ),
        "calibrate": ("cpu", "estimate", "plan"),
        # The registry of backends: it wires what the rooms of each backend have.
        "backend": ("calibrate", "cpu", "cuda", "plan", "sm90/backward", "sm90/forward"),
    },
    "tools/maskc": {
        "cli": (),
        "inputs": ("cli",),
        "interop": ("cli",),
        "pictures": ("cli",),
        "run": ("cli", "inputs"),
        "commands": ("cli", "inputs", "interop", "pictures", "run"),
        "": ("cli", "inputs"),
    },
    "python_bindings/src": {
        "arrays": (),
        "": ("arrays",),
        "attention": ("", "arrays"),
        "interop": ("", "arrays"),
        "masks": ("", "arrays"),
        "selection": ("", "arrays", "attention"),
    },
}


# Subpackage or module of the package fdma -> those that it may import. Imports inside functions
# count; imports for types alone (TYPE_CHECKING) do not. `__init__` is above all.
PYTHON_ROOMS: dict[str, tuple[str, ...]] = {
    "_fdma": (),
    "estimate_table": (),
    "masks": ("_fdma", "estimate_table"),
    "trace": ("_fdma", "masks"),
    "files": ("_fdma", "masks"),
    "estimate": ("_fdma", "estimate_table", "masks"),
    "attention": ("_fdma", "estimate", "masks"),
    "interop": ("_fdma", "attention", "masks"),
    "nn": ("attention", "interop", "masks"),
    "hf": ("attention", "interop", "masks"),
    "torch_operators": ("attention", "interop"),
    "__init__": (
        "_fdma",
        "attention",
        "estimate",
        "files",
        "interop",
        "masks",
        "torch_operators",
        "trace",
    ),
}


def room_of(path: str, rooms: dict[str, tuple[str, ...]]) -> str | None:
    """The room that holds `path`, relative to the folder of the rooms; None: no room does."""
    folder = path.rpartition("/")[0]
    while folder not in rooms:
        if not folder:
            return None
        folder = folder.rpartition("/")[0]
    return folder


def has_cycle(rooms: dict[str, tuple[str, ...]]) -> bool:
    """Whether some room includes itself, by way of others."""

    def reaches(room: str, goal: str, seen: set[str]) -> bool:
        for other in rooms[room]:
            if other == goal:
                return True
            if other not in seen:
                seen.add(other)
                if reaches(other, goal, seen):
                    return True
        return False

    return any(reaches(room, room, set()) for room in rooms)
