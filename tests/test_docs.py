"""The documentation's code runs, and prints what the documentation says.

Every ```python block of README.md and docs/*.md is executed, those of one file in order and in one
namespace. Comments in the Markdown source steer it:

    <!-- skip: why this block cannot run here -->     before a block that is not executed
    <!-- output -->                                   before a ```text block: what the code block above
                                                      it printed, compared line by line

All of it runs on the host device, and once more on a GPU under `-m gpu`.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import cuda_async as ca

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)\s*$")
SKIP = re.compile(r"^<!-- skip: (.+) -->$")
OUTPUT = "<!-- output -->"


@dataclass
class Block:
    """One fenced block that takes part."""

    line: int
    """Line of its first line of code, from 1."""
    code: str
    expected: str | None = None
    """What it prints, where the page says so."""


def blocks_of(text: str) -> list[Block]:
    """The executable blocks of a page."""
    blocks: list[Block] = []
    lines = text.splitlines()
    comment = ""
    position = 0
    while position < len(lines):
        line = lines[position]
        fence = FENCE.match(line)
        if fence is None:
            if line.strip():
                comment = line.strip()
            position += 1
            continue
        end = next(i for i in range(position + 1, len(lines)) if lines[i].strip() == "```")
        content = "\n".join(lines[position + 1 : end]) + "\n"
        if fence[1] == "python" and SKIP.match(comment) is None:
            blocks.append(Block(position + 2, content))
        elif fence[1] == "text" and comment == OUTPUT:
            assert blocks, f"line {position + 1}: output without a block that prints it"
            blocks[-1].expected = content
        comment = ""
        position = end + 1
    return blocks


def run_page(page: Path, folder: Path) -> None:
    """Run a page's blocks in order. Their source is a file, for kernels are read from it."""
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    script = folder / f"{page.stem.replace('-', '_')}.py"
    lines = [""] * (text.count("\n") + 1)
    for block in blocks:
        for offset, line in enumerate(block.code.splitlines()):
            lines[block.line - 1 + offset] = line
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    namespace: dict[str, object] = {"__name__": f"docs_{script.stem}", "__file__": str(script)}
    for block in blocks:
        # Blank lines before the block keep the line numbers of the page in tracebacks.
        code = compile("\n" * (block.line - 1) + block.code, str(script), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.expected is not None:
            assert printed.getvalue().splitlines() == block.expected.splitlines(), f"{page.name}:{block.line}"


def test_documentation_exists() -> None:
    assert len(PAGES) > 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs_on_host_device(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with ca.use_device("host:0"):
        run_page(page, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs_on_gpu(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with ca.use_device("cuda:0"):
        run_page(page, tmp_path)


def test_blocks_are_found_with_marks() -> None:
    page = "\n".join(
        [
            "text",
            "```python",
            "print(1)",
            "```",
            OUTPUT,
            "```text",
            "1",
            "```",
            "<!-- skip: needs two GPUs -->",
            "```python",
            "raise SystemExit",
            "```",
            "```sh",
            "make demo",
            "```",
        ]
    )
    assert blocks_of(page) == [Block(3, "print(1)\n", "1\n")]


LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *PAGES[1:]], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        target
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not missing
