"""The sample kernels: each runs to its end, is right, and says so."""

import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
NAMES = [
    *("attention", "batched_matmul", "fft", "layer_norm", "matmul", "mixture_of_experts"),
    *("persistent_matmul", "transpose", "vector_add"),
]


def test_every_sample_is_tested():
    assert sorted(path.stem for path in (EXAMPLES / "kernels").glob("*.py")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sample_kernel_is_right(load_example, device, monkeypatch, capsys, name):
    module = load_example(f"kernels/{name}")
    monkeypatch.setattr(sys, "argv", ["example", "--device", str(device)])
    assert module.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(rf"PASS: .* on {device}, .*largest error \d\.\de[+-]\d\d$", last)


@pytest.mark.parametrize("name", NAMES)
def test_sample_kernel_says_how_it_is_run(name):
    text = (EXAMPLES / "kernels" / f"{name}.py").read_text(encoding="utf-8")
    assert f"python examples/kernels/{name}.py" in text
