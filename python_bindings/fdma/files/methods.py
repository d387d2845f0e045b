"""Saving as a method of BlockMask."""

from __future__ import annotations

from os import PathLike

from ..masks.block_mask import add_methods
from .mask_files import save

__all__: list[str] = []


class FileMethods:
    """Files as methods of a mask.

    >>> import fdma
    >>> import h5py
    >>> fdma.compile("causal", 4).save("masks.h5")
    """

    def save(
        self, path: str | PathLike[str], *, name: str = "mask", overwrite: bool = False
    ) -> None:
        """Writes the mask into an HDF5 file of FDMA's format; other masks in that file stay.

        `fdma.save` writes several masks at once; `fdma.load` reads one.

        >>> import fdma
        >>> import h5py
        >>> mask = fdma.compile("causal", 4096)
        >>> mask.save("masks.h5", name="causal")
        >>> fdma.load("masks.h5") == mask
        True
        """
        save(path, {name: self}, overwrite=overwrite)  # type: ignore[dict-item]


add_methods(FileMethods)
