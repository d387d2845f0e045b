"""Tests FlexAttention functions that cannot be traced, and the messages that say so."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from mask_mods import MaskMod, expected_cells, torch

# isort: split
import fdma

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

SIZES = (2, 3, 13, 17)

document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4], dtype=torch.int32)
chosen = torch.tensor([[1, 4, 7, 16], [0, 2, 3, 5]], dtype=torch.int32)

REFUSED: dict[str, tuple[MaskMod, str]] = {
    "if": (lambda b, h, q, k: q >= k if q > 3 else k < 2, r"bool\(\)"),
    "and": (lambda b, h, q, k: q >= k and k < 2, r"bool\(\).*& \| ~"),
    "not": (lambda b, h, q, k: not q >= k, r"bool\(\)"),
    "chain": (lambda b, h, q, k: 0 <= q - k < 5, r"chained comparison"),
    "max": (lambda b, h, q, k: max(q, k) < 5, r"torch\.maximum"),
    "int": (lambda b, h, q, k: int(q) > 3, r"int\(\)"),
    "float": (lambda b, h, q, k: float(q) > 3, r"float\(\)"),
    "item": (lambda b, h, q, k: q.item() > 3, r"Tensor\.item"),
    "tolist": (lambda b, h, q, k: q.tolist() > 3, r"Tensor\.tolist"),
    "numpy": (lambda b, h, q, k: q.numpy() > 3, r"Tensor\.numpy"),
    "list index": (lambda b, h, q, k: [1, 2, 3][q] > k, r"index of a list.*index a tensor"),
    "range": (lambda b, h, q, k: sum(i for i in range(q)) > k, r"a range"),
    "slice": (lambda b, h, q, k: document[:q].sum() > k, r"slice with a traced bound"),
    "iteration": (lambda b, h, q, k: list(q) > k, r"iteration"),
    "true division": (lambda b, h, q, k: q / 2 > k, r"true division.*use //"),
    "torch.div": (lambda b, h, q, k: torch.div(q, 2) > k, r"true division.*rounding_mode"),
    "float factor": (lambda b, h, q, k: q * 0.5 > k, r"the float 0\.5"),
    "float cast": (lambda b, h, q, k: q.float() > k, r"Tensor\.float"),
    "float type": (lambda b, h, q, k: q.to(torch.float32) > k, r"float32"),
    "float table": (lambda b, h, q, k: torch.rand(20)[k] + k > 1, r"add of a lookup in floats and"),
    "two float tables": (
        lambda b, h, q, k: torch.rand(20)[k] - torch.rand(20)[q] > 0,
        r"sub of a lookup in floats and",
    ),
    "float, maximum": (
        lambda b, h, q, k: torch.maximum(torch.rand(20)[k], q) > 0,
        r"maximum of a lookup in floats",
    ),
    "float, softmax": (
        lambda b, h, q, k: torch.softmax(torch.rand(2, 20)[b], -1)[k] > 0.1,
        r"softmax of a lookup in floats",
    ),
    "float as a condition": (
        lambda b, h, q, k: (q > k) & torch.rand(20)[k],
        r"in floats|float of a",
    ),
    "row of floats": (
        lambda b, h, q, k: torch.rand(20).add(k.unsqueeze(-1)).bool().any(-1),
        r"array of type float32",
    ),
    "large float": (lambda b, h, q, k: q < 2.0**30 + 0.5, r"the float 1073741824"),
    "cumsum": (lambda b, h, q, k: torch.cumsum(chosen[b], 0)[1] > k, r"torch\.cumsum"),
    "sort": (lambda b, h, q, k: chosen[b].sort().values[0] > k, r"Tensor\.sort"),
    "argmax": (lambda b, h, q, k: chosen[b].argmax() > k, r"Tensor\.argmax"),
    "indices of max": (lambda b, h, q, k: chosen[b].max(-1).indices > k, r"indices of min or max"),
    "functional": (lambda b, h, q, k: torch.nn.functional.one_hot(q, 20)[3] == 1, r"one_hot"),
    "sqrt": (lambda b, h, q, k: torch.sqrt(q) > k, r"torch\.sqrt"),
    "matmul": (lambda b, h, q, k: chosen @ q > k, r"matmul"),
    "boolean mask": (lambda b, h, q, k: document[document > q].any(), r"boolean mask"),
    "minus": (lambda b, h, q, k: (q > 3) - (k > 3), r"- of booleans"),
    "unary minus": (lambda b, h, q, k: -(q > 3), r"unary -"),
    "in": (lambda b, h, q, k: q in (1, 2), r"bool\(\)"),
    "contains": (lambda b, h, q, k: 2 in chosen[b], r"`in`"),
    "assignment": (lambda b, h, q, k: chosen[b].__setitem__(0, 1), r"assignment"),
    "assignment to a tensor": (lambda b, h, q, k: document.__setitem__(q, 1), r"__setitem__"),
    "in-place method": (lambda b, h, q, k: q.add_(1) > k, r"Tensor\.add_"),
    "huge sum": (lambda b, h, q, k: (torch.arange(5000) > q).sum() > k, r"sum of 5000 elements"),
    "five dimensions": (
        lambda b, h, q, k: torch.zeros(1, 1, 1, 1, 20).int()[0, 0, 0, 0, q] == 0,
        r"5 dim",
    ),
    "equal": (lambda b, h, q, k: torch.equal(q, k), r"torch\.equal"),
    "numpy's transpose": (lambda b, h, q, k: np.transpose(q) > k, r"numpy\.transpose"),
    "numpy function": (lambda b, h, q, k: np.sqrt(q) > k, r"numpy\.sqrt"),
    "numpy array": (lambda b, h, q, k: np.asarray(q) > k, r"asarray"),
    "argument": (lambda b, h, q, k: np.add(q, k, casting="no") > 3, r"numpy\.add with these"),
    "alpha": (lambda b, h, q, k: torch.add(q, k, alpha=2) > 3, r"alpha"),
    "exponent": (lambda b, h, q, k: q**k > 3, r"traced exponent"),
    "negative shift": (lambda b, h, q, k: q << -1 > 3, r"<< -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_and_names(name: str) -> None:
    mask_mod, message = REFUSED[name]
    with pytest.raises(fdma.TraceError, match=message) as caught:
        fdma.compile(mask_mod, 16)
    text = str(caught.value)
    assert isinstance(caught.value, NotImplementedError)
    assert "sample=True" in text
    line = inspect.getsourcelines(mask_mod)[1]
    assert f"(test_trace_refused.py:{line}" in text.replace(f":{line + 1}", f":{line}")
    # The next function is traced as if no function had been refused.
    assert str(fdma.trace_mask_mod(lambda b, h, q, k: q >= k)) == "q >= k"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda q, k: q + k, "int64"),
        (lambda q, k: None, "NoneType"),
        (lambda q, k: "yes", "str"),
        (lambda q, k: chosen == k, r"shape \(2, 4\)"),
        (lambda q, k: (q > k, k), "tuple"),
        (lambda q, k: 1, "int64"),
    ],
)
def test_rejects_what_is_no_condition(result: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fdma.trace_mask_mod(lambda b, h, q, k: result(q, k))
    with pytest.raises(TypeError, match=r"a function of"):
        fdma.trace_mask_mod(3)  # type: ignore[arg-type]


def test_errors_of_the_function_are_its_own() -> None:
    def broken(b: Any, h: Any, q: Any, k: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fdma.trace_mask_mod(broken)
    with pytest.raises(IndexError, match="out of bounds"):
        fdma.trace_mask_mod(lambda b, h, q, k: document[q] == document[40])
    with pytest.raises(TypeError):
        fdma.trace_mask_mod(lambda q, k: q >= k)
    assert not hasattr(fdma.trace_mask_mod(lambda b, h, q, k: q >= k), "nothing")


def test_lookups_outside_are_errors_as_in_pytorch() -> None:
    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return document[q + 10] == document[k]

    with pytest.raises(IndexError):
        expected_cells(mask_mod, SIZES)
    with pytest.raises(ValueError, match="document"):
        fdma.compile(mask_mod, 13, 17)


def test_libraries_may_ask_what_a_symbol_is() -> None:
    def curious(b: Any, h: Any, q: Any, k: Any) -> Any:
        assert not torch.is_tensor(q) and not hasattr(q, "no_such_attribute")
        assert getattr(q, "no_such_attribute", 3) == 3 and repr(q) == "<traced int64>"
        assert q.device == document.device and q.ndim == 0 and not q.is_cuda
        return q >= k

    fdma.trace_mask_mod(curious)
