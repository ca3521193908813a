"""Function bodies: scopes, registers, labels, instructions.

Braces open scopes: registers, variables and labels declared inside are visible there only, and inline
assembly relies on it. A label may be used before it is defined, so a scope keeps the labels it could not
find and hands them to the scope around it when it closes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._reader import TokenReader
from ._syntax import (
    Address,
    CallTarget,
    Function,
    FunctionPrototype,
    Immediate,
    Instruction,
    Label,
    LabelList,
    LabelReference,
    Operand,
    Pair,
    Register,
    RegisterOperand,
    Sink,
    SourceLocation,
    Special,
    Symbol,
    TargetList,
    Tuple,
    Variable,
)

if TYPE_CHECKING:
    from ._parser import _ModuleParser
    from ._tokens import Token

__all__ = ["SPECIAL_REGISTERS", "BodyParser"]

SPECIAL_REGISTERS = frozenset(
    [
        f"%{name}"
        for name in ("tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid")
    ]
    + ["%gridid", "%is_explicit_cluster", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"]
    + ["%cluster_ctarank", "%cluster_nctarank"]
    + [f"%lanemask_{name}" for name in ("eq", "le", "lt", "ge", "gt")]
    + ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
    + ["%total_smem_size", "%aggr_smem_size", "%dynamic_smem_size", "%current_graph_exec"]
    + [f"%reserved_smem_offset_{name}" for name in ("begin", "end", "cap", "0", "1")]
    + [f"%pm{n}" for n in range(8)]
    + [f"%pm{n}_64" for n in range(8)]
    + [f"%envreg{n}" for n in range(32)]
)
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")
_LABEL_OPCODES = ("bra", "brx")


class _LabelUse:
    """A place that names a label, and the label once its scope has closed."""

    __slots__ = ("label", "name", "token")

    def __init__(self, name: str, token: Token) -> None:
        self.name = name
        self.token = token
        self.label: Label | None = None

    @property
    def settled(self) -> Label:
        """The label, after the function's last brace."""
        assert self.label is not None
        return self.label


class _Scope:
    """What is declared between one pair of braces."""

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.registers: dict[str, Register | tuple[Register, ...]] = {}
        self.declared: dict[str, tuple[str, int]] = {}
        """Registers not used yet: name -> (type, vector length)."""
        self.ranges: dict[str, tuple[str, int]] = {}
        """`%r<10>`: prefix -> (type, count)."""
        self.variables: dict[str, Variable] = {}
        self.labels: dict[str, Label | LabelList | TargetList | FunctionPrototype] = {}
        self.unresolved: list[_LabelUse] = []
        """Labels named but not seen."""


