"""Every operation of the IR: it prints, parses, is verified, runs, and is written as bytecode."""

import pytest
from ir_samples import REFUSED, SAMPLES, function

from tilekern import ir, lowering
from tilekern.errors import VerifyError
from tilekern.interpreter import HANDLERS as INTERPRETED
from tilekern.interpreter._machine import CONTROL as WITH_REGIONS
from tilekern.lowering import HANDLERS as LOWERED

CONTROL = {"if", "for", "loop", "yield", "continue", "break", "return"}
ALL = [
    pytest.param(text, id=f"{name}-{i}") for name, texts in SAMPLES.items() for i, text in enumerate(texts)
]
WRONG = [
    pytest.param(name, text, message, id=f"{name}-{i}")
    for name, cases in REFUSED.items()
    for i, (text, message) in enumerate(cases)
]


@pytest.mark.parametrize("name", ir.OPERATIONS)
def test_operation_is_complete(name):
    assert name in SAMPLES, "no sample"
    assert name in REFUSED, "no test of its verifier"
    assert ir.OPERATIONS[name].__doc__, "no docstring"
    if name not in CONTROL:
        runs = ir.OPERATIONS[name] in INTERPRETED or ir.OPERATIONS[name] in WITH_REGIONS
        assert runs, "the interpreter does not run it"
        assert ir.OPERATIONS[name] in LOWERED, "nothing writes it as bytecode"


@pytest.mark.parametrize("text", ALL)
def test_operation_round_trips(text):
    made = function(text)
    made.verify()
    printed = str(made)
    again = ir.parse(printed)
    assert ir.structurally_equal(made, again)
    assert str(again) == printed


@pytest.mark.parametrize(("name", "text", "message"), WRONG)
def test_verifier_refuses(name, text, message):
    terminated = name in ("yield", "continue", "break") and "{" not in text
    with pytest.raises(VerifyError, match=message) as caught:
        function(text, end="" if terminated else "return").verify()
    assert name in caught.value.op


@pytest.mark.parametrize("text", ALL)
def test_operation_is_valid_tile_ir(text, disassemble):
    disassemble(lowering.lower(function(text)))
