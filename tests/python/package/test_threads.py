"""Tests how many threads attention takes.

num_threads, torch.set_num_threads and OMP_NUM_THREADS give the number. A process of its own shows
by its threads whether a call took more: none may come if one is asked for. The test that more come
if more are asked for needs more than one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER

# isort: split
import fdma

attend: Any = fdma.attention
CORES = len(os.sched_getaffinity(0))
HEAD = """
import os
import numpy as np
import fdma

def count():
    return len(os.listdir("/proc/self/task"))

def arrays():
    random = np.random.default_rng(0)
    made = (random.standard_normal((2, h, 600, 32), np.float32) for h in (4, 2, 2))
    return *made, random.standard_normal((2, 64), np.float32), -np.ones(2, np.float32)

q, k, v, dt_proj, a_coef = arrays()
mask = "(q * k) % 7 < 4 & causal"        # compiled cell by cell
"""
TORCH = """
import torch
torch.ones(1, requires_grad=True).sum().backward()  # threads of autograd, one for each GPU
with torch.profiler.profile():                      # and of the profiler
    torch.ones(1).sum()
q, k, v, dt_proj, a_coef = (torch.from_numpy(x).requires_grad_() for x in arrays())
"""
# Each child leaves a number of threads behind; `words` is num_threads=.. or empty.
CALLS = {
    "attention": "fdma.attention(q, k, v, mask{words})",
    "compiled": "fdma.attention(q, k, v, fdma.compile('causal', 600, num_threads=1){words})",
    "dynamic": "fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 32{words})",
    "window": "fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 9, 'window(99)'{words})",
    "scores": "fdma.zoh_scores(v, dt_proj, a_coef{words})",
    "selection": "fdma.select_topk(fdma.zoh_scores(v, dt_proj, a_coef{words}), 32{words})",
}


def grown(body: str, **environment: str) -> int:
    """Returns the number of threads that `body` adds to a process."""
    text = f"{HEAD}{body}\nprint(count() - before)"
    variables = {name: x for name, x in os.environ.items() if name != "OMP_NUM_THREADS"}
    variables |= {"PYTHONPATH": str(FOLDER), **environment}
    ran = subprocess.run(
        [sys.executable, "-c", text], env=variables, check=True, timeout=120, capture_output=True
    )
    return int(ran.stdout)


def all_calls(words: str) -> str:
    return "before = count()\n" + "\n".join(x.format(words=words) for x in CALLS.values())


def test_omp_num_threads_bounds_numpy_calls() -> None:
    for setting in ("1", "1,4"):
        assert grown(all_calls(""), OMP_NUM_THREADS=setting) == 0


def test_num_threads_bounds_numpy_calls() -> None:
    assert grown(all_calls(", num_threads=1"), OMP_NUM_THREADS="4") == 0


@pytest.mark.parametrize("name", CALLS)
def test_calls_take_the_threads_they_are_given(name: str) -> None:
    if CORES < 2:
        pytest.skip("one core")
    call = "before = count()\n" + CALLS[name]
    assert grown(call.format(words=", num_threads=0"), OMP_NUM_THREADS="1") > 0
    # A stage may start before the thread that helped the stage before has gone to sleep.
    assert 0 < grown(call.format(words=", num_threads=2")) <= 3


def test_torch_set_num_threads_bounds_calls_and_gradients() -> None:
    pytest.importorskip("torch")
    body = all_calls("").replace(
        "before", TORCH + "torch.set_num_threads(1)\nfdma.clear_plans()\nbefore", 1
    )
    body += """
fdma.attention(q, k, v, mask).sum().backward()
fdma.attention(q.half(), k.half(), v.half(), "causal").sum().backward()
fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 32).sum().backward()
fdma.zoh_scores(v, dt_proj, a_coef).sum().backward()
with torch.profiler.profile():          # by the operators
    fdma.attention(q, k, v, "causal").sum().backward()
"""
    assert grown(body) == 0


def test_num_threads_bounds_torch_calls_and_gradients() -> None:
    pytest.importorskip("torch")
    warm = "torch.set_num_threads(4)\ntorch.ones(1 << 20).exp()\n"  # the call starts its threads
    body = TORCH + warm + all_calls(", num_threads=1")
    body += """
fdma.attention(q, k, v, mask, num_threads=1).backward(torch.ones_like(q))
fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 8, num_threads=1).backward(torch.ones_like(q))
"""
    assert grown(body, OMP_NUM_THREADS="1") == 0


def test_results_do_not_depend_on_threads() -> None:
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((2, h, 500, 32), np.float32) for h in (4, 2, 2))
    dt_proj, a_coef = random.standard_normal((2, 64), np.float32), -np.ones(2, np.float32)
    results = []
    for n in (None, 0, 1, 2, 3, 5000):
        fdma.clear_plans()
        out, lse = attend(q, k, v, "causal & window(200)", return_lse=True, num_threads=n)
        scores = fdma.zoh_scores(v, dt_proj, a_coef, num_threads=n)
        grads = fdma.zoh_scores_backward(np.ones_like(scores), v, dt_proj, a_coef, num_threads=n)
        learned = fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 20, num_threads=n)
        mask = fdma.select_topk(scores, 20, num_threads=n)
        results.append([out, lse, scores, *grads, learned, mask.to_dense()])
    for others in results[1:]:
        for x, y in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("by_operators", [False, True])
def test_gradients_do_not_depend_on_threads(by_operators: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    given = [torch.randn(2, h, 300, 32, requires_grad=True) for h in (4, 2, 2)]
    grads = []
    for n in (1, 2, None):
        if by_operators:
            torch._dynamo.reset()

        def loss(*x: Any, n: Any = n) -> Any:
            return attend(*x, "causal", num_threads=n).square().sum()

        run = torch.compile(loss, backend="aot_eager", fullgraph=True) if by_operators else loss
        grads.append(torch.autograd.grad(run(*given), given))
    for others in grads[1:]:
        assert all(torch.equal(x, y) for x, y in zip(grads[0], others, strict=True))


@pytest.mark.parametrize(
    ("num_threads", "error", "message"),
    [
        (-1, ValueError, r"num_threads: expected 0 \(all cores\) or more, got -1"),
        (1.5, TypeError, "num_threads: expected an integer or None, got float"),
        (True, TypeError, "num_threads: expected an integer or None, got bool"),
        ("2", TypeError, "num_threads: expected an integer or None, got str"),
    ],
)
def test_wrong_numbers_are_named(num_threads: Any, error: type[Exception], message: str) -> None:
    q = np.zeros((1, 1, 4, 8), np.float32)
    with pytest.raises(error, match=message):
        attend(q, q, q, num_threads=num_threads)
    with pytest.raises(error, match=message):
        fdma.zoh_scores(q, q[0, 0, :1], q[0, 0, 0, :1], num_threads=num_threads)
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(q)
    with pytest.raises(error, match=message):
        attend(x, x, x, num_threads=num_threads)
    with pytest.raises(error, match=message):
        fdma.dynamic_mask_attention(
            x, x, x, x[0, 0, :1], x[0, 0, 0, :1], 2, num_threads=num_threads
        )
