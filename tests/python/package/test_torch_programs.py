"""Tests programs that PyTorch records.

The mask is stored in the program, so that any process can run it.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from fdma_module import FOLDER

# isort: split
import fdma
from fdma.masks import mask_text

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

attend: Any = fdma.attention
SPEC = "causal & window(16)"


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return attend(q * 2, k, v, self.mask)


def tensors() -> tuple[Any, ...]:
    torch.manual_seed(1)
    return tuple(torch.randn(1, heads, 64, 16) for heads in (4, 2, 2))


_LOADERS = {
    "export": "torch.export.load(path).module()",
    "jit": "torch.jit.load(path)",
    "AOTInductor": "torch._inductor.aoti_load_package(path)",
}


def run_elsewhere(path: Path, kind: str, tmp_path: Path) -> Any:
    """Returns the result of a program in another process, which has used other masks before."""
    text = f"""
import sys, torch
sys.path.insert(0, sys.argv[1])
import fdma, fdma.attention.pytorch
q, k, v = torch.load(sys.argv[3])
others = [fdma.compile(f"window({{w}})", 64) for w in range(1, 9)]
with torch.device("cpu"):
    for other in others:
        fdma.attention(q, k, v, other)
with torch.profiler.profile():
    fdma.attention(q, k, v, others[0])
