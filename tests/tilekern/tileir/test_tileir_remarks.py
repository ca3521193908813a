"""Parsing what the assembler prints; the texts are in the forms its documentation shows."""

from tilekern.tileir._remarks import parse_places, parse_remarks

WARNING = """\
warning[]: High register usage
      --> loc(unknown)
       |
       = name: RegisterPressure
       = reason: Estimated per-thread register usage exceeds the available budget.
       = suggestion: Reduce the tile size or lower the occupancy hint.
"""

REMARKS = """\
in function: first:

  category: Hints
    remark[analysis]: OptimizationHint used num_cta_in_cga
      --> "a b.py":8:5
       |
       = name: RemarkHint

  category: Memory
    remark[failed]: Failed to select TMA load instruction
      --> "dir/quote\\"d.py":12:7
       |
       = name: RemarkMemoryTmaLoadFailed
       = reason: one
       = reason: two

in function: second:

  category: Tensor-core
    remark[passed]: MMA operation successfully optimized to use Tensor Cores
"""


def test_warnings() -> None:
    (warning,) = parse_remarks("some other line\n" + WARNING)
    assert (warning.kind, warning.name, warning.title) == (
        "warning",
        "RegisterPressure",
        "High register usage",
    )
    assert warning.place is None
    assert warning.details[1] == "Reduce the tile size or lower the occupancy hint."
    assert str(warning).startswith("warning: High register usage (Estimated")


def test_remarks_keep_function_and_category() -> None:
    hint, load, product = parse_remarks(REMARKS)
    assert (hint.function, hint.category, hint.kind, hint.place) == (
        "first",
        "Hints",
        "analysis",
        ("a b.py", 8, 5),
    )
    assert (load.function, load.category, load.details) == ("first", "Memory", ("one", "two"))
    assert load.place == ('dir/quote"d.py', 12, 7)
    assert (product.function, product.category, product.name) == ("second", "Tensor-core", "")


def test_nothing_said() -> None:
    assert parse_remarks("") == ()
    assert parse_places("error: no place here") == ()


def test_places_of_inlined_code_are_innermost_first() -> None:
    text = 'loc(callsite(#cuda_tile.di_loc<loc("h.py":3:2) in x> at #cuda_tile.di_loc<loc("k.py":15:5) in y>)): error'
    assert parse_places(text) == (("h.py", 3, 2), ("k.py", 15, 5))
