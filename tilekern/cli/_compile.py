"""`tilekern compile` and `tilekern report`."""

from __future__ import annotations

import argparse
import sys

from ..jit import export_compiled
from ._kernels import UsageError, Wanted, from_file, options_from_text, pairs, wanted

__all__ = ["compile_kernels", "report_kernels"]


def compile_kernels(given: argparse.Namespace) -> int:
    """Compile what the command line or a file lists into a folder."""
    variants = _variants(given)
    targets = list(dict.fromkeys(arch for v in variants for arch in v.architectures))
    if any(set(v.architectures) != set(targets) for v in variants):
        raise UsageError("every variant of one folder is compiled for the same architectures")
    files = export_compiled(given.out, [v.kernel.compile(**v.arguments) for v in variants], arch=targets)
    for file in files:
        sys.stdout.write(f"{file} ({file.stat().st_size} bytes)\n")
    sys.stdout.write(f"{len(files)} variants in {given.out}; use them with tk.load_compiled({given.out!r})\n")
    return 0


def report_kernels(given: argparse.Namespace) -> int:
    """Print how a kernel is compiled."""
    for variant in _variants(given):
        for arch in variant.architectures:
            sys.stdout.write(f"{variant.kernel.report(arch=arch, **variant.arguments)}\n")
    return 0


def _variants(given: argparse.Namespace) -> list[Wanted]:
    architectures = [arch for group in given.arch for arch in group]
    if given.spec is not None:
        if given.kernel or given.argument or given.option:
            raise UsageError("give a file of variants or a kernel with arguments, not both")
        return from_file(given.spec, architectures)
    if not given.kernel:
        raise UsageError("no kernel given; write module:kernel, or --spec FILE")
    texts = pairs(given.argument, "an argument")
    return [wanted(given.kernel, texts, options_from_text(given.option), architectures)]