path = sys.argv[2]
torch.save({_LOADERS[kind]}(q, k, v), sys.argv[4])
"""
    given, out = tmp_path / "given.pt", tmp_path / "out.pt"
    torch.save(tensors(), given)
    arguments = [str(x) for x in (FOLDER, path, given, out)]
    subprocess.run([sys.executable, "-c", text, *arguments], check=True)
    return torch.load(out)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_carries_its_mask(tmp_path: Path, strict: bool) -> None:
    layer = Layer(fdma.compile(SPEC, 64))
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(layer, tensors(), strict=strict), path)
    assert torch.equal(run_elsewhere(path, "export", tmp_path), layer(*tensors()))


def test_a_traced_program_carries_its_mask(tmp_path: Path) -> None:
    layer = Layer(fdma.compile(SPEC, 64))
    path = tmp_path / "program.pt"
    torch.jit.save(torch.jit.trace(layer, tensors()), path)
    assert torch.equal(run_elsewhere(path, "jit", tmp_path), layer(*tensors()))


def test_a_packaged_program_carries_its_mask(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs g++")
    layer = Layer(fdma.compile(SPEC, 64))
    program = torch.export.export(layer, tensors())
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "program.pt2")
    )
    found = run_elsewhere(Path(path), "AOTInductor", tmp_path)
    torch.testing.assert_close(found, layer(*tensors()))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_writes_the_mask_down(mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = Layer(fdma.compile(SPEC, 64))
    expected = layer(*tensors())
    graph = make_fx(layer, tracing_mode=mode)(*tensors())
    del layer
    assert mask_text._PREFIX in graph.code
    assert torch.equal(graph(*tensors()), expected)


def test_an_expression_with_arrays_is_written_down() -> None:
    mask = fdma.causal() & fdma.documents(lengths=[40, 24])
    traced = torch.jit.trace(lambda q, k, v: attend(q, k, v, mask), tensors())
    assert torch.equal(traced(*tensors()), attend(*tensors(), mask))


def test_a_program_has_gradients() -> None:
    layer = Layer(fdma.compile(SPEC, 64))
    given = [x.requires_grad_() for x in tensors()]
    program = torch.export.export(layer, tuple(given)).module()
    grads = torch.autograd.grad(program(*given).square().sum(), given)
    wanted = torch.autograd.grad(layer(*given).square().sum(), given)
    for grad, want in zip(grads, wanted, strict=True):
        assert torch.equal(grad, want)


MASKS = {
    "causal": lambda: fdma.compile("causal", 64),
    "per head": lambda: fdma.compile("k <= q + 3 * h", 64, heads=4),
    "lengths": lambda: fdma.compile("causal", [64, 30]),
    "table": lambda: fdma.compile("@t[k] == 1", 64, t=[i % 3 for i in range(64)]),
    "bcsr": lambda: fdma.compile("(q * k) % 7 < 3", 64, format="bcsr", block=16),
    "bitset": lambda: fdma.compile("(q * k) % 7 < 3", 64, format="bitset"),
    "none": lambda: fdma.compile("false", 64),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_comes_back_from_its_text(name: str) -> None:
    mask = MASKS[name]()
    text = mask_text.text_of_mask(mask)
    assert mask_text.is_mask_text(text) and text.isascii()
    again = mask_text.mask_of_text(text)
    assert again == mask and again.content_hash == mask.content_hash
    assert (again.format, again.spec) == (mask.format, mask.spec)
    assert mask_text.mask_of_text(str(text.encode(), "ascii")) is again  # the text is unpacked once


def test_a_mask_that_is_too_large_for_a_program_is_refused() -> None:
    import numpy as np

    random = np.random.default_rng(0).random((1, 1, 4096, 4096)) < 0.5
    layer = Layer(fdma.BlockMask.from_dense(random))
    q = torch.randn(1, 1, 4096, 16)
    message = r"mask: .*takes [0-9.]+ MiB .* up to 1 MiB; give its text or its expression"
    with pytest.raises(NotImplementedError, match=message):
        torch.export.export(layer, (q, q, q))
    with pytest.raises(NotImplementedError, match=message):
        torch.jit.trace(layer, (q, q, q))


def test_masks_are_kept_up_to_a_bound() -> None:
    for window in range(1, 100):
        text = mask_text.text_of_mask(fdma.compile(f"window({window})", 128))
        mask_text.mask_of_text(text)
    assert len(mask_text._cached) <= mask_text._MAX_MASKS
    assert mask_text._kept_bytes() <= mask_text._MAX_KEPT_BYTES


def _call(text: str) -> Any:
    return torch.ops.fdma.attention(*tensors(), text, 0, 0.0, True, False, -1, False)


def _packed(data: bytes) -> str:
    return mask_text._PREFIX + base64.b64encode(zlib.compress(data)).decode()


def _changed(**entries: Any) -> str:
    """Returns the text of a mask with other entries in its header."""
    text = mask_text.text_of_mask(fdma.compile(SPEC, 64))
    data = zlib.decompress(base64.b64decode(text.removeprefix(mask_text._PREFIX)))
    size = int.from_bytes(data[:8], "little")
    header = {**json.loads(data[8 : 8 + size]), **entries}
    encoded = json.dumps({k: v for k, v in header.items() if v is not None}).encode()
    return _packed(len(encoded).to_bytes(8, "little") + encoded + data[8 + size :])


def test_rejects_texts_that_are_damaged() -> None:
    attend(*tensors())  # this call registers the operators
    good = mask_text.text_of_mask(fdma.compile(SPEC, 64))
    packed = good.removeprefix(mask_text._PREFIX)
    damaged = {
        "not base64": mask_text._PREFIX + "?" + packed,
        "cut": good[: len(good) // 2 // 4 * 4],
        "no stream": mask_text._PREFIX + base64.b64encode(b"mask").decode(),
        "two streams": mask_text._PREFIX + base64.b64encode(base64.b64decode(packed) * 2).decode(),
        "a bomb": _packed(bytes(mask_text.MAX_BYTES + 1)),
        "no header": _packed(b""),
        "a header longer than the data": _packed((1 << 40).to_bytes(8, "little")),
        "no mapping": _packed((2).to_bytes(8, "little") + b"[]"),
        "deep": _packed((1 << 20).to_bytes(8, "little") + b"[" * (1 << 20)),
        "other lengths": _changed(q_len=63),
        "no hash": _changed(content_hash=None),
        "another hash": _changed(content_hash="0" * 16),
        "an unknown entry": _changed(surprise=1),
        "a missing entry": _changed(num_heads=None),
        "a wrong type": _changed(num_heads="1"),
        "a negative shape": _changed(group_of={"array": "int32", "shape": [-1]}),
        "a large shape": _changed(group_of={"array": "int32", "shape": [1 << 40]}),
        "a shape of texts": _changed(group_of={"array": "int32", "shape": ["x"]}),
        "version 0": good.replace("BlockMask/1:", "BlockMask/0:"),
        "no version": good.replace("BlockMask/1:", "BlockMask/"),
        "too long": good + "A" * mask_text.MAX_TEXT,
    }
    for name, text in damaged.items():
        with pytest.raises(ValueError, match="mask: the BlockMask in the program is damaged"):
            _call(text)
            pytest.fail(name)
    with pytest.raises(NotImplementedError, match="saved by a newer FDMA"):
        _call(good.replace("BlockMask/1:", "BlockMask/2:"))
    assert torch.equal(_call(good)[0], attend(*tensors(), SPEC))


def test_every_changed_byte_of_a_text_is_noticed() -> None:
    mask = fdma.compile("(q * k) % 7 < 3", 64, format="bcsr", block=16)
    text = mask_text.text_of_mask(mask)
    start = len(mask_text._PREFIX)
    data = zlib.decompress(base64.b64decode(text[start:]))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        try:
            found = mask_text._unpacked(_packed(bytes(damaged)))[0]
        except (ValueError, NotImplementedError):
            continue
        assert found == mask, at  # no part of the cells, such as the text of the mask


def test_numbers_of_masks_are_of_one_process() -> None:
    text = """
import os, sys
sys.path.insert(0, sys.argv[1])
import fdma
print(fdma.compile("causal", 8)._handle)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(fdma.compile("window(1)", 8)._handle).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 99).decode())
print(fdma.compile("window(2)", 8)._handle)
"""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    numbers = [fdma.compile("causal", 8)._handle]
    for _ in range(3):
        command = [sys.executable, "-c", text, str(FOLDER)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        numbers += [int(line) for line in said.split()]
    assert len({*numbers}) == len(numbers)
    assert all(1 < number < 1 << 53 for number in numbers)
    ordered = sorted(numbers)
    near = [b - a for a, b in itertools.pairwise(ordered) if b - a < 1 << 20]
    assert near == [1, 1, 1]  # these two come from a process that was not forked


def test_a_number_of_another_process_is_an_error() -> None:
    attend(*tensors())
    kept = [fdma.compile(f"window({w})", 64) for w in range(1, 20)]
    for number in (*range(100), kept[0]._handle + 1000):
        with pytest.raises(RuntimeError, match="or of another process"):
            torch.ops.fdma.attention(*tensors(), "", number, 0.0, True, False, -1, False)
