"""PTX on the host device: a parser and an interpreter that runs each instruction for many threads at once.

`parse_module` reads the text (`_parser`, `_syntax`); `PtxModule.load` places its variables (`_module`); an
entry is translated to callables when it first runs (`_translate` and the `_ops_*` families; what pure
instructions mean is in `_semantics`); a launch runs them for the lanes of a wave (`_launch`, `_wave`,
`_lanes`). State spaces and their addresses are described in `_spaces`.
"""

from ._errors import KernelError, KernelMemoryFault, Place
from ._module import LoadedModule, PtxFunction, PtxModule
from ._parser import parse_text as _parse_text
from ._semantics import UnsupportedInstruction

__all__ = [
    "KernelError",
    "KernelMemoryFault",
    "LoadedModule",
    "Place",
    "PtxFunction",
    "PtxModule",
    "UnsupportedInstruction",
    "parse_module",
]


def parse_module(text: str, name: str) -> PtxModule:
    """Parse PTX text.

    Args:
        text: PTX 3.0 to 9.x, as nvcc, NVRTC, Triton or LLVM write it.
        name: what messages call it, such as a file name.
    Raises:
        CompileError: the text is empty, of an unknown version or target, or has an error; the message
            shows the line with a caret.
    """
    return PtxModule(_parse_text(text, name))
