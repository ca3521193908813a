"""What PTX text becomes: modules, variables, functions, instructions and operands.

The parser resolves scopes, so nothing here is looked up by name again: a register operand holds its
`Register`, a symbol operand its `Variable` or `Function`, a branch its `Label`. Registers of a function
are numbered in the order of their first use; those declared but never used get no number, since LLVM
declares more than it uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "TYPE_BITS",
    "Address",
    "CallTarget",
    "Function",
    "FunctionPrototype",
    "Immediate",
    "Initializer",
    "Instruction",
    "Label",
    "LabelList",
    "LabelReference",
    "Module",
    "Operand",
    "Pair",
    "Register",
    "RegisterOperand",
    "Sink",
    "SourceLocation",
    "Special",
    "Symbol",
    "TargetList",
    "Tuple",
    "Variable",
    "is_float_type",
    "is_signed_type",
]

TYPE_BITS: dict[str, int] = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "sub" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "f32": 32,
    "tf32": 32,
    "f64": 64,
    "texref": 64,
    "samplerref": 64,
    "surfref": 64,
}
"""Widths of the types that declarations, loads and stores may name."""


def is_signed_type(ptx_type: str) -> bool:
    """Whether widening a value of this type copies its sign bit."""
    return ptx_type[0] == "s" and ptx_type[1:].isdigit()


def is_float_type(ptx_type: str) -> bool:
    """Whether a parameter of this type is a floating-point number."""
    return ptx_type in ("f16", "bf16", "f32", "f64")


@dataclass(slots=True, eq=False)
class Register:
    """A virtual register of one function. `.b128` registers are two halves: see `Tuple`."""

    index: int
    name: str
    type: str

    @property
    def bits(self) -> int:
        """Width in bits; 1 for predicates."""
        return TYPE_BITS[self.type]


@dataclass(slots=True, eq=False)
class Label:
    """A place in a function's statements; `position` is the index of the statement that follows it."""

    name: str
    line: int
    position: int = -1


@dataclass(slots=True, frozen=True)
class SourceLocation:
    """Where an instruction comes from, by `.loc`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# ---------------------------------------------------------------------------------- operands


@dataclass(slots=True, frozen=True)
class RegisterOperand:
    register: Register
    negated: bool = False
    """`!%p` of a predicate."""


@dataclass(slots=True, frozen=True)
class Immediate:
    """A constant.

    Attributes:
        value: the number of an integer; the bits of `0f...` and `0d...`.
        kind: "int"; "f32" or "f64" for bits written as `0f...` or `0d...`; "decimal" for a number such
            as `1.5`, whose f64 bits `value` has.
    """

    value: int
    kind: str = "int"


@dataclass(slots=True, frozen=True)
class Symbol:
    """The address of a variable or function, plus bytes."""

    target: Variable | Function
    offset: int = 0


@dataclass(slots=True, frozen=True)
class Special:
    """A special register, such as ("%tid", "x") or ("%laneid", "")."""

    name: str
    part: str = ""


@dataclass(slots=True, frozen=True)
class Tuple:
    """`{a, b}`: several registers as one vector."""

    elements: tuple[Operand, ...]


@dataclass(slots=True, frozen=True)
class Address:
    """`[base + offset]`; the base is None where the address is a plain number."""

    base: RegisterOperand | Symbol | Special | Tuple | None
    offset: int = 0


@dataclass(slots=True, frozen=True)
class Pair:
    """`d|p`: two results."""

    first: Operand
    second: Operand


@dataclass(slots=True, frozen=True)
class Sink:
    """`_`: a result nobody wants."""


@dataclass(slots=True, frozen=True)
class LabelReference:
    label: Label


Operand = RegisterOperand | Immediate | Symbol | Special | Tuple | Address | Pair | Sink | LabelReference


# -------------------------------------------------------------------------------- statements


@dataclass(slots=True, eq=False)
class LabelList:
    """`.branchtargets`: where a `brx.idx` may go."""

    name: str
    labels: list[Label] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TargetList:
    """`.calltargets`: functions an indirect call may go to."""

    name: str
    functions: tuple[Function, ...] = ()


@dataclass(slots=True, eq=False)
class FunctionPrototype:
    """`.callprototype`: the signature of an indirect call."""

    name: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]


@dataclass(slots=True, frozen=True)
class CallTarget:
    """The operands of a `call`."""

    callee: Operand
    returns: tuple[Operand, ...]
    arguments: tuple[Operand, ...]
    signature: FunctionPrototype | TargetList | None


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction.

    Attributes:
        opcode: the part before the first dot.
        modifiers: the rest, as written, without dots.
        operands: as written; `call` has none and `brx` only its index.
        guard: the predicate of `@p` and `@!p`.
        line: line in the PTX text, from 1.
        text: the instruction as written, on one line.
        location: the source line, where `.loc` tells.
        call: for `call` only.
        targets: for `brx.idx` only.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: RegisterOperand | None
    line: int
    text: str
    location: SourceLocation | None = None
    call: CallTarget | None = None
    targets: LabelList | None = None

    @property
    def spelling(self) -> str:
        """Opcode and modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))

    def describe(self, module: str) -> str:
        """Its line in the text of `module`, itself, and the source line, for a message."""
        source = f" (from {self.location})" if self.location is not None else ""
        return f"line {self.line} of {module}: {self.text}{source}"


