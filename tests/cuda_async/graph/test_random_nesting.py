"""Random graphs over graphs, against a model of whose launch writes what: an output that can be read has the numbers
that are there, one that a later launch may have written over cannot be read, and the newest one always can.

The model knows pieces of memory: tensors of the caller's, and what each graph made while it was recorded. A graph is a
list of steps over pieces. What it yields of memory that it writes is of one launch: stale when it is launched again, or
another graph that has a part in common with it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, StaleOutputError

N = 8
CAPTURES = 12


class Piece:
    """Memory: whose it is (None for the caller's), and what it holds."""

    def __init__(self, owner: ModelGraph | None, value: float = 0.0) -> None:
        self.owner = owner
        self.value = value

    @property
    def root(self) -> object:
        """What is ordered as one with it."""
        return self if self.owner is None else self.owner


class Name:
    """A tensor over a piece, as it was yielded by launch number `launch` of `graph`; None for good at any time.

    `whole`: the graph that it was recorded in, as what a part of that one yields.
    """

    def __init__(
        self,
        tensor: ca.Tensor,
        piece: Piece,
        graph: ModelGraph | None = None,
        whole: ModelGraph | None = None,
    ) -> None:
        self.tensor = tensor
        self.piece = piece
        self.graph = graph
        self.whole = whole
        self.launch = graph.launches if graph is not None else 0

    @property
    def is_stale(self) -> bool:
        return self.graph is not None and self.graph.launches != self.launch


class ModelGraph:
    """Steps, each called with nothing, and what they write; what is yielded."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.memory = {self}  # whose its launches write
        self.writes: set[object] = {self}  # roots
        self.outputs: list[Name] = []  # as recorded
        self.launches = 0  # of it, or of others that write its memory or a part's
        self.input: Piece | None = None
        self.graph: Any = None

    def run(self) -> None:
        for step in self.steps:
            step()

    def note_part(self, part: ModelGraph) -> None:
        self.memory |= part.memory
        self.writes |= part.writes

    def is_of_launch(self, recorded: Name) -> bool:
        """Whether what it yields there is of a launch: what it writes, or is set to; all else is what it was."""
        roots = self.writes if self.input is None else {*self.writes, self.input.root}
        return recorded.whole is self or recorded.piece.root in roots


class Nesting:
    """One random program."""

    def __init__(self, seed: int, kernels: Any) -> None:
        self.chance = random.Random(seed)
        self.kernels = kernels
        self.mine = [Name(ca.full(N, float(i)).sync(), Piece(None, float(i))) for i in range(3)]
        self.flags = [(ca.full(1, i, "int32").sync(), bool(i)) for i in range(2)]
        self.counters = [ca.zeros(1, "int32").sync() for _ in range(4 * CAPTURES)]  # one for each loop
        self.made: list[ModelGraph] = []
        self.graphs: list[ModelGraph] = []  # those that are open
        self.names: list[Name] = []  # that launches have yielded
        self.read = 0

    # -- recording

    def capture(self) -> None:
        """A graph of some random steps, over the caller's tensors, outputs that are good, and launches of others."""
        made = ModelGraph()
        known = [*self.mine, *(name for name in self.names if not name.is_stale)]
        settable = self.chance.choice([None, *known])
        inputs = {"x": settable.tensor} if settable is not None else {}
        made.input = settable.piece if settable is not None else None

        def chosen(_: object) -> list[ca.Tensor]:
            made.outputs = self.chance.sample(known, min(len(known), self.chance.randrange(1, 4)))
            return [name.tensor for name in made.outputs]

        op: Any = ca.value(None)
        for _ in range(self.chance.randrange(1, 5)):
            op = op.then(lambda _: self.step(made, known))
        try:
            made.graph = op.map(chosen).graph(inputs=inputs).sync()
        except (
            CaptureError,
            StaleOutputError,
        ):  # an output was used that is written over, or the input was not used
            return
        self.made.append(made)
        self.graphs.append(made)

    def numbers(self) -> tuple[float, float]:
        return self.chance.choice([1.0, -1.0]), float(self.chance.randrange(1, 100))

    def step(self, made: ModelGraph, known: list[Name]) -> Any:
        kind = self.chance.choice(["scale", "new", "copy", "launch", "call", "if", "while"])
        if kind in ("launch", "call") and self.graphs:
            return self.part(made, known, copies=kind == "call")
        if kind == "if":
            flag, is_taken = self.chance.choice(self.flags)
            steps: list[Any] = []
            before = list(known)
            made.steps.append(lambda: [step() for step in steps if is_taken])
            return ca.if_else(flag, lambda: self.in_place(made, before, steps))
        if kind == "while":
            return self.loop(made, list(known))
        if kind == "new":
            (a, b), old, new = self.numbers(), self.chance.choice(known), Piece(made)
            made.steps.append(lambda: setattr(new, "value", a * old.piece.value + b))
            return self.kernels.scaled(old.tensor, a, b).map(lambda t: known.append(Name(t, new)))
        source, target = self.chance.choice(known).piece, self.chance.choice(known).piece
        if kind == "copy" and source is not target:
            tensors = {name.piece: name.tensor for name in known}
            made.writes.add(target.root)
            made.steps.append(lambda: setattr(target, "value", source.value))
            return ca.memcpy(tensors[target], tensors[source])
        return self.in_place(made, known, made.steps)

    def part(self, made: ModelGraph, known: list[Name], *, copies: bool) -> Any:
        part = self.chance.choice(self.graphs)
        made.note_part(part)
        values = self.inputs(part)
        if values:
            made.writes.add(part.input.root)
            made.steps.append(lambda: setattr(part.input, "value", values["x"]))
        made.steps.append(part.run)
        if not copies:
            return part.graph.replay(**values).map(
                lambda tensors: known.extend(
                    Name(tensor, name.piece, whole=made) if part.is_of_launch(name) else name
                    for tensor, name in zip(tensors, part.outputs)
                )
            )
        pieces = [Piece(made) if part.is_of_launch(name) else name.piece for name in part.outputs]

        def copy() -> None:
            for piece, name in zip(pieces, part.outputs):
                piece.value = name.piece.value

        made.steps.append(copy)
        return part.graph(**values).map(
            lambda tensors: known.extend(
                Name(tensor, piece) if piece is not name.piece else name
                for tensor, piece, name in zip(tensors, pieces, part.outputs)
            )
        )

    def inputs(self, model: ModelGraph) -> dict[str, float]:
        is_set = model.input is not None and self.chance.random() < 0.6
        return {"x": float(self.chance.randrange(100))} if is_set else {}

    def in_place(self, made: ModelGraph, known: list[Name], steps: list[Any]) -> Any:
        (a, b), name = self.numbers(), self.chance.choice(known)
        piece = name.piece
        made.writes.add(piece.root)
        steps.append(lambda: setattr(piece, "value", a * piece.value + b))
        return self.kernels.scale(name.tensor, a, b)

    def loop(self, made: ModelGraph, known: list[Name]) -> Any:
        """Two turns of steps in place, with a launch between, maybe."""
        count, steps, part = self.counters.pop(), [], self.chance.choice([None, *self.graphs])

        def body() -> Any:
            op = self.in_place(made, known, steps)
            if part is not None:
                made.note_part(part)
                steps.append(part.run)
                op = op.then(lambda _: part.graph.launch())
            op = op.then(lambda _: self.in_place(made, known, steps))
            return op.then(lambda _: self.kernels.count_down.launch(1, 1, ca.mut(count)))

        made.steps.append(lambda: [step() for _ in range(2) for step in steps])
        return ca.fill(count, 2).then(lambda _: ca.while_loop(count, body))

    # -- running

    def launch(self) -> None:
        model = self.chance.choice(self.graphs)
        copies, values = self.chance.random() < 0.3, self.inputs(model)
        tensors = (model.graph if copies else model.graph.replay)(**values).sync()
        if values:
            model.input.value = values["x"]
        model.run()
        for other in self.made:
            if model.memory & other.memory:
                other.launches += 1
        names = [
            Name(tensor, recorded.piece, model) if model.is_of_launch(recorded) else recorded
            for tensor, recorded in zip(tensors, model.outputs)
        ]
        self.check(names)
        if not copies:
            self.names += [name for name in names if name.graph is model]

    def check(self, names: list[Name]) -> None:
        for name in names:
            if name.is_stale:
                with pytest.raises(StaleOutputError):
                    name.tensor.to_host().sync()
            else:
                found = name.tensor.to_host().sync()
                np.testing.assert_array_equal(found, np.full(N, name.piece.value, "f4"))
                self.read += 1

    def run(self) -> None:
        for _ in range(CAPTURES):
            self.capture()
            for _ in range(self.chance.randrange(4)):
                if self.graphs:
                    self.launch()
            self.check([*self.mine, *self.names])
            for name in self.mine:  # numbers stay such as float32 has exactly
                name.piece.value = float(self.chance.randrange(100))
                ca.fill(name.tensor, name.piece.value).sync()
            if self.graphs and self.chance.random() < 0.2:
                self.chance.choice(self.graphs).graph.close()
                self.graphs = [model for model in self.graphs if not model.graph.is_closed]


@pytest.mark.parametrize("seed", range(100))
def test_graphs_over_graphs(device, kernels, seed):
    nesting = Nesting(seed, kernels)
    nesting.run()
    assert len(nesting.made) > CAPTURES // 3
    assert nesting.read > 3 * CAPTURES
