"""`parse_module`: PTX text to a `Module`.

A recursive-descent parser. This file reads what stands outside function bodies: version and target,
variables and their initial values, function headers, aliases. `_parser_body` reads what functions do.
Performance directives that only steer a compiler are read and dropped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ....errors import CompileError
from ._parser_body import BodyParser
from ._reader import TokenReader, float_bits
from ._syntax import Function, Initializer, Module, Variable
from ._tokens import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._tokens import Token

__all__ = ["NEWEST_VERSION", "parse_text"]

NEWEST_VERSION = (9, 9)
"""PTX versions up to here are read: what a later 9.x may add and we do not know is named when met."""

_OLDEST_VERSION = (3, 0)
_ARCHITECTURES = frozenset(
    {20, 21, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90}
    | {100, 101, 103, 110, 120, 121}
)
_TARGET = re.compile(r"(?:sm|compute)_(\d+)[af]?")
_TARGET_OPTIONS = frozenset(
    ("texmode_unified", "texmode_independent", "debug", "map_f64_to_f32", "unified", "generic")
)
_LINKAGE = {".visible": "visible", ".extern": "extern", ".weak": "weak", ".common": "common"}
_SPACES = {".global": "global", ".const": "const", ".shared": "shared", ".local": "local"}
_LIMITS_WITH_VALUES = frozenset(
    (
        ".maxntid",
        ".reqntid",
        ".minnctapersm",
        ".maxnctapersm",
        ".maxnreg",
        ".reqnctapercluster",
        ".maxclusterrank",
        ".abi_preserve",
        ".abi_preserve_control",
        ".minreg",
        ".language",
    )
)
_LIMITS_WITHOUT_VALUES = frozenset((".noreturn", ".explicitcluster", ".blocksareclusters", ".unified"))


_MAX_PARAMETER_BYTES, _MAX_PARAMETER_BYTES_BEFORE = 32764, 4352
_LARGE_PARAMETERS = (8, 1), 70
"""From this version and architecture on there may be more. Source: PTX ISA, "Kernel Function Parameters"."""
_MAX_CONSTANT_BYTES = 65536
"""Source: PTX ISA, "Constant State Space"."""


def parse_text(text: str, name: str) -> Module:
    """Parse a module.

    Args:
        text: PTX 3.0 to 9.x.
        name: for messages, such as a file name.
    Raises:
        CompileError: the text is empty, of a version or for a target nobody knows, or has an error; the
            message shows the line and a caret.
    """
    text = text.lstrip("\ufeff").rstrip("\0")
    if not text.strip():
        raise CompileError(
            f"{name}: the PTX text is empty; give the text that nvcc -ptx, NVRTC or LLVM wrote"
        )
    try:
        return _ModuleParser(Source(text, name)).parse()
    except RecursionError:
        raise CompileError(f"{name}: blocks, parentheses or initial values are nested too deep") from None


class _ModuleParser(TokenReader):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.module = Module(source.name, (0, 0), "")
        self._files: dict[int, str] = {}
        self._aliases: list[tuple[str, str, Token]] = []

    def parse(self) -> Module:
        self._read_header()
        bodies: list[BodyParser] = []
        while self.token.kind != "end":
            self._read_top_level(bodies)
        self._resolve_aliases()
        # Bodies were skipped over at first: they may name what is defined after them.
        for body in bodies:
            body.parse()
        self._resolve()
        self._check_constants()
        return self.module

    # ------------------------------------------------------------------------------ header

    def _read_header(self) -> None:
        while self.at(".file") or self.at(".pragma"):
            self._read_top_level([])
        if not self.accept(".version"):
            self.fail(f"PTX starts with .version, found {self.describe()}")
        token = self.next()
        match = re.fullmatch(r"(\d+)\.(\d+)", token.text)
        if match is None:
            self.fail(f"expected a version such as 8.0, found {token.text!r}", token)
        version = (int(match[1]), int(match[2]))
        if version > NEWEST_VERSION or version < _OLDEST_VERSION:
            self.fail(
                f"PTX version {version[0]}.{version[1]} is not supported: the host device reads PTX "
                f"{_OLDEST_VERSION[0]}.{_OLDEST_VERSION[1]} to {NEWEST_VERSION[0]}.x",
                token,
            )
        self.module.version = version
        self.expect(".target", " after .version")
        self._read_target()
        if self.accept(".address_size"):
            self.module.address_size = self.expect_int("an address size")

    def _read_target(self) -> None:
        while True:
            token = self.next()
            match = _TARGET.fullmatch(token.text)
            if match is not None and int(match[1]) in _ARCHITECTURES:
                self.module.target = self.module.target or token.text
            elif token.text not in _TARGET_OPTIONS:
                self.fail(
                    f"target {token.text!r} is not known (PTX version "
                    f"{self.module.version[0]}.{self.module.version[1]}); known are "
                    f"sm_{', sm_'.join(map(str, sorted(_ARCHITECTURES)))}, with a or f behind them",
                    token,
                )
            if not self.accept(","):
                break
        if not self.module.target:
            self.fail("the .target names no architecture such as sm_80")

    # ------------------------------------------------------------------------------ top level

    def _read_top_level(self, bodies: list[BodyParser]) -> None:
        token = self.next()
        if token.kind == "mark" and token.text == ";":
            return
        if token.kind == "name" and self.accept(":"):
            return  # a label between debug sections
        match token.text if token.kind == "dot" else "":
            case ".file":
                self._files.update([self.read_file()])
            case ".loc":
                self.read_location()
            case ".pragma":
                self.skip_pragma()
            case ".alias":
                alias = self.expect_name("the alias")
                self.expect(",")
                self._aliases.append((alias, self.expect_name("a function"), token))
                self.expect(";")
            case ".target":
                self._read_target()
            case ".address_size":
                self.module.address_size = self.expect_int("an address size")
            case ".entry" | ".func":
                self._read_function(token, "", bodies)
            case text if text in _LINKAGE:
                self._read_linked(_LINKAGE[text], bodies)
            case text if text in _SPACES:
                self._read_variables(_SPACES[text], "")
            case _:
                shown = "the end of the text" if token.kind == "end" else repr(token.text)
                self.fail(f"expected a directive such as .entry, .func or .global, found {shown}", token)

    def _read_linked(self, linkage: str, bodies: list[BodyParser]) -> None:
        token = self.next()
        if token.text in (".entry", ".func"):
            self._read_function(token, linkage, bodies)
        elif token.text in _SPACES:
            self._read_variables(_SPACES[token.text], linkage)
        else:
            self.fail(f"expected .entry, .func or a state space after .{linkage}", token)

    # ------------------------------------------------------------------------------ variables

    def _read_variables(self, space: str, linkage: str) -> None:
        start = self.token
        for variable in self.read_declaration(space, linkage):
            name = variable.name
            if name in self.module.functions:
                self.fail(f"{name!r} is a function already", start)
            known = self.module.variables.get(name)
            if known is None:
                self.module.variables[name] = variable
            elif known.linkage == "extern":
                _adopt(known, variable)
            elif linkage != "extern":
                self.fail(f"{name!r} is defined twice; first in line {known.line}", start)

    def read_declaration(self, space: str, linkage: str) -> list[Variable]:
        """Read the rest of `.global .align 4 .b8 a[16] = {...}, b;` after the state space."""
        if space == "const" and self.accept("["):
            self.expect_int("a bank")
            self.expect("]")
        align, vector = 0, 1
        while True:
            if self.accept(".attribute"):
                self._skip_parentheses()
            elif self.accept(".align"):
                align = self._read_alignment()
            elif self.at(".v2") or self.at(".v4"):
                vector = int(self.next().text[2:])
            elif self.accept(".ptr"):
                pass
            else:
                break
        ptx_type = self.expect_type()
        variables = []
        while True:
            token = self.token
            variable = Variable(
                self.expect_name("a variable"),
                space,
                ptx_type,
                self.source.line_of(token.offset),
                align,
                self._read_shape(),
                vector,
                linkage,
            )
            if self.accept("="):
                self._read_initializer(variable)
            variables.append(variable)
            if not self.accept(","):
                break
        self.expect(";", " after a declaration")
        return variables

    def _read_shape(self) -> tuple[int, ...]:
        shape = []
        while self.accept("["):
            token = self.token
            extent = 0 if self.at("]") else self.expect_int("an extent")
            if extent < 0:
                self.fail(f"an extent of {extent}; an array has 0 elements or more", token)
            shape.append(extent)
            self.expect("]")
        return tuple(shape)

    def _skip_parentheses(self) -> None:
        self.expect("(")
        depth = 1
        while depth:
            token = self.next()
            if token.kind == "end":
                self.fail("unbalanced '('", token)
            depth += (token.text == "(") - (token.text == ")")

    def _read_initializer(self, variable: Variable) -> None:
        start = self.token
        elements: list[tuple[int, Initializer]] = []
        extents = (*variable.shape, variable.vector) if variable.vector > 1 else variable.shape
        used = self._read_elements(variable, extents, 0, elements)
        if variable.shape and variable.shape[0] == 0:
            inner = max(1, _product(extents[1:]))
            variable.shape = (-(-used // inner), *variable.shape[1:])
        if used > max(1, _product((*variable.shape, variable.vector))):
            self.fail(f"more values than {variable.name!r} has elements", start)
        variable.initializer = tuple(elements)

    def _read_elements(
        self, variable: Variable, extents: tuple[int, ...], base: int, out: list[tuple[int, Initializer]]
    ) -> int:
        """Read a value or a braced list at element `base`; gives the position after it."""
        if not self.accept("{"):
            value = self._read_element(variable)
            if value.value or value.symbol is not None:
                out.append((base, value))
            return base + 1
        inner = extents[1:]
        step = max(1, _product(inner))
        position = base
        while not self.at("}"):
            if self.at("{"):
                self._read_elements(variable, inner, position, out)
                position += step
            else:
                position = self._read_elements(variable, (), position, out)
            if not self.accept(","):
                break
        self.expect("}", " at the end of the values")
        return position

    def _read_element(self, variable: Variable) -> Initializer:
        if self.token.kind != "name" or self.token.text == "WARP_SZ":
            number = self.constant()
            if self.at("(") and number.kind == "int":  # 0xFF00(symbol): a part of an address
                self.next()
                element = self._read_element(variable)
                self.expect(")")
                return Initializer(element.value, element.symbol, number.value)
            if number.kind == "int":
                return Initializer(number.value)
            return Initializer(float_bits(number, variable.type))
        name = self.next().text
        if name == "generic" and self.accept("("):
            inner = self._read_element(variable)
            self.expect(")")
            return Initializer(inner.value + self._read_offset(), inner.symbol)
        return Initializer(self._read_offset(), name)

    def _read_offset(self) -> int:
        if self.at("+") or self.at("-"):
            negative = self.next().text == "-"
            offset = self.expect_int("an offset")
            return -offset if negative else offset
        return 0

    # ------------------------------------------------------------------------------ functions

    def _read_function(self, start: Token, linkage: str, bodies: list[BodyParser]) -> None:
        is_entry = start.text == ".entry"
        limits: dict[str, tuple[int, ...]] = {}
        while self.accept(".attribute"):
            self._skip_parentheses()
        self._read_limits(limits)
        returns = self.read_parameters() if self.at("(") else ()
        name_token = self.token
        name = self.expect_name("a function's name")
        parameters = self.read_parameters() if self.at("(") else ()
        if is_entry:
            self._check_parameters(name, _end_of(parameters), name_token)
        self._read_limits(limits)
        function = Function(
            name,
            is_entry,
            self.source.line_of(name_token.offset),
            linkage,
            returns,
            parameters,
            limits=limits,
        )
        known = self.module.functions.get(name)
        if name in self.module.variables:
            self.fail(f"{name!r} is a variable already", name_token)
        if known is not None:
            if known.body is not None and self.at("{") and "weak" not in (known.linkage, linkage):
                self.fail(f"{name!r} is defined twice; first in line {known.line}", name_token)
            if known.body is None:
                known.returns, known.parameters, known.limits = returns, parameters, limits
                known.line, known.linkage = function.line, linkage or known.linkage
            function = known
        else:
            self.module.functions[name] = function
        if self.accept(";"):
            return
        self.expect("{", " or ';' after a function's header")
        body = BodyParser(self, function, self.position, self._files)
        self._skip_body(name_token)
        if function.body is None:
            function.body = []
            bodies.append(body)

    def _read_alignment(self) -> int:
        token = self.token
        value = self.expect_int("an alignment")
        if value < 1 or value & (value - 1):
            self.fail(f"an alignment is a power of two, got {value}", token)
        return value

    def _read_limits(self, limits: dict[str, tuple[int, ...]]) -> None:
        while self.token.kind == "dot":
            text = self.token.text
            if text in _LIMITS_WITH_VALUES:
                self.next()
                values = [self.expect_int("a number")]
                while self.accept(","):
                    values.append(self.expect_int("a number"))
                limits[text[1:]] = tuple(values)
            elif text in _LIMITS_WITHOUT_VALUES:
                self.next()
                limits[text[1:]] = ()
            elif text == ".pragma":
                self.next()
                self.skip_pragma()
            elif text == ".attribute":
                self.next()
                self._skip_parentheses()
            else:
                return

    def read_parameters(self) -> tuple[Variable, ...]:
        """Read a list of parameters in parentheses."""
        self.expect("(")
        parameters: list[Variable] = []
        names = set()
        while not self.at(")"):
            start = self.token
            parameter = self._read_parameter(len(parameters))
            if parameter.name in names:
                self.fail(f"two parameters have the name {parameter.name!r}", start)
            names.add(parameter.name)
            parameters.append(parameter)
            if not self.accept(","):
                break
        self.expect(")", " after the parameters")
        return tuple(parameters)

    def _read_parameter(self, number: int) -> Variable:
        token = self.token
        if self.accept(".reg"):
            space = "reg"
        else:
            self.expect(".param")
            space = "param"
        align, vector, pointer = 0, 1, False
        ptx_type = ""
        while self.token.kind == "dot":
            text = self.token.text
            if text == ".align":
                self.next()
                value = self._read_alignment()
                align = align if pointer else value  # after .ptr it is the pointee's
            elif text == ".ptr":
                self.next()
                pointer = True
            elif text in _SPACES and pointer:
                self.next()
            elif text in (".v2", ".v4"):
                vector = int(self.next().text[2:])
            elif text in (".texref", ".samplerref", ".surfref"):
                ptx_type = self.next().text[1:]
            else:
                ptx_type = self.expect_type()
        if not ptx_type:
            self.fail("the parameter has no type", token)
        name = self.expect_name("a parameter's name")
        shape = self._read_shape()
        line = self.source.line_of(token.offset)
        if name == "_":
            name = f"_{number}"
        return Variable(name, space, ptx_type, line, align, shape, vector, is_pointer=pointer)

    def _skip_body(self, start: Token) -> None:
        depth = 1
        tokens = self.tokens
        position = self.position
        while depth:
            token = tokens[position]
            if token.kind == "mark":
                if token.text == "{":
                    depth += 1
                elif token.text == "}":
                    depth -= 1
            elif token.kind == "end":
                self.fail("the function's '{' has no '}'", start)
            elif token.kind == "dot" and token.text == ".file":
                self.position = position + 1
                self._files.update([self.read_file()])
                position = self.position
                continue
            position += 1
        self.position = position

    # ------------------------------------------------------------------------------ names

    def _resolve_aliases(self) -> None:
        functions = self.module.functions
        for name, target, token in self._aliases:
            known = functions.get(target)
            if known is None or name == target:
                self.fail(f".alias of {target!r}, which is not another function here", token)
            alias = functions.get(name)
            if alias is None:
                functions[name] = known
            else:
                alias.alias = known

    def _check_parameters(self, name: str, size_bytes: int, token: Token) -> None:
        match = _TARGET.fullmatch(self.module.target)
        assert match is not None
        version, architecture = _LARGE_PARAMETERS
        limit, why = _MAX_PARAMETER_BYTES, ""
        if self.module.version < version or int(match[1]) < architecture:
            limit = _MAX_PARAMETER_BYTES_BEFORE
            why = f" before PTX {version[0]}.{version[1]} and sm_{architecture}"
        if size_bytes > limit:
            self.fail(
                f"the parameters of {name!r} take {size_bytes} bytes; a kernel has at most {limit}{why}",
                token,
            )

    def _check_constants(self) -> None:
        constants = [variable for variable in self._variables() if variable.space == "const"]
        size_bytes = _end_of(constants)
        if size_bytes > _MAX_CONSTANT_BYTES:
            raise CompileError(
                f"{self.source.name}: the .const variables take {size_bytes} bytes; a module has at most "
                f"{_MAX_CONSTANT_BYTES}"
            )

    def _variables(self) -> list[Variable]:
        inside = [v for function in self.module.functions.values() for v in function.variables]
        return [*self.module.variables.values(), *inside]

    def _resolve(self) -> None:
        for variable in self._variables():
            variable.initializer = tuple(
                (position, self._resolved(variable, value)) for position, value in variable.initializer
            )

    def _resolved(self, variable: Variable, value: Initializer) -> Initializer:
        if not isinstance(value.symbol, str):
            return value
        target = self.module.functions.get(value.symbol) or self.module.variables.get(value.symbol)
        if target is None:
            raise CompileError(
                f"line {variable.line} of {self.source.name}: the initial value of {variable.name!r} names "
                f"{value.symbol!r}, which is not declared"
            )
        return Initializer(value.value, target, value.mask)


def _end_of(variables: Sequence[Variable]) -> int:
    """How many bytes they take one after the other."""
    end = 0
    for variable in variables:
        end = -(-end // variable.alignment) * variable.alignment + variable.size_bytes
    return end


def _product(extents: tuple[int, ...]) -> int:
    result = 1
    for extent in extents:
        result *= extent
    return result


def _adopt(known: Variable, new: Variable) -> None:
    """A declaration met before takes over the definition's contents: operands hold it already."""
    known.type, known.align, known.shape = new.type, new.align, new.shape
    known.vector, known.linkage, known.initializer = new.vector, new.linkage, new.initializer
    known.space, known.line = new.space, new.line