@dataclass(slots=True, frozen=True)
class Initializer:
    """One element of a variable's initial value.

    Attributes:
        value: an integer, or the bits of a float of the element's type.
        symbol: added to `value` at load: the address of a variable or function.
        mask: `0xFF00(symbol)`: the part of the address to take; 0 for all of it.
    """

    value: int
    symbol: Variable | Function | str | None = None
    mask: int = 0


@dataclass(slots=True, eq=False)
class Variable:
    """A variable of any state space, or a parameter.

    Attributes:
        space: "global", "const", "shared", "local" or "param"; "reg" for register parameters.
        shape: extents of an array, () for a scalar; an extent of 0 is open (`[]`).
        initializer: elements in order, as (position, element); empty when there is none.
        register: for register parameters.
    """

    name: str
    space: str
    type: str
    line: int
    align: int = 0
    shape: tuple[int, ...] = ()
    vector: int = 1
    linkage: str = ""
    initializer: tuple[tuple[int, Initializer], ...] = ()
    is_pointer: bool = False
    register: Register | None = None

    @property
    def element_bytes(self) -> int:
        """Size of one scalar element."""
        return max(1, TYPE_BITS[self.type] // 8)

    @property
    def size_bytes(self) -> int:
        """Size of all of it; 0 where the extent is open."""
        count = self.vector
        for extent in self.shape:
            count *= extent
        return count * self.element_bytes

    @property
    def alignment(self) -> int:
        """Declared alignment, or that of the element (vectors are aligned as a whole)."""
        return self.align or self.element_bytes * self.vector


@dataclass(slots=True, eq=False)
class Function:
    """An entry or a device function.

    Attributes:
        body: instructions in order; None for a declaration.
        registers: every register used, by number.
        variables: variables declared inside, of spaces shared, local and param.
        limits: performance directives such as ("maxntid", (256, 1, 1)).
        alias: the function this is another name of, by `.alias`.
        may_wait: whether it has instructions that threads wait with; None before that was asked.
    """

    name: str
    is_entry: bool
    line: int
    linkage: str = ""
    returns: tuple[Variable, ...] = ()
    parameters: tuple[Variable, ...] = ()
    body: list[Instruction] | None = None
    labels: list[Label] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    alias: Function | None = None
    may_wait: bool | None = None

    @property
    def is_variadic(self) -> bool:
        """Whether the last parameter is `[]`: the arguments behind the named ones, as one array."""
        return bool(self.parameters) and 0 in self.parameters[-1].shape

    @property
    def resolved(self) -> Function:
        """The function itself, or the one that `.alias` makes it another name of."""
        return self if self.alias is None else self.alias.resolved


@dataclass(slots=True, eq=False)
class Module:
    """A parsed PTX module."""

    name: str
    version: tuple[int, int]
    target: str
    address_size: int = 64
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
