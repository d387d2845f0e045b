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
from .plans import DType, Entry, Geometry, Place, ScorePart, plans
from .score import GivenScore
from .shapes import Extents, checked_extents, checked_scale, is_heads_first
from .threads import process_threads

__all__ = ["AttentionPlan", "plan"]


_WORDS: dict[ScorePart, str] = {
    "softcap": "softcap",
    "key_bias": "key_bias",
    "bias": "bias",
    "alibi": "alibi_slopes",
    "relative_table": "relative",
    "sink": "sinks",
    "dropout": "dropout_p",
}
"""Parts of a score, by the core's names, and the arguments that bring them."""
_PARTS = {name: part for part, name in _WORDS.items()}


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
    def score(self) -> tuple[str, ...]:
        """The arguments of `run` that each run brings: "softcap", "key_bias", "bias" and so on."""
        return tuple(_WORDS[part] for part in self._geometry.score)

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
            score=self._geometry.score,
        )

    def run(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        bias: Any = None,
        key_bias: Any = None,
        softmax_scale: float | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        relative: Any = None,
        sinks: Any = None,
        dropout_p: float = 0.0,
        generator: Any = None,
        dropout_seed: Any = None,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        deterministic: bool = False,
        q_lens: Any = None,
        kv_lens: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        num_threads: int | None = None,
        **others: NoReturn,
    ) -> Any:
        """Attention on tensors of the plan's shape, dtype and place, as `fdma.attention` does it.

        softmax_scale is the `scale` of `fdma.attention`, and all arguments that are not named below
        are those of the same name. The result and its gradients are those of that function. What a
        plan was told of the score (`fdma.plan`) comes in every run, and nothing else does.

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
        scale = checked_scale(softmax_scale, "softmax_scale") or None
        given = GivenScore(
            *(bias, key_bias, softcap, alibi_slopes, relative, sinks),
            *(dropout_p, generator, dropout_seed),
        )
        self._check_parts(given)
        score = given if self._geometry.score else None
        is_of_torch = framework(q) == "torch"
        lengths = self._checked_lengths(q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, is_of_torch)
        if not self.is_closed_form and out is None and lse is None:
            return runner_of(q)(
                *(q, k, v, self._mask, score, scale, self._layout, return_lse),
                *(deterministic, "auto", num_threads),
            )
        if lse is not None and not return_lse:
            raise ValueError("lse: expected None with return_lse=False")
        self._check_outputs(q, out, lse)
        results = functions_of(q).run(
            *(self._forward.plan, q, k, v, score),
            heads_first=self._layout == "bhsd",
            is_short="q_lens" in lengths or self._has_short_rows,
            out=out,
            lse=lse,
            softmax_scale=scale,
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

    def _check_parts(self, given: GivenScore) -> None:
        """ValueError for a part of the score that the plan was not told of, or that is missing."""
        for name, part in _PARTS.items():
            value = getattr(given, name)
            is_given = value is not None if name not in ("softcap", "dropout_p") else bool(value)
            is_planned = part in self._geometry.score
            if is_given == is_planned:
                continue
            word = "a number" if name in ("softcap", "dropout_p") else "one"
            told = f"{_told(name)}=True"
            raise ValueError(
                f"{name}: expected {word}, as the plan was made with {told}, got {value}"
                if is_planned
                else f"{name}: expected None; fdma.plan(.., {told}) makes plans with one"
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
    bias: bool = False,
    key_bias: bool = False,
    softcap: bool = False,
    alibi_slopes: bool = False,
    relative: bool = False,
    sinks: bool = False,
    dropout: bool = False,
    closed_form: bool = False,
    gradients: bool = False,
    deterministic: bool = False,
    num_threads: int | None = None,
    **others: NoReturn,
) -> AttentionPlan:
    """Plans attention with a mask, so that `AttentionPlan.run` does nothing but run.

    q, k, v: tensors or arrays as `fdma.attention` takes them, of which only shapes, dtypes and
    place are read, or shapes. v is like k if it is not given. layout: as in `fdma.attention`.
    mask: as in `fdma.attention`. The mask is compiled once, here; arrays of an expression are read
    now and not again.
    dtype, device: of shapes, "float32" on "cpu" by default; for instance "bfloat16" on "cuda:0".
    They are not given with tensors, which have their own.
    bias, key_bias, softcap, alibi_slopes, relative, sinks, dropout: whether every run brings the
    argument of that name, or dropout_p.
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
        _parts_of(
            bias=bias,
            key_bias=key_bias,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            relative=relative,
            sinks=sinks,
            dropout_p=dropout,
        ),
        index,
        is_closed_form=bool(closed_form),
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


def _told(name: str) -> str:
    """The argument of `plan` for an argument of its runs."""
    return "dropout" if name == "dropout_p" else name


def _parts_of(**told: Any) -> tuple[ScorePart, ...]:
    """The parts of the score that runs bring, by the core's names.

    TypeError for a number or a tensor, which each run has to bring.
    """
    for name, value in told.items():
        if not isinstance(value, bool):
            word = _told(name)
            raise TypeError(
                f"{word}: expected True or False, got {_described(value)}; each run brings its "
                f"own, fdma.plan(.., {word}=True).run(.., {name}=)"
            )
    return tuple(part for part, name in _WORDS.items() if told[name])


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
