"""What an assembler says about itself: its release, the bytecode it reads, the targets it has.

Asking starts three processes. The answers are kept by the identity of the files, so a replaced assembler is
asked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ._process import Finished, run_tool
from ._version import SUPPORTED_VERSIONS, Version

if TYPE_CHECKING:
    from ._toolchain import Toolchain

__all__ = ["Answers", "Store", "answers_of"]

_QUERY_TIMEOUT_S = 10.0


class Store(Protocol):
    """Keeps bytes between processes; may lose them."""

    def get(self, key: bytes) -> bytes | None:
        """What was kept under `key`."""
        ...

    def put(self, key: bytes, value: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Keep `value`; whether it was."""
        ...


class Answers(NamedTuple):
    """What it said."""

    version: str
    bytecode_versions: tuple[Version, ...]
    architectures: tuple[str, ...]


def answers_of(toolchain: Toolchain, store: Store | None) -> Answers:
    """What the assembler says: from the store, or by asking it."""
    key = b"tileiras answers 1\0" + toolchain.fingerprint.encode()
    kept = _read(store.get(key)) if store is not None else None
    if kept is not None:
        return kept
    answers = _ask(toolchain)
    # one that hangs or cannot be started says nothing: that may be different the next time
    if store is not None and answers.bytecode_versions and answers.architectures:
        about = {"kind": "assembler", "assembler": toolchain.assembler, "version": answers.version}
        store.put(key, json.dumps(answers).encode(), about)
    return answers


def _read(text: bytes | None) -> Answers | None:
    if text is None:
        return None
    try:
        version, versions, architectures = json.loads(text)
        pairs = [(int(major), int(minor)) for major, minor in versions]
        return Answers(str(version), tuple(pairs), tuple(map(str, architectures)))
    except (ValueError, TypeError):
        return None


def _ask(toolchain: Toolchain) -> Answers:
    about = _query(toolchain, "--version").stdout
    release = re.search(r"\bV(\d+\.\d+(?:\.\d+)?)", about) or re.search(r"release (\d+\.\d+)", about)
    listed = _query(toolchain, "--list-versions")
    versions = [
        (int(major), int(minor))
        for major, minor in re.findall(r"^\s*(\d+)\.(\d+)\s*$", listed.stdout, re.MULTILINE)
    ]
    if listed.exit_code != 0 or not versions:
        # The first releases cannot list them; each reads the bytecode of its own release and before.
        limit = tuple(map(int, release[1].split(".")[:2])) if release else (0, 0)
        versions = [version for version in SUPPORTED_VERSIONS if version <= limit]
    architectures = re.findall(r"=(sm_\w+)", _query(toolchain, "--help").stdout)
    return Answers(
        release[1] if release else "unknown version", tuple(sorted(versions)), tuple(architectures)
    )


def _query(toolchain: Toolchain, option: str) -> Finished:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tilekern-") as folder:
        try:
            return run_tool([toolchain.assembler, option], Path(folder), _QUERY_TIMEOUT_S)
        except OSError:
            # Whoever runs it for its work meets the same error and reports it; here it just says nothing.
            return Finished(None, "", "")
