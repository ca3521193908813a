"""Reading tokens one after another, and the constants PTX lets one write anywhere."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

import ml_dtypes
import numpy as np

from ._syntax import TYPE_BITS, Immediate
from ._tokens import Source, Token

if TYPE_CHECKING:
    from ....errors import CompileError

__all__ = ["TokenReader", "float_bits"]

_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 7,
    "<=": 7,
    ">": 7,
    ">=": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}


def float_bits(immediate: Immediate, ptx_type: str) -> int:
    """The bits of a floating-point constant at the width of `ptx_type`, rounded to nearest even.

    An integer stands for its own bits, which is what PTX gives `.b` and float operands alike.
    """
    if immediate.kind == "int":
        return immediate.value
    if ptx_type not in ("f64", "f32", "f16", "bf16"):
        return immediate.value  # the bits as written, for `.b32` and `.b64`
    packed = struct.pack("<I" if immediate.kind == "f32" else "<Q", immediate.value)
    value = struct.unpack("<f" if immediate.kind == "f32" else "<d", packed)[0]
    if ptx_type == ("f32" if immediate.kind == "f32" else "f64"):
        return immediate.value
    if ptx_type == "f64":
        return int(np.float64(value).view(np.uint64))
    if ptx_type == "f32":
        return int(np.float32(value).view(np.uint32))
    narrow = np.float16(value) if ptx_type == "f16" else ml_dtypes.bfloat16(value)
    return int(np.asarray(narrow).view(np.uint16))


class TokenReader:
    """A position in a module's tokens, with the questions a parser asks."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = source.tokens
        self.position = 0

    @property
    def token(self) -> Token:
        """The token to be read next."""
        return self.tokens[self.position]

    def next(self) -> Token:
        """Read a token."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, text: str) -> bool:
        """Whether the next token is this mark or directive."""
        token = self.tokens[self.position]
        return token.text == text and token.kind in ("mark", "dot")

    def accept(self, text: str) -> bool:
        """Read the next token if it is this mark or directive."""
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str, where: str = "") -> Token:
        """Read this mark or directive, or fail."""
        if not self.at(text):
            self.fail(f"expected {text!r}{where}, found {self.describe()}")
        return self.next()

    def expect_name(self, what: str) -> str:
        """Read an identifier, or fail."""
        if self.token.kind != "name":
            self.fail(f"expected {what}, found {self.describe()}")
        return self.next().text

    def expect_int(self, what: str) -> int:
        """Read a constant integer expression, or fail. Comparisons are left alone: `%r<8>` ends in one."""
        value = self._binary(_PRECEDENCE["<<"])
        if value.kind != "int":
            self.fail(f"expected {what}, an integer", self.tokens[self.position - 1])
        return value.value

    def expect_type(self) -> str:
        """Read a type directive such as `.b32`, or fail."""
        token = self.token
        if token.kind != "dot" or token.text[1:] not in TYPE_BITS:
            self.fail(f"expected a type such as .b32, found {self.describe()}")
        return self.next().text[1:]

    def describe(self) -> str:
        """The next token, for a message."""
        token = self.token
        return "the end of the text" if token.kind == "end" else repr(token.text)

    def error(self, message: str, token: Token | None = None) -> CompileError:
        """The error that points at `token`, or at the next one."""
        return self.source.error(message, (token or self.token).offset)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise `error`."""
        raise self.error(message, token)

    # ------------------------------------------------------------------------------ directives
    # They end where their grammar says: an instruction may follow on the same line.

    def read_location(self) -> tuple[int, int]:
        """Read what follows `.loc`; gives file number and line."""
        number = self._plain_int("a file number")
        line = self._plain_int("a line")
        self._plain_int("a column")
        while self.accept(","):
            what = self.expect_name("function_name or inlined_at")
            if what == "function_name":
                self.expect_name("a label in the debug strings")
                if self.accept("+"):
                    self._plain_int("an offset")
            elif what == "inlined_at":
                for part in ("a file number", "a line", "a column"):
                    self._plain_int(part)
            else:
                self.fail(f"expected function_name or inlined_at, found {what!r}", self._previous())
        return number, line

    def read_file(self) -> tuple[int, str]:
        """Read what follows `.file`; gives number and name."""
        number = self._plain_int("a file number")
        name = self._string("a file name in quotes")
        while self.accept(","):
            self._plain_int("a number")
        self.accept(";")
        return number, name

    def skip_pragma(self) -> None:
        """Read what follows `.pragma`: strings, none of which changes what a program means."""
        self._string("a string after .pragma")
        while self.accept(","):
            self._string("a string after ','")
        self.expect(";", " after .pragma")

    def _plain_int(self, what: str) -> int:
        if self.token.kind != "int":
            self.fail(f"expected {what}, found {self.describe()}")
        return _integer(self.next().text)

    def _string(self, what: str) -> str:
        if self.token.kind != "string":
            self.fail(f"expected {what}, found {self.describe()}")
        return self.next().text[1:-1]

    def _previous(self) -> Token:
        return self.tokens[self.position - 1]

    # ------------------------------------------------------------------------------ constants

    def at_constant(self) -> bool:
        """Whether a constant expression starts here."""
        token = self.token
        return token.kind in ("int", "float") or (token.kind == "mark" and token.text in "(-+~!")

    def constant(self) -> Immediate:
        """Read a constant expression: 64-bit integers, or a single floating-point number."""
        return self._ternary()

    def _ternary(self) -> Immediate:
        condition = self._binary(1)
        if not self.accept("?"):
            return condition
        yes = self._ternary()
        self.expect(":")
        no = self._ternary()
        return yes if condition.value else no

    def _binary(self, lowest: int) -> Immediate:
        left = self._unary()
        while self.token.kind == "mark" and _PRECEDENCE.get(self.token.text, 0) >= lowest:
            # `d|p` and `a, b` never follow a constant, so an operator here belongs to the expression.
            operator = self.next()
            right = self._binary(_PRECEDENCE[operator.text] + 1)
            if left.kind != "int" or right.kind != "int":
                self.fail("arithmetic on floating-point constants is not supported", operator)
            left = Immediate(self._compute(operator, left.value, right.value))
        return left

    def _compute(self, operator: Token, a: int, b: int) -> int:
        match operator.text:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/" | "%":
                if b == 0:
                    self.fail("division by zero in a constant", operator)
                quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                return quotient if operator.text == "/" else a - quotient * b
            case "<<":
                return a << (b & 63)
            case ">>":
                return a >> (b & 63)
            case "&":
                return a & b
            case "|":
                return a | b
            case "^":
                return a ^ b
            case "&&":
                return int(bool(a) and bool(b))
            case "||":
                return int(bool(a) or bool(b))
            case "==":
                return int(a == b)
            case "!=":
                return int(a != b)
            case "<":
                return int(a < b)
            case "<=":
                return int(a <= b)
            case ">":
                return int(a > b)
            case _:
                return int(a >= b)

    def _unary(self) -> Immediate:
        token = self.token
        if token.kind == "mark" and token.text in "-+~!":
            self.next()
            value = self._unary()
            if value.kind != "int":
                return self._signed_float(token, value)
            operations = {"-": -value.value, "+": value.value, "~": ~value.value, "!": int(not value.value)}
            return Immediate(operations[token.text])
        if self.accept("("):
            if self.token.text in (".s64", ".u64"):
                unsigned = self.next().text == ".u64"
                self.expect(")")
                number = self._unary().value & 0xFFFFFFFFFFFFFFFF
                return Immediate(number if unsigned or number < 1 << 63 else number - (1 << 64))
            inner = self.constant()
            self.expect(")")
            return inner
        if token.kind == "int":
            number = _integer(token.text)
            if number >> 64:
                self.fail(f"the integer {token.text} has more than 64 bits", token)
            self.next()
            return Immediate(number)
        if token.kind == "float":
            self.next()
            return _float(token.text)
        if token.kind == "name" and token.text == "WARP_SZ":
            self.next()
            return Immediate(32)
        self.fail(f"expected a constant, found {self.describe()}")

    def _signed_float(self, operator: Token, value: Immediate) -> Immediate:
        if operator.text == "+":
            return value
        if operator.text != "-":
            self.fail(f"{operator.text!r} of a floating-point constant", operator)
        sign = 1 << (31 if value.kind == "f32" else 63)
        return Immediate(value.value ^ sign, value.kind)


def _integer(text: str) -> int:
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)


def _float(text: str) -> Immediate:
    prefix = text[:2].lower()
    if prefix == "0f":
        return Immediate(int(text[2:], 16), "f32")
    if prefix == "0d":
        return Immediate(int(text[2:], 16), "f64")
    return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "decimal")
