"""FDMA: masks compiled from short expressions, and attention that touches only what they keep.

>>> import fdma
>>> fdma.__version__.count(".")
2
"""

from __future__ import annotations

from . import _fdma

__all__ = ["__version__"]

__version__: str = _fdma.__version__
