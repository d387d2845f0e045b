"""What to write instead of operations of PyTorch and NumPy that no mask has."""

from __future__ import annotations

__all__ = ["REMEDIES"]

_VALUE = "use operators, lookups in tensors and torch.where, which need no value"
_OUTSIDE = "compute it outside the function and capture the result"
_FLOAT = "compare integers, squares instead of roots, powers of 2 instead of logarithms"
_ROOT = "compare squares: x <= r * r instead of sqrt(x) <= r"
_LOGARITHM = "compare with powers of 2: x < (1 << n), and x & (x - 1) == 0 for a power"

REMEDIES: dict[str, str] = {
    **dict.fromkeys(("item", "tolist", "numpy"), _VALUE),
    **dict.fromkeys(("float", "double", "half", "bfloat16"), _FLOAT),
    **dict.fromkeys(("sqrt", "rsqrt", "hypot", "norm", "dist", "cdist"), _ROOT),
    **dict.fromkeys(("log", "log2", "log10", "exp2", "frexp"), _LOGARITHM),
    **dict.fromkeys(("mean", "median"), "compare the sum with n times the other side"),
    **dict.fromkeys(
        (
            *("cumsum", "cumprod", "sort", "argsort", "topk", "kthvalue", "argmax", "argmin"),
            *("unique", "nonzero", "bincount", "roll", "flip", "softmax", "sigmoid"),
            *("sin", "cos", "exp", "rand", "bernoulli", "one_hot"),
        ),
        _OUTSIDE,
    ),
}
"""By the name of a function or method."""
