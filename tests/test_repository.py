"""What is committed: no path of one machine, no registry host, nothing too large, a tidy changelog."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Spelled in pieces, so that this file passes its own test.
MACHINE_PATH = re.compile(
    r"(?:^|[^A-Za-z0-9_.$~)}/-])/(?:" + "|".join(("work", "root", "home", "farm")) + ")/"
)
TEMPORARY_PATH = re.compile(r"(?:^|[^A-Za-z0-9_.$~)}/-])/" + r"tmp/\w")
REGISTRY_HOST = re.compile(
    r"\b(?:"
    + "|".join(
        (
            r"pypi\." + "org",
            r"pythonhosted\." + "org",
            r"npmjs\." + "(?:org|com)",
            r"deb\.debian\." + "org",
            r"crates\." + "io",
            r"proxy\.golang\." + "org",
            r"download\.pytorch\." + "org",
        )
    )
    + r")\b"
)
LARGEST_FILE_BYTES = 1_000_000
LONGEST_MODULE_LINES = 900
FRAGMENT = re.compile(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md")


def tracked_files() -> list[Path]:
    """The files git tracks; the test is skipped where the sources are no git checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so there is no list of committed files")
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


@pytest.mark.parametrize(
    "pattern",
    [MACHINE_PATH, TEMPORARY_PATH, REGISTRY_HOST],
    ids=["machine-path", "temporary-path", "registry"],
)
def test_no_committed_line_names(pattern: re.Pattern[str]) -> None:
    assert not lines_that_match(pattern)


def test_committed_files_are_small() -> None:
    large = [f"{p.relative_to(ROOT)}" for p in tracked_files() if p.stat().st_size > LARGEST_FILE_BYTES]
    assert not large


def test_python_files_are_not_too_long() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix == ".py" and len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_MODULE_LINES
    ]
    assert not long


def test_changelog_fragments_are_one_sentence() -> None:
    for path in (ROOT / "changelog.d").iterdir():
        if path.name == "README.md":
            continue
        assert FRAGMENT.fullmatch(path.name), f"{path.name}: not <change>.<kind>.md"
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith("."), f"{path.name}: one sentence, ending in a full stop"
        assert "\n\n" not in text, f"{path.name}: one sentence, not paragraphs"


@pytest.mark.parametrize("extra", ["cuda", "nvrtc", "compile"])
def test_what_messages_say_to_install_is_what_the_extra_has(extra):
    """The package is on no index, so they name what is missing itself."""
    from cuda_async.driver.cuda import _bindings, _nvrtc
    from tilekern.tileir import _toolchain

    hint = {"cuda": _bindings.INSTALL, "nvrtc": _nvrtc.INSTALL, "compile": _toolchain.INSTALL_HINT}[extra]
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = metadata["project"]["optional-dependencies"][extra]
    assert hint.partition("pip install ")[2] == " ".join(f'"{package}"' for package in wanted)
