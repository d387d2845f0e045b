"""The mask that a model of transformers carries from where it is made to its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.nn.attention.flex_attention import BlockMask as FlexMask

from ..attention.mask_argument import block_mask
from ..masks.block_mask import BlockMask
from .hf_operators import table_mask

__all__ = ["LayerMask"]

_WHOLE = slice(None)


class _NoDenseMaskError(NotImplementedError, AttributeError):
    """Also an AttributeError, so that hasattr() and getattr() with a default work on masks."""


def _refuse(what: str) -> NoReturn:
    raise _NoDenseMaskError(
        f"attention_mask: this model computes with its mask itself ({what}), but with "
        'attn_implementation="fdma" the mask is a compiled one, no tensor of numbers; use '
        'attn_implementation="eager" for this model'
    )


_VIEWS = {"__getitem__", "contiguous", "expand", "reshape", "squeeze", "unsqueeze", "view"}
_OF_BOOLEANS = {
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__", "__get__"),
    *("bitwise_and", "bitwise_not", "bitwise_or", "logical_and", "logical_not", "logical_or"),
    *("as_subclass", "dim", "is_floating_point", "size", "tolist"),
}


class Cells(torch.Tensor):  # type: ignore[misc]
    """Booleans of a mask, True where a query attends.

    Only logical operations are allowed. Using the booleans as numbers, or as the keys to leave out,
    is an error; models that compute attention themselves do that.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__
        if name not in _OF_BOOLEANS and name not in _VIEWS and name != "to":
            _refuse(name.strip("_"))
        with torch._C.DisableTorchFunctionSubclass():
            out = function(*args, **(kwargs or {}))
            if name == "to" and out.dtype != torch.bool:
                _refuse(f"mask.to({out.dtype})")
            return out if name in _OF_BOOLEANS else out.as_subclass(Cells)


class LayerMask(FlexMask):  # type: ignore[misc]
    """An FDMA BlockMask, in member `mask`, that transformers accepts as a prepared mask.

    `generate` passes masks of fixed-size caches around, and distinguishes a prepared mask from a
    padding mask by PyTorch's type. To models a LayerMask looks like a boolean tensor [batch, heads,
    q_len, kv_len]. Its slices are masks. One head or row of it, and the result of `&` or `|`, are
    dense tensors. Every other operation of a tensor is an error that says so. Inside torch.compile
    and torch.export `mask` is a text of the mask language, and `tables` are the tensors that it
    names t0, t1, ...

    >>> import torch, transformers
    >>> from fdma.hf import LayerMask, mask_function
    >>> layers = mask_function(1, 4, 4)
    >>> layers.shape, layers.mask.spec
    ((1, 1, 4, 4), 'k <= q')
    >>> layers[:, :, -1:].shape
    (1, 1, 1, 4)
    >>> torch.arange(16).view(1, 4, 4).masked_fill(~layers[:, 0], -1)[0, 1].tolist()
    [4, 5, -1, -1]
    """

    ndim = 4
    dtype = torch.bool

    def __init__(
        self,
        mask: BlockMask | str,
        shape: tuple[int, int, int, int] | None = None,
        device: Any = "cpu",
        when_used: Callable[[], None] | None = None,
        tables: list[Any] | None = None,
    ) -> None:
        """shape is given for a text; a BlockMask has its own. The first layer calls when_used."""
        self.mask = mask
        self.device = device
        self.when_used = when_used
        self.tables = tables or []
        self._shape = mask.shape if isinstance(mask, BlockMask) else shape

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, q_len, kv_len)."""
        shape: tuple[int, int, int, int] = self._shape  # type: ignore[assignment]
        return shape

    def dim(self) -> int:
        """4.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 4).dim()
        4
        """
        return 4

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of its numbers.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 6).size(-1)
        6
        """
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        """False.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 4).is_floating_point()
        False
        """
        return False

    def contiguous(self) -> LayerMask:
        """The mask itself.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 4).contiguous().shape
        (1, 1, 4, 4)
        """
        return self

    def to(self, *where: Any, **options: Any) -> LayerMask:
        """The mask for tensors of another device. NotImplementedError for a type other than bool.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 4).to("cpu").shape
        (1, 1, 4, 4)
        """
        device = self.device
        for value in (*where, *options.values()):
            if isinstance(value, torch.Tensor):
                value = value.dtype
            if isinstance(value, torch.dtype) and value != torch.bool:
                _refuse(f"mask.to({value})")
            if isinstance(value, str | torch.device):
                device = value
        return LayerMask(self.mask, self.shape, device, self.when_used, self.tables)

    def to_dense(self) -> Any:
        """Every cell: booleans [batch, heads, q_len, kv_len], True where the query attends.

        Adding them to logits, as eager attention does with its masks, is an error.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 2, 2).to_dense().tolist()
        [[[[True, False], [True, True]]]]
        """
        cells = torch.from_numpy(_block_mask(self).to_dense()).to(self.device)
        return cells.as_subclass(Cells)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if Ellipsis in [part for part in parts if part is ...]:
            at = next(i for i, part in enumerate(parts) if part is ...)
            parts = (*parts[:at], *(_WHOLE,) * (5 - len(parts)), *parts[at + 1 :])
        parts = (*parts, *(_WHOLE,) * (4 - len(parts)))
        if len(parts) != 4 or not all(isinstance(p, slice) and p.step in (None, 1) for p in parts):
            return self.to_dense()[index]
        if all(part.indices(n)[:2] == (0, n) for part, n in zip(parts, self.shape, strict=True)):
            return self
        batch, heads, q, kv = parts
        part = _block_mask(self).crop(q=q, kv=kv, batch=batch, heads=heads)
        return LayerMask(part, device=self.device, when_used=self.when_used)

    def __and__(self, other: Any) -> Any:
        return self.to_dense() & (other.to_dense() if isinstance(other, LayerMask) else other)

    def __or__(self, other: Any) -> Any:
        return self.to_dense() | (other.to_dense() if isinstance(other, LayerMask) else other)

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Any:
        return ~self.to_dense()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | torch.Tensor):
            _refuse("mask == ..")
        return self is other

    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "when_used": None}  # of this process; without it a count is read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"mask.{name}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.is_floating_point:
            return False
        name = function.__name__
        if name not in _OF_BOOLEANS:
            _refuse(name.strip("_"))
        return function(*(x.to_dense() if isinstance(x, LayerMask) else x for x in args))

    def __repr__(self) -> str:
        return f"LayerMask({self.mask!r})"

    __str__ = __repr__


def _arithmetic(sign: str) -> Callable[[Any, Any], NoReturn]:
    def refused(_: Any, __: Any) -> NoReturn:
        _refuse(f"mask {sign} ..")

    return refused


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}.items():
    setattr(LayerMask, f"__{_name}__", _arithmetic(_sign))
    setattr(LayerMask, f"__r{_name}__", _arithmetic(_sign))


@torch.compiler.disable(reason="cells of the mask are read on the host")  # type: ignore[untyped-decorator]
def _block_mask(layers: LayerMask) -> BlockMask:
    batch, heads, q_len, kv_len = layers.shape
    if layers.tables:
        return table_mask(str(layers.mask), layers.tables, batch, q_len, kv_len)
    return block_mask(layers.mask, batch, heads, q_len, kv_len)
