"""FDMA: masks compiled from short expressions, and attention that touches only what they keep.

>>> import fdma
>>> fdma.__version__.count(".")
2
"""

from __future__ import annotations

from . import _fdma
from .estimate import Estimate, device_profile, estimate

__all__ = ["Estimate", "__version__", "device_profile", "estimate"]

__version__: str = _fdma.__version__