class BodyParser(TokenReader):
    """Reads one body; made when the header is read, run when all names of the module are known."""

    def __init__(
        self, outer: _ModuleParser, function: Function, position: int, files: dict[int, str]
    ) -> None:
        super().__init__(outer.source)
        self.outer = outer
        self.function = function
        self.position = position
        self.module = outer.module
        self._files = files
        self._location: SourceLocation | None = None
        self._scope = _Scope(None)
        self._branches: list[tuple[Instruction, _LabelUse]] = []
        self._lists: list[tuple[LabelList, list[_LabelUse]]] = []
        self._indirect: list[tuple[Instruction, str, Token]] = []
        self._body: list[Instruction] = []

    def parse(self) -> None:
        """Fill the function's body."""
        for variable in (*self.function.returns, *self.function.parameters):
            if variable.space == "reg":
                variable.register = self._new_register(variable.name, variable.type)
                self._scope.registers[variable.name] = variable.register
            else:
                self._scope.variables[variable.name] = variable
        self._read_scope()
        for instruction, use in self._branches:
            instruction.operands = (LabelReference(use.settled),)
        for targets, uses in self._lists:
            targets.labels = [use.settled for use in uses]
        self.function.body = self._body

    # ------------------------------------------------------------------------------ scopes

    def _read_scope(self) -> None:
        while not self.accept("}"):
            self._read_statement()
        scope = self._scope
        for use in scope.unresolved:
            label = scope.labels.get(use.name)
            if isinstance(label, Label):
                use.label = label
            elif scope.parent is not None:
                scope.parent.unresolved.append(use)
            else:
                self.fail(f"label {use.name!r} is not defined in {self.function.name!r}", use.token)
        if scope.parent is None:
            for instruction, name, token in self._indirect:
                found = self._find_label(name)
                if not isinstance(found, LabelList):
                    self.fail(f"{name!r} is not a .branchtargets list", token)
                instruction.targets = found

    def _read_statement(self) -> None:
        token = self.token
        if token.kind == "name":
            following = self.tokens[self.position + 1]
            if following.kind == "mark" and following.text == ":":
                self.position += 2
                self._read_label(token)
            else:
                self._read_instruction(None, token)
        elif token.kind == "dot":
            self._read_directive()
        elif token.text == "{":
            self.next()
            inner = _Scope(self._scope)
            self._scope = inner
            self._read_scope()
            assert inner.parent is not None
            self._scope = inner.parent
        elif token.text == "@":
            self.next()
            negated = self.accept("!")
            register = self._register(self.token, self.expect_name("a predicate"))
            if not isinstance(register, Register) or register.type != "pred":
                self.fail("a guard is a predicate register", self.tokens[self.position - 1])
            self._read_instruction(RegisterOperand(register, negated), token)
        elif token.text == ";":
            self.next()
        else:
            self.fail(f"expected a statement, found {self.describe()}")

    def _read_label(self, token: Token) -> None:
        name = token.text
        if name in self._scope.labels:
            self.fail(f"label {name!r} is defined twice in this scope", token)
        line = self.source.line_of(token.offset)
        if self.accept(".branchtargets"):
            uses = [self._use_label()]
            while self.accept(","):
                uses.append(self._use_label())
            self.expect(";")
            targets = LabelList(name)
            self._lists.append((targets, uses))
            self._scope.labels[name] = targets
        elif self.accept(".callprototype"):
            returns = self.outer_parameters() if self.at("(") else ()
            self.expect_name("'_' or a name")
            parameters = self.outer_parameters() if self.at("(") else ()
            while self.token.kind == "dot":
                self.next()
                if self.at_constant():
                    self.constant()
            self.expect(";")
            self._scope.labels[name] = FunctionPrototype(name, returns, parameters)
        elif self.accept(".calltargets"):
            functions = []
            while True:
                place = self.token
                found = self.module.functions.get(self.expect_name("a function"))
                if found is None:
                    self.fail("not a function of this module", place)
                functions.append(found)
                if not self.accept(","):
                    break
            self.expect(";")
            self._scope.labels[name] = TargetList(name, tuple(functions))
        else:
            label = Label(name, line, len(self._body))
            self._scope.labels[name] = label
            self.function.labels.append(label)

    def outer_parameters(self) -> tuple[Variable, ...]:
        """Read a parameter list with the module's parser."""
        self.outer.position = self.position
        parameters = self.outer.read_parameters()
        self.position = self.outer.position
        return parameters

    # ------------------------------------------------------------------------------ directives

    def _read_directive(self) -> None:
        token = self.next()
        match token.text:
            case ".reg":
                self._read_registers()
            case ".local" | ".shared" | ".param" | ".global" | ".const":
                self.outer.position = self.position
                for variable in self.outer.read_declaration(token.text[1:], ""):
                    self._scope.variables[variable.name] = variable
                    self.function.variables.append(variable)
                self.position = self.outer.position
            case ".loc":
                self._read_location()
            case ".pragma":
                self.skip_pragma()
            case ".file":
                self._files.update([self.read_file()])
            case _:
                self.fail(f"unexpected directive {token.text!r} in a function", token)

    def _read_location(self) -> None:
        number, line = self.read_location()
        self._location = SourceLocation(self._files.get(number, f"file {number}"), line) if line else None

    def _read_registers(self) -> None:
        vector = 1
        if self.at(".v2") or self.at(".v4"):
            vector = int(self.next().text[2:])
        ptx_type = self.expect_type()
        while True:
            name = self.expect_name("a register")
            if self.accept("<"):
                count = self.expect_int("a number of registers")
                self.expect(">")
                self._scope.ranges[name] = (ptx_type, count)
            else:
                self._scope.registers.pop(name, None)
                self._scope.declared[name] = (ptx_type, vector)
            if not self.accept(","):
                break
        self.expect(";", " after .reg")

    # ------------------------------------------------------------------------------ names

    def _new_register(self, name: str, ptx_type: str) -> Register:
        register = Register(len(self.function.registers), name, ptx_type)
        self.function.registers.append(register)
        return register

    def _use_label(self) -> _LabelUse:
        token = self.token
        use = _LabelUse(self.expect_name("a label"), token)
        self._scope.unresolved.append(use)
        return use

    def _find_register(self, name: str) -> Register | tuple[Register, ...] | None:
        scope: _Scope | None = self._scope
        match = _NUMBERED.fullmatch(name)
        while scope is not None:
            found = scope.registers.get(name)
            if found is not None:
                return found
            declared = scope.declared.get(name)
            if declared is not None:
                ptx_type, vector = declared
                made = self._make(name, ptx_type, vector)
                scope.registers[name] = made
                return made
            if match is not None:
                span = scope.ranges.get(match[1])
                if span is not None and int(match[2]) < span[1]:
                    made = self._make(name, span[0], 1)
                    scope.registers[name] = made
                    return made
            scope = scope.parent
        return None

    def _make(self, name: str, ptx_type: str, vector: int) -> Register | tuple[Register, ...]:
        if vector > 1:
            return tuple(self._new_register(f"{name}.{part}", ptx_type) for part in "xyzw"[:vector])
        if ptx_type == "b128":
            return tuple(self._new_register(f"{name}.{part}", "b64") for part in ("lo", "hi"))
        return self._new_register(name, ptx_type)

    def _register(self, token: Token, name: str) -> Register | tuple[Register, ...]:
        found = self._find_register(name)
        if found is None:
            self.fail(f"register {name!r} is not declared", token)
        return found

    def _find_label(self, name: str) -> Label | LabelList | TargetList | FunctionPrototype | None:
        scope: _Scope | None = self._scope
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None

    def _find_symbol(self, name: str) -> Variable | Function | None:
        scope: _Scope | None = self._scope
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return self.module.variables.get(name) or self.module.functions.get(name)

    # ------------------------------------------------------------------------------ instructions

    def _read_instruction(self, guard: RegisterOperand | None, start: Token) -> None:
        token = self.token
        opcode, *modifiers = self.expect_name("an instruction").split(".")
        instruction = Instruction(
            opcode, tuple(modifiers), (), guard, self.source.line_of(start.offset), "", self._location
        )
        if opcode == "call":
            instruction.call = self._read_call()
        elif opcode == "bra":
            self._branches.append((instruction, self._use_label()))
        elif opcode == "brx":
            index = self._read_operand()
            self.expect(",")
            place = self.token
            name = self.expect_name("a list of branch targets")
            found = self._find_label(name)
            if isinstance(found, LabelList):
                instruction.targets = found
            else:
                self._indirect.append((instruction, name, place))
            instruction.operands = (index,)
        else:
            operands = []
            while not self.at(";"):
                operands.append(self._read_operand())
                if not self.accept(","):
                    break
            instruction.operands = tuple(operands)
        end = self.token
        if not self.at(";"):
            self.fail(
                f"expected ';' at the end of {'.'.join((opcode, *modifiers))}, found {self.describe()}",
                self._after_previous(),
            )
        self.next()
        instruction.text = " ".join(self.source.text[start.offset : end.offset].split()) + ";"
        if opcode.startswith("."):
            self.fail("expected an instruction", token)
        self._body.append(instruction)

    def _after_previous(self) -> Token:
        """Where something is missing: the next token, or the end of the line before it."""
        previous = self.tokens[self.position - 1]
        if self.source.line_of(previous.offset) == self.source.line_of(self.token.offset):
            return self.token
        return previous._replace(offset=previous.offset + len(previous.text))

    def _read_call(self) -> CallTarget:
        returns: tuple[Operand, ...] = ()
        if self.at("("):
            returns = self._read_list()
            self.expect(",")
        callee = self._read_operand()
        arguments: tuple[Operand, ...] = ()
        signature: FunctionPrototype | TargetList | None = None
        if self.accept(","):
            if self.at("("):
                arguments = self._read_list()
                if self.accept(","):
                    signature = self._read_signature()
            else:
                signature = self._read_signature()
        return CallTarget(callee, returns, arguments, signature)

    def _read_signature(self) -> FunctionPrototype | TargetList | None:
        token = self.token
        found = self._find_label(self.expect_name("a prototype"))
        if isinstance(found, FunctionPrototype | TargetList):
            return found
        self.fail(f"{token.text!r} is not a .callprototype or .calltargets", token)

    def _read_list(self) -> tuple[Operand, ...]:
        self.expect("(")
        operands = []
        while not self.at(")"):
            operands.append(self._read_operand())
            if not self.accept(","):
                break
        self.expect(")")
        return tuple(operands)

    def _read_operand(self) -> Operand:
        first = self._read_single()
        if self.at("|") and isinstance(first, RegisterOperand | Sink):
            self.next()
            return Pair(first, self._read_single())
        return first

    def _read_single(self) -> Operand:
        token = self.token
        if token.kind == "mark":
            if token.text == "{":
                self.next()
                elements = []
                while not self.at("}"):
                    elements.append(self._read_operand())
                    if not self.accept(","):
                        break
                self.expect("}")
                return Tuple(tuple(elements))
            if token.text == "[":
                return self._read_address()
            if token.text == "!" and self.tokens[self.position + 1].kind == "name":
                self.next()
                operand = self._named(self.next())
                if not isinstance(operand, RegisterOperand):
                    self.fail("'!' goes before a predicate register", token)
                return RegisterOperand(operand.register, negated=True)
        if token.kind == "name" and token.text != "WARP_SZ":
            return self._named(self.next())
        if self.at_constant() or token.text == "WARP_SZ":
            return self.constant()
        self.fail(f"expected an operand, found {self.describe()}")

    def _named(self, token: Token) -> Operand:
        name = token.text
        if name == "_":
            return Sink()
        found = self._find_register(name)
        if found is not None:
            if isinstance(found, Register):
                return RegisterOperand(found)
            return Tuple(tuple(RegisterOperand(r) for r in found))
        base, _, part = name.partition(".")
        if part:
            vector = self._find_register(base)
            if isinstance(vector, tuple) and part in ("x", "y", "z", "w", "r", "g", "b", "a"):
                position = ("xyzw" if part in "xyzw" else "rgba").index(part)
                if position < len(vector):
                    return RegisterOperand(vector[position])
        if base in SPECIAL_REGISTERS and part in ("", "x", "y", "z", "w"):
            return Special(base, part)
        if name == "generic" and self.accept("("):
            operand = self._named(self.next())
            self.expect(")")
            return operand
        symbol = self._find_symbol(name)
        if symbol is None:
            what = "register" if name.startswith("%") else "name"
            self.fail(f"{what} {name!r} is not declared", token)
        return Symbol(symbol, self._read_offset())

    def _read_offset(self) -> int:
        offset = 0
        while self.at("+") or self.at("-"):
            negative = self.next().text == "-"
            value = self.expect_int("an offset")
            offset += -value if negative else value
        return offset

    def _read_address(self) -> Address:
        self.expect("[")
        if self.at_constant():
            value = self.constant()
            self.expect("]")
            return Address(None, value.value)
        base = self._named(self.next()) if self.token.kind == "name" else self._read_single()
        if isinstance(base, Symbol):
            offset, base = base.offset, Symbol(base.target)
        else:
            offset = 0
        offset += self._read_offset()
        if self.at(","):  # a tensor map and coordinates
            elements: list[Operand] = [base]
            while self.accept(","):
                elements.append(self._read_operand())
            base = Tuple(tuple(elements))
        self.expect("]", " after an address")
        if isinstance(base, Immediate | Address | Pair | Sink | LabelReference):
            self.fail("expected a register or a name in the address", self.tokens[self.position - 1])
        return Address(base, offset)
