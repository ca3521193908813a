"""Passes: text in, text out.

A golden file holds cases `# title`, the function given, `=>`, the function expected. To write what the passes
give now, run with --update-golden and review the difference.
"""

from pathlib import Path

import pytest

from tilekern import ir, passes
from tilekern.errors import KernelOptionError, VerifyError

GOLDEN = Path(__file__).parent / "golden"
PASSES = {
    p.name: p
    for p in (
        *(
            passes.FoldConstants(),
            passes.SelectBranches(),
            passes.EliminateCommon(),
            passes.HoistInvariants(),
        ),
        *(passes.EliminateDead(), passes.OrderMemory(), passes.DirectAccesses(), passes.PinLoads()),
        *(passes.CheckBounds(), passes.FuseMultiplyAdd(), passes.StateRanges()),
        *(passes.SettleLoads(), passes.CopyHandedOn()),
    )
}


def read_cases(name):
    text = (GOLDEN / f"{name}.txt").read_text()
    cases = []
    for part in text.split("\n# ")[1:]:
        title, _, body = part.partition("\n")
        before, _, after = body.partition("\n=>\n")
        cases.append((title, before.strip() + "\n", after.strip() + "\n"))
    return cases


ALL = [pytest.param(name, *case, id=f"{name}: {case[0]}") for name in PASSES for case in read_cases(name)]


def rewrite(name, before):
    function = ir.parse(before)
    function.verify()
    changed = PASSES[name].run(function)
    function.verify()
    return changed, str(function)


@pytest.mark.parametrize(("name", "title", "before", "after"), ALL)
def test_pass_gives_the_golden_text(name, title, before, after, update_golden):
    if update_golden:
        pytest.skip("they are being written")
    changed, given = rewrite(name, before)
    assert given == after
    assert changed == (after != str(ir.parse(before)))


@pytest.mark.parametrize(("name", "title", "before", "after"), ALL)
def test_pass_has_nothing_left_to_do(name, title, before, after):
    if name in ("order-memory", "check-bounds", "pin-loads", "settle-loads"):
        pytest.skip("it runs once: it would do once more what it did already")
    function = ir.parse(before)
    while PASSES[name].run(function):
        pass
    text = str(function)
    assert not PASSES[name].run(function)
    assert str(function) == text


@pytest.mark.parametrize("name", PASSES)
def test_write_golden_files(name, update_golden):
    if not update_golden:
        pytest.skip("only on request")
    lines = ["Cases of the pass; see test_passes.py."]
    for title, before, _ in read_cases(name):
        lines.append(f"\n# {title}\n{before}=>\n{rewrite(name, before)[1]}".rstrip())
    (GOLDEN / f"{name}.txt").write_text("\n".join(lines) + "\n")


class _Breaks(passes.Pass):
    name = "breaks"

    def run(self, function):
        function.body.ops.pop()
        return True


def test_runner_names_the_pass_that_broke_it():
    function = ir.parse("func @f(%x: f32) {\n  %y = exp %x : f32\n  return\n}")
    with pytest.raises(VerifyError, match="pass breaks left f invalid: exp: ends a block"):
        passes.run_passes(function, [_Breaks()])


def test_runner_shows_what_changed():
    function = ir.parse("func @f(%x: f32) {\n  %y = exp %x : f32\n  return\n}")
    shown = []
    changed = passes.run_passes(
        function, passes.PIPELINE, show=lambda title, f: shown.append((title, str(f)))
    )
    assert changed
    assert shown == [
        ("input", "func @f(%x: f32) {\n  %y = exp %x : f32\n  return\n}\n"),
        ("eliminate-dead", "func @f(%x: f32) {\n  return\n}\n"),
    ]


@pytest.mark.parametrize(
    ("setting", "titles"),
    [("", []), ("after-all", ["eliminate-dead"]), ("input,eliminate-dead", ["input", "eliminate-dead"])],
)
def test_environment_says_what_is_printed(setting, titles, monkeypatch, capsys):
    monkeypatch.setenv(passes.PRINT_VARIABLE, setting)
    function = ir.parse("func @f(%x: f32) {\n  %y = exp %x : f32\n  return\n}")
    passes.run_passes(function, passes.PIPELINE)
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("//")]
    assert printed == [f"// f: {title}" for title in titles]


def test_printing_after_a_pass_that_there_is_not(monkeypatch):
    monkeypatch.setenv(passes.PRINT_VARIABLE, "input,fold-constant")
    function = ir.parse("func @f(%x: f32) {\n  return\n}")
    with pytest.raises(KernelOptionError, match=r"names 'fold-constant'; there are .*fold-constants"):
        passes.run_passes(function, passes.PIPELINE)
