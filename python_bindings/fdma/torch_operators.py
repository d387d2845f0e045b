"""Registers fdma's PyTorch operators as soon as both packages are imported. `torch.export.load` can
therefore load a program with these operators after `import fdma` and `import torch`, in any order.

fdma does not import PyTorch. If PyTorch is imported later, a module finder waits for that import.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

__all__: list[str] = []


def register() -> None:
    """Registers the operators now, or at the end of the first `import torch`."""
    if sys.modules.get("torch") is not None:
        _register()
    elif "torch" not in sys.modules:  # an entry None means that importing it shall fail
        sys.meta_path.insert(0, _WaitsForTorch())


def _register() -> None:
    # If PyTorch is too old, the first call that needs an operator says what is missing.
    with contextlib.suppress(Exception):
        from .attention import merge_torch, zoh_torch  # noqa: F401
        from .attention import operators as attention_operators  # noqa: F401
        from .interop import hf_operators  # noqa: F401


class _WaitsForTorch:
    """Finds torch by the other finders, and registers the operators at the end of its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        others = (f.find_spec for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        spec = next((s for find in others if (s := find(name, path, target)) is not None), None)
        loader: Any = getattr(spec, "loader", None)
        run = getattr(loader, "exec_module", None)
        if run is None:
            return spec

        def run_and_register(module: Any) -> None:
            del loader.exec_module
            run(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            _register()

        with contextlib.suppress(AttributeError):  # a loader whose attributes cannot be set
            loader.exec_module = run_and_register
        return spec
