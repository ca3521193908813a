"""The table of docs/reliability.md: every case has a row, and every test that a row names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
ROWS = re.findall(r"^\| (C\d\d) ([^|]+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_case_has_one_row() -> None:
    assert [case for case, _, _ in ROWS] == [f"C{number:02}" for number in range(1, 41)]


@pytest.mark.parametrize(("case", "title", "cell"), ROWS, ids=[row[0] for row in ROWS])
def test_named_tests_exist(case: str, title: str, cell: str) -> None:
    files = [part.partition(": ") for part in cell.split("; ")]
    named = [(file.strip("`"), re.findall(r"`(test_\w+)`", names)) for file, _, names in files]
    assert named
    for file, names in named:
        assert names, f"{case} ({title}) names no test of {file}"
        assert set(names) <= names_in(TESTS / file), f"{case}: {file} has not all of {names}"


def test_files_that_hold_promises_exist() -> None:
    for path in re.findall(r"^- `((?:tests|tools)/[\w/.]+)`", PAGE.read_text(), re.MULTILINE):
        assert (TESTS.parent / path).exists()
