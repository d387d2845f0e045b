"""fdma.plan: attention with one mask on tensors of one shape, planned once and run many times.

A plan object is an entry of the cache that `fdma.attention` looks its plans up in, with the mask
and the shape that it was made for. `run` checks its tensors against them and goes the way of
`fdma.attention` from there on. What that way has no words for (outputs that the caller gives,
lengths and documents of one call) goes by arrays.py and plan_torch.py.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn

from ..estimate import Device, Estimate, estimate
from ..masks.block_mask import BlockMask
from ..masks.expr_types import MaskExpr
from .call import Layout, runner_of
from .foreign_keywords import refuse_keywords
from .frameworks import framework
from .plan_arguments import are_same, compiled_mask, described, functions_of, shape_of
from .plans import DType, Entry, Geometry, Place, plans
from .shapes import (
    Extents,
    checked_extents,
    checked_scale,
    checked_softcap,
    is_heads_first,
    refuse_bias,
)
from .threads import process_threads

__all__ = ["AttentionPlan", "plan"]


class AttentionPlan:
    """Attention with one mask on tensors of one shape, planned once; `fdma.plan` makes it.

    >>> import fdma, numpy as np
    >>> plan = fdma.plan("causal & window(64)", q=(1, 8, 300, 64), k=(1, 2, 300, 64))
    >>> plan.shape.heads_kv, plan.backend, plan.tile
    (2, 'cpu', (128, 128))
    >>> q, k = np.ones((1, 8, 300, 64), np.float32), np.ones((1, 2, 300, 64), np.float32)
    >>> plan.run(q, k, k).shape
    (1, 8, 300, 64)
    """

    __slots__ = (
        "_backward",
        "_forward",
        "_geometry",
        "_has_short_rows",
        "_layout",
        "_mask",
        "_place",
        "_shape",
        "_shapes",
    )

    _mask: BlockMask
    _has_short_rows: bool
    _shape: Extents
    _layout: Layout
    _geometry: Geometry
    _place: Place | None
    _shapes: tuple[tuple[int, ...], ...]
    _forward: Entry
    _backward: Entry | None

    def __init__(self) -> None:
        raise TypeError("AttentionPlan: fdma.plan makes them")

    @property
    def mask(self) -> BlockMask:
        """The compiled mask."""
        return self._mask

    @property
    def shape(self) -> Extents:
        """The extents (batch, heads, heads_kv, q_len, kv_len, head_dim, head_dim_v)."""
        return self._shape

    @property
    def layout(self) -> Layout:
        """The order of the tensors' dimensions, "bhsd" or "bshd"."""
        return self._layout

    @property
    def dtype(self) -> DType:
        """The element type of q, k, v and the result."""
        return self._geometry.dtype

    @property
    def backend(self) -> Literal["cpu", "sm90"]:
        """The backend that runs it."""
        return self._geometry.backend

    @property
    def device(self) -> str:
        """The place of the tensors: "cpu", or "cuda:0" and so on."""
        index = self._geometry.device
        return "cpu" if index is None else f"cuda:{index}"

    @property
    def has_key_bias(self) -> bool:
        """Whether each run brings a key bias."""
        return self._geometry.has_key_bias

    @property
    def has_softcap(self) -> bool:
        """Whether each run brings a softcap."""
        return self._geometry.has_softcap

    @property
    def is_closed_form(self) -> bool:
        """Whether each run may bring lengths and documents."""
        return self._geometry.is_closed_form

    @property
    def tile(self) -> tuple[int, int]:
        """Query rows and keys of a tile of the forward kernel."""
        return self._forward.tile

    @property
    def num_work_tiles(self) -> int:
        """Work tiles of the forward call; of a closed-form plan, at its own lengths."""
        return self._forward.num_work_tiles

    @property
    def nbytes(self) -> int:
        """Bytes of the plan where it runs, that of the gradients included once it is made."""
        return self._forward.nbytes + (0 if self._backward is None else self._backward.nbytes)

    def explain(self) -> str:
        """What the planner chose for the forward call, one choice a line, with the predicted costs.

        >>> import fdma
        >>> shape = (1, 2, 300, 64)
        >>> print(fdma.plan("causal", q=shape, k=shape).explain().splitlines()[0])
        costs by cpu, 8 workers
        """
        return self._forward.choices

    def predict(self, device: Device | None = None) -> Estimate:
        """What `fdma.estimate` predicts for it on a device; None means its own backend.

        >>> import fdma
        >>> shape = (1, 8, 4096, 128)
        >>> plan = fdma.plan("causal", q=shape, k=shape, dtype="bfloat16")
        >>> plan.predict("h200").speedup > 1.5
        True
        """
        if device is None:
            device = "cpu" if self.backend == "cpu" else "h200"
        shape = self._shape
        return estimate(
            self._mask,
            heads=shape.heads,
            heads_kv=shape.heads_kv,
            head_dim=shape.head_dim,
            head_dim_v=shape.head_dim_v,
            batch=shape.batch,
            dtype=self.dtype,
            device=device,
            softcap=self.has_softcap,
        )

    def run(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        key_bias: Any = None,
        softmax_scale: float | None = None,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        deterministic: bool = False,
        q_lens: Any = None,
        kv_lens: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        num_threads: int | None = None,
        softcap: float | None = None,
        **others: NoReturn,
    ) -> Any:
        """Attention on tensors of the plan's shape, dtype and place, as `fdma.attention` does it.

        q, k, v, key_bias, softmax_scale, softcap, return_lse, deterministic and num_threads are
        `q`, `k`, `v`, `bias`, `scale`, `softcap`, `return_lse`, `deterministic` and `num_threads`
        of `fdma.attention`. The result and its gradients are those of that function. A plan has a
        key bias, and a softcap, in every run or in none.

        out, lse: arrays of the framework that receive the results, for runs without gradients.
        Rows past lengths are set to 0 and -inf.

        A closed-form plan takes the following arrays, int32 and where q is. They replace what the
        mask says for this run; the plan's own lengths are upper bounds. With PyTorch such a run has
        gradients, which are 0 for rows past lengths; it is not there in torch.compile.

        q_lens, kv_lens: [batch], the lengths of each batch element.
        cu_seqlens_q, cu_seqlens_k: [documents + 1] or [batch, documents + 1], the borders of packed
        documents, in which queries see the keys of their own document alone. Queries and keys are
        packed alike, so that one of the two is enough.

        Raises ValueError and TypeError, which name the argument that is not what the plan was made
        for, and NotImplementedError for what it has not.

        >>> import fdma, numpy as np
        >>> shape = (1, 2, 200, 16)
        >>> plan = fdma.plan("causal", q=shape, k=shape, closed_form=True)
        >>> q, k, v = (np.random.default_rng(i).random(shape, np.float32) for i in range(3))
        >>> packed = plan.run(q, k, v, cu_seqlens_q=np.int32([0, 70, 200]))
        >>> alone = fdma.attention(*(x[:, :, 70:] for x in (q, k, v)), "causal")
        >>> bool(np.allclose(packed[:, :, 70:], alone, atol=1e-6))
        True
        """
        if others:
            refuse_keywords(AttentionPlan.run, others)
        self._check_tensors(q, k, v)
        if (key_bias is not None) != self.has_key_bias:
            raise ValueError(
                "key_bias: expected one, as the plan was made with key_bias=True, got None"
                if self.has_key_bias
                else "key_bias: expected None; fdma.plan(.., key_bias=True) makes plans with one"
            )
        if key_bias is not None:
            refuse_bias(tuple(key_bias.shape), self._shape, "key_bias")
        scale = checked_scale(softmax_scale, "softmax_scale") or None
        cap = checked_softcap(softcap)
        if (cap != 0) != self.has_softcap:
            raise ValueError(
                f"softcap: expected a number, as the plan was made with softcap=True, got {softcap}"
                if self.has_softcap
                else "softcap: expected None; fdma.plan(.., softcap=True) makes plans with one"
            )
        is_of_torch = framework(q) == "torch"
        lengths = self._checked_lengths(q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, is_of_torch)
        if not self.is_closed_form and out is None and lse is None:
            return runner_of(q)(
                *(q, k, v, self._mask, key_bias, scale, self._layout, return_lse),
                *(deterministic, "auto", num_threads, cap),
            )
        if lse is not None and not return_lse:
            raise ValueError("lse: expected None with return_lse=False")
        self._check_outputs(q, out, lse)
        results = functions_of(q).run(
            *(self._forward.plan, q, k, v, key_bias),
            heads_first=self._layout == "bhsd",
            is_short="q_lens" in lengths or self._has_short_rows,
            out=out,
            lse=lse,
            softmax_scale=scale,
            softcap=cap,
            num_threads=num_threads,
            mask=self._mask,
            deterministic=deterministic,
            planned_backward=self._planned_backward,
            **lengths,
        )
        return results if return_lse else results[0]

    def _planned_backward(self, deterministic: bool, num_threads: int) -> Any:
        """The plan of the gradients of runs in closed form, made if there is none yet."""
        if self._backward is None:
            geometry = self._geometry.backward(deterministic)
            self._backward = plans.entry(self._mask, geometry, self._place, num_threads)
        return self._backward.plan

    def __repr__(self) -> str:
        shape = self._shape
        dim = f"{shape.head_dim}"
        if shape.head_dim_v != shape.head_dim:
            dim += f" (values {shape.head_dim_v})"
        form = ", closed form" if self.is_closed_form else ""
        return (
            f"<AttentionPlan {self.backend}, {self.dtype}, batch {shape.batch}, heads "
            f"{shape.heads} over {shape.heads_kv}, {shape.q_len} x {shape.kv_len}, head_dim {dim}, "
            f"tile {self.tile[0]} x {self.tile[1]}{form}, {self.num_work_tiles:,} work tiles, "
            f"{self.nbytes:,} bytes>"
        )

    def _check_tensors(self, q: Any, k: Any, v: Any) -> None:
        functions = functions_of(q)
        for name, x, wanted in zip("qkv", (q, k, v), self._shapes, strict=True):
            if tuple(x.shape) != wanted:
                raise ValueError(
                    f"{name}: expected {list(wanted)}, for which the plan was made, got "
                    f"{list(x.shape)}"
                )
            dtype = functions.dtype(x)
            if dtype != self.dtype:
                raise ValueError(
                    f"{name}: expected {self.dtype}, for which the plan was made, got {dtype}"
                )
        device = functions.device(q)
        if device != self._geometry.device:
            raise ValueError(
                f"q: expected it on {self.device}, for which the plan was made, got it on "
                + ("cpu" if device is None else f"cuda:{device}")
            )

    def _check_outputs(self, q: Any, out: Any, lse: Any) -> None:
        *rows, _ = self._shapes[0]
        shape = self._shape
        for name, x, wanted, dtype in (
            ("out", out, (*rows, shape.head_dim_v), self.dtype),
            ("lse", lse, (shape.batch, shape.heads, shape.q_len), "float32"),
        ):
            if x is None:
                continue
            if not hasattr(x, "dtype") or framework(x) != framework(q):
                raise TypeError(f"{name}: expected an array like q, got {type(x).__name__}")
            if tuple(x.shape) != wanted or str(x.dtype).removeprefix("torch.") != dtype:
                raise ValueError(
                    f"{name}: expected {dtype} {list(wanted)}, got {x.dtype} {list(x.shape)}"
                )

    def _checked_lengths(
        self, q_lens: Any, kv_lens: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, is_of_torch: bool
    ) -> dict[str, Any]:
        given = {
            "q_lens": q_lens,
            "kv_lens": kv_lens,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
        }
        given = {name: x for name, x in given.items() if x is not None}
        if given and not self.is_closed_form:
            raise ValueError(
                f"{next(iter(given))}: expected None; lengths and documents of a run need a plan "
                "in closed form, fdma.plan(.., closed_form=True)"
            )
        for name, x in given.items():
            dtype = str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")
            if dtype != "int32":
                raise ValueError(
                    f"{name}: expected an int32 array, got {dtype}; write "
                    + (
                        f"torch.as_tensor({name}, dtype=torch.int32, device=q.device)"
                        if is_of_torch
                        else f"numpy.asarray({name}, numpy.int32)"
                    )
                )
        borders = given.pop("cu_seqlens_q", None)
        of_keys = given.pop("cu_seqlens_k", None)
        if borders is not None and of_keys is not None and not are_same(borders, of_keys):
            raise NotImplementedError(
                "cu_seqlens_k: expected cu_seqlens_q itself; queries and keys that are packed in "
                "different ways are not there"
            )
        borders = of_keys if borders is None else borders
        if borders is None:
            return given
        if self._shape.q_len != self._shape.kv_len:
            raise NotImplementedError(
                f"cu_seqlens_q: the plan has {self._shape.q_len} queries and {self._shape.kv_len} "
                "keys; only queries and keys that are packed alike are there"
            )
        return {**given, "cu_seqlens": borders}


