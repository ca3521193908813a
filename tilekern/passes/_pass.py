"""What a pass is, and running several in a row."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from ..errors import KernelOptionError, VerifyError
from ..ir import Function

__all__ = ["PRINT_VARIABLE", "Pass", "run_passes"]

PRINT_VARIABLE = "TILEKERN_PRINT_IR"
"""Environment variable: names of passes after which to print the IR, comma-separated; `after-all` for
every one that changed something, `input` for what the first one is given."""


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite of a function: valid IR in, valid IR out. Options are its fields."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, function: Function) -> bool:
        """Rewrite in place; True when anything changed."""


def run_passes(
    function: Function, passes: Iterable[Pass], *, show: Callable[[str, Function], None] | None = None
) -> bool:
    """Run `passes` in order and verify after each; True when any changed anything.

    Args:
        show: called with a title and the function after each pass that changed something; prints as
            `TILEKERN_PRINT_IR` says if left out.
    Raises:
        VerifyError: a pass left the function invalid; the message names the pass.
        KernelOptionError: `TILEKERN_PRINT_IR` names a pass that there is not.
    """
    if show is None:
        _check_names(os.environ.get(PRINT_VARIABLE, ""))
        show = _print_as_told
    show("input", function)
    any_changed = False
    for one in passes:
        if not one.run(function):
            continue
        any_changed = True
        show(one.name, function)
        try:
            function.verify()
        except VerifyError as error:
            raise VerifyError(f"pass {one.name} left {function.name} invalid: {error}", error.op) from error
    return any_changed


def _check_names(wanted: str) -> None:
    known = {"input", "after-all", *(cls.name for cls in Pass.__subclasses__())}
    for name in filter(None, wanted.split(",")):
        if name not in known:
            raise KernelOptionError(f"{PRINT_VARIABLE} names {name!r}; there are {', '.join(sorted(known))}")


def _print_as_told(title: str, function: Function) -> None:
    wanted = os.environ.get(PRINT_VARIABLE, "")
    if wanted and (title in wanted.split(",") or (title != "input" and "after-all" in wanted.split(","))):
        sys.stderr.write(f"// {function.name}: {title}\n{function}\n")
