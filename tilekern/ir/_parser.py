"""Reading the printed form back: the inverse of `_printer`. Comments run from `//` to the line's end."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..dtypes import DTYPES, DType
from ..errors import ParseError
from ._op import OPERATIONS, Block, Function, Op, Value
from ._types import PointerType, SparseViewType, TensorType, TileType, TokenType, Type, ViewType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["parse", "parse_type"]

_T = TypeVar("_T")

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[%@]([A-Za-z0-9_.$]+)", re.ASCII)
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?)", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DIMENSION = re.compile(r"(\?|\d+)x", re.ASCII)
_MAX_DIGITS = 80
"""Of a number; the longest that is printed is a float's. Python itself reads no more than 4300."""


def parse(text: str) -> Function:
    """The function that `text` prints. It is not verified.

    Raises:
        ParseError: the text is not in the printed form.
    """
    return _parsed(text, _Parser.function)


def parse_type(text: str) -> Type:
    """The type that `text` prints.

    Raises:
        ParseError: the text is not in the printed form.
    """
    return _parsed(text, _Parser.parse_type)


def _parsed(text: str, part: Callable[[_Parser], _T]) -> _T:
    parser = _Parser(text)
    try:
        found = part(parser)
        parser.end()
    except RecursionError:
        parser._fail("nested too deep")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._values: dict[str, Value] = {}

    # -- characters
    def _fail(self, message: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        found = self._text[self._at : self._at + 20].split("\n")[0]
        raise ParseError(f"{message}, found {found!r}", line)

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, symbol: str) -> bool:
        self._skip()
        if self._text.startswith(symbol, self._at):
            self._at += len(symbol)
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            self._fail(f"expected {symbol!r}")

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        if pattern in (_NUMBER, _DIMENSION) and len(found.group()) > _MAX_DIGITS:
            self._fail(f"expected a number of at most {_MAX_DIGITS} digits")
        self._at = found.end()
        return found.group(1) if pattern.groups else found.group()

    def _word(self) -> str:
        return self._match(_WORD) or self._fail("expected a word")

    def _name(self, sigil: str) -> str:
        self._skip()
        if not self._text.startswith(sigil, self._at):
            self._fail(f"expected a name with {sigil}")
        return self._match(_NAME) or self._fail("expected a name")

    def end(self) -> None:
        """Nothing may follow."""
        self._skip()
        if self._at != len(self._text):
            self._fail("expected the end")

    # -- types
    def parse_type(self) -> Type:
        start = self._at
        word = self._word()
        if word == "token":
            return TokenType()
        if word == "tile":
            self._expect("<")
            shape = self._known(self._dimensions())
            element = self._element()
            self._expect(">")
            return TileType(element, shape)
        if word == "tensor":
            return self._tensor()
        if word in ("view", "sparse_view"):
            return self._view(word)
        self._at = start
        return TileType(self._element())

    def _element(self) -> DType | PointerType:
        start = self._at
        word = self._word()
        if word == "ptr":
            self._expect("<")
            pointee = self._element()
            self._expect(">")
            if isinstance(pointee, DType):
                return PointerType(pointee)
        elif word in DTYPES:
            return DTYPES[word]
        self._at = start
        self._fail("expected an element type")

    def _dimensions(self) -> tuple[int | None, ...]:
        found: list[int | None] = []
        while (dimension := self._match(_DIMENSION)) is not None:
            found.append(None if dimension == "?" else int(dimension))
        return tuple(found)

    def _known(self, dimensions: tuple[int | None, ...]) -> tuple[int, ...]:
        known = tuple(n for n in dimensions if n is not None)
        if len(known) != len(dimensions):
            self._fail("expected known sizes")
        return known

    def _tensor(self) -> TensorType:
        self._expect("<")
        shape = self._dimensions()
        dtype = self._element()
        if not isinstance(dtype, DType):
            self._fail("expected numbers in a tensor")
        self._expect(",")
        self._expect("[")
        strides: list[int | None] = []
        while not self._take("]"):
            if strides:
                self._expect(",")
            strides.append(None if self._take("?") else self._integer())
        self._expect(">")
        return TensorType(dtype, shape, tuple(strides))

    def _view(self, what: str) -> ViewType | SparseViewType:
        self._expect("<")
        # the last side of the tile is followed by a comma instead of an x
        shape = [*self._known(self._dimensions()), self._integer()]
        self._expect(",")
        if self._word() != "tensor":
            self._fail("expected a tensor")
        tensor = self._tensor()
        extras: dict[str, Any] = {}
        known = ("axis", "padding") if what == "sparse_view" else ("order", "padding", "steps")
        while self._take(","):
            word = self._word()
            if word not in known:
                self._fail(f"expected {' or '.join(known)}")
            self._expect("=")
            extras[word] = self._word() if word == "padding" else self._side(word)
        self._expect(">")
        if what == "sparse_view":
            return SparseViewType(tuple(shape), tensor, **{"axis": 0, **extras})
        return ViewType(tuple(shape), tensor, **{"order": tuple(range(len(shape))), **extras})

    def _side(self, word: str) -> int | tuple[int, ...]:
        """What a view has besides its tile: one axis, or a list of numbers."""
        if word == "axis":
            return self._integer()
        self._expect("[")
        found: list[int] = []
        while not self._take("]"):
            if found:
                self._expect(",")
            found.append(self._integer())
        return tuple(found)

    def _integer(self) -> int:
        text = self._match(_NUMBER)
        if text is None or not text.lstrip("-").isdigit():
            self._fail("expected a whole number")
        return int(text)

    # -- functions
    def function(self) -> Function:
        if self._word() != "func":
            self._fail("expected func")
        name = self._name("@")
        body = Block(self._arguments())
        hints = {}
        while not self._take("{"):
            hint = self._word()
            self._expect("=")
            hints[hint] = self._integer()
        self._ops(body)
        return Function(name, body, hints)

    def _arguments(self) -> list[Value]:
        self._expect("(")
        found: list[Value] = []
        while not self._take(")"):
            if found:
                self._expect(",")
            name = self._name("%")
            self._expect(":")
            found.append(self._define(name, self.parse_type()))
        return found

    def _define(self, name: str, kind: Type) -> Value:
        if name in self._values:
            self._fail(f"%{name} is defined twice")
        value = self._values[name] = Value(kind, "" if name.isdigit() else name)
        return value

    def _use(self) -> Value:
        name = self._name("%")
        if name not in self._values:
            self._fail(f"%{name} is not defined")
        return self._values[name]

    def _ops(self, block: Block) -> None:
        """Operations up to and with the closing brace."""
        while not self._take("}"):
            block.ops.append(self._op())

    def _op(self) -> Op:
        names = []
        self._skip()
        if self._text.startswith("%", self._at):
            names.append(self._name("%"))
            while self._take(","):
                names.append(self._name("%"))
            self._expect("=")
        mnemonic = self._word()
        cls = OPERATIONS.get(mnemonic)
        if cls is None:
            self._fail(f"no operation is called {mnemonic}")
        values: dict[str, object] = {}
        self._operands(cls, values)
        self._attributes(cls, values)
        types: list[Type] = []
        if names:
            self._expect(":")
            types.append(self.parse_type())
            while self._take(","):
                types.append(self.parse_type())
        if len(types) != len(names):
            self._fail(f"{len(names)} results have {len(types)} types")
        # names of results are in scope only after the regions, so that a region cannot use them
        self._regions(cls, values)
        self._results(cls, values, [self._define(n, t) for n, t in zip(names, types, strict=True)])
        try:
            return cls(**values)
        except TypeError as error:
            self._fail(str(error))

    def _operands(self, cls: type[Op], values: dict[str, object]) -> None:
        first = True
        for name, kind in cls.fields:
            if kind not in ("operand", "operands", "optional"):
                continue
            if not first:
                self._expect(",")
            first = False
            if kind == "operands":
                self._expect("[")
                found: list[Value] = []
                while not self._take("]"):
                    if found:
                        self._expect(",")
                    found.append(self._use())
                values[name] = tuple(found)
            elif kind == "optional" and self._take("_"):
                values[name] = None
            else:
                values[name] = self._use()

    def _attributes(self, cls: type[Op], values: dict[str, object]) -> None:
        known = [name for name, kind in cls.fields if kind == "attribute"]
        while True:
            start = self._at
            name = self._match(_WORD)
            if name is None or not self._take("="):
                self._at = start
                return
            if name not in known:
                self._fail(f"{cls.mnemonic} has no attribute {name}")
            values[name] = self._attribute()

    def _attribute(self) -> object:
        if self._take("["):
            found: list[object] = []
            while not self._take("]"):
                if found:
                    self._expect(",")
                found.append(self._attribute())
            return tuple(found)
        if (text := self._match(_STRING)) is not None:
            try:
                return json.loads(text)
            except ValueError as error:
                self._fail(f"expected a string as in JSON ({error})")
        if (number := self._match(_NUMBER)) is not None:
            return int(number) if number.lstrip("-").isdigit() else float(number)
        word = self._word()
        return {"true": True, "false": False, "none": None}.get(word, word)

    def _regions(self, cls: type[Op], values: dict[str, object]) -> None:
        first = True
        for name, kind in cls.fields:
            if kind != "region":
                continue
            if not first and self._word() != "else":
                self._fail("expected else")
            first = False
            self._skip()
            block = Block(self._arguments() if self._text.startswith("(", self._at) else None)
            self._expect("{")
            self._ops(block)
            values[name] = block

    def _results(self, cls: type[Op], values: dict[str, object], results: list[Value]) -> None:
        rest = list(results)
        for name, kind in cls.fields:
            if kind == "result":
                if not rest:
                    self._fail(f"{cls.mnemonic} has more results")
                values[name] = rest.pop(0)
            elif kind == "results":
                values[name] = tuple(rest)
                rest = []
        if rest:
            self._fail(f"{cls.mnemonic} has fewer results")