def plan(
    mask: BlockMask | MaskExpr | str | None = None,
    *,
    q: Any,
    k: Any,
    v: Any = None,
    layout: Layout = "bhsd",
    dtype: str | None = None,
    device: Any = None,
    key_bias: bool = False,
    closed_form: bool = False,
    gradients: bool = False,
    deterministic: bool = False,
    num_threads: int | None = None,
    softcap: bool = False,
    **others: NoReturn,
) -> AttentionPlan:
    """Plans attention with a mask, so that `AttentionPlan.run` does nothing but run.

    q, k, v: tensors or arrays as `fdma.attention` takes them, of which only shapes, dtypes and
    place are read, or shapes. v is like k if it is not given. layout: as in `fdma.attention`.
    mask: as in `fdma.attention`. The mask is compiled once, here; arrays of an expression are read
    now and not again.
    dtype, device: of shapes, "float32" on "cpu" by default; for instance "bfloat16" on "cuda:0".
    They are not given with tensors, which have their own.
    key_bias, softcap: whether every run brings a key bias, or a softcap.
    closed_form: make a plan that holds the integers of a closed-form mask in place of work tiles,
    so that each run may bring its own lengths and documents. Such masks are causal masks, windows,
    sinks, prefixes, padding, documents and their intersections (format "parametric").
    gradients: plan the gradients, too. Otherwise the first call that needs them does, which a CUDA
    graph cannot capture. deterministic: as the gradients will be asked for.
    num_threads: CPU threads that make the plan. The plan does not depend on their number.

    `fdma.attention` finds the same plans in its cache. A plan object keeps its own for as long as
    it lives, also after `fdma.clear_plans`.

    Raises what `fdma.attention` raises for such tensors and such a mask, and NotImplementedError
    for a mask that has no closed form.

    Cost: some milliseconds.

    >>> import fdma
    >>> fdma.plan("causal", q=(2, 8, 1024, 64), k=(2, 8, 1024, 64))  # doctest: +ELLIPSIS
    <AttentionPlan cpu, float32, batch 2, heads 8 over 8, 1024 x 1024, head_dim 64, tile ...>
    """
    if others:
        refuse_keywords(plan, others)
    tensors = {"q": q, "k": k, "v": k if v is None else v}
    q_shape, k_shape, v_shape = (shape_of(name, x) for name, x in tensors.items())
    shape = checked_extents(q_shape, k_shape, v_shape, is_heads_first(layout))
    if shape.batch == 0:
        raise ValueError("q: expected at least 1 batch element, got 0")
    element, index, place = described(tensors, dtype, device)
    threads = process_threads(num_threads)
    compiled = compiled_mask(mask, shape, closed_form, threads, layout == "bhsd")
    geometry = Geometry(
        shape.batch,
        shape.heads,
        shape.heads_kv,
        shape.head_dim,
        shape.head_dim_v,
        element,
        bool(key_bias),
        index,
        is_closed_form=bool(closed_form),
        has_softcap=_is_told(softcap),
    )
    made = object.__new__(AttentionPlan)
    made._mask, made._shape, made._layout = compiled, shape, layout
    made._shapes = q_shape, k_shape, v_shape
    made._geometry, made._place = geometry, place
    made._forward = plans.entry(compiled, geometry, place, threads)
    made._has_short_rows = min(compiled.q_lens) < shape.q_len
    made._backward = None
    if gradients:
        back = geometry.backward(deterministic)
        made._backward = plans.entry(compiled, back, place, threads)
    return made


def _is_told(softcap: Any) -> bool:
    """Whether runs bring a softcap. A number would be one of them, which each run has to bring."""
    if isinstance(softcap, bool):
        return softcap
    raise TypeError(
        f"softcap: expected True or False, got {softcap!r}; each run brings its number, "
        "fdma.plan(.., softcap=True).run(.., softcap=)"
    )
