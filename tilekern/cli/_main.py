"""Arguments of the command, and which function does what they ask for."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from cuda_async.errors import CudaAsyncError

from ._cache import clear_cache, list_cache, show_cache
from ._compile import compile_kernels, report_kernels
from ._kernels import UsageError

__all__ = ["main"]

_ARGUMENTS = """arguments are written NAME=VALUE:
  x='float32[*,*16]'          a tensor that is read: any rows, columns a multiple of 16
  x='float32[4096,1024]'      one whose extents are multiples of what these are
  y='mut float32[*]'          a tensor given as mut()
  out='float32[*,*]/64x64'    a partition into tiles of 64 x 64
  n=int  a=float  k=int64     numbers
  BLOCK=128                   a compile-time constant

example:
  tilekern compile mykernels:scale -a out='float32[*16]/1024' -a x='float32[*16]' --arch sm_90 --out kernels
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Its exit code: 0, 1 where something did not compile, 2 for a wrong command line, 141 where nobody reads on what it
    prints (`tilekern cache list | head`), as a shell has it.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if not hasattr(given, "run"):
        parser.print_help()
        return 2
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 128 + 13  # SIGPIPE
    except UsageError as error:
        sys.stderr.write(f"tilekern: {error}\n")
        return 2
    except (CudaAsyncError, OSError, OverflowError) as error:  # a number may be too large for a kernel
        sys.stderr.write(f"tilekern: {error}\n")
        return 1
    return code


def _drop_output() -> None:
    """Nobody reads it: the interpreter, which flushes it at its end, would say so once more."""
    with contextlib.suppress(OSError, ValueError):  # an output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilekern", description="Tile kernels: compile, report, cache.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    compile_ = commands.add_parser(
        "compile",
        help="compile kernels into a folder for tk.load_compiled",
        epilog=_ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_kernel(compile_)
    compile_.add_argument("--out", default="compiled_kernels", help="folder to write (default: %(default)s)")
    compile_.add_argument("--spec", metavar="FILE", help="a TOML or JSON file that lists variants")
    compile_.set_defaults(run=compile_kernels)
    report = commands.add_parser(
        "report",
        help="how a kernel is compiled: registers, memory units, tensor cores",
        epilog=_ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_kernel(report)
    report.set_defaults(run=report_kernels, spec=None)
    cache = commands.add_parser("cache", help="the disk cache of compiled kernels")
    actions = cache.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("info", help="where it is and how full").set_defaults(run=show_cache)
    actions.add_parser("list", help="its entries, the last used first").set_defaults(run=list_cache)
    actions.add_parser("clear", help="remove every entry").set_defaults(run=clear_cache)
    return parser


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", nargs="?", metavar="MODULE:KERNEL", help="such as mypackage.kernels:scale")
    parser.add_argument(
        "-a", "--argument", action="append", default=[], metavar="NAME=VALUE", help="an argument, see below"
    )
    parser.add_argument(
        "--arch",
        action="append",
        nargs="+",
        default=[],
        metavar="ARCH",
        help="targets, such as sm_90 (default)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="compile option, such as occupancy=2",
    )
