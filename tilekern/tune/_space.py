"""What is searched: named axes with values, and a condition on their combinations."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Config", "Space", "config_key"]

Config = Mapping[str, object]
"""One combination: a value for each axis. Read-only."""

_PLAIN = (bool, int, float, str, type(None))


class Space:
    """Every combination of the axes' values that a condition allows.

        Space(tile=[64, 128], warps=[4, 8], where=lambda c: c["tile"] * c["warps"] <= 512)

    Attributes:
        axes: values by name.
    """

    def __init__(self, *, where: Callable[[Config], bool] | None = None, **axes: Sequence[object]) -> None:
        """Axes are sequences of numbers, texts, bools, None, or tuples of those; `where` says what is allowed."""
        if not axes:
            raise ValueError("a space needs at least one axis, such as tile=[64, 128]")
        for name, values in axes.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ValueError(f"axis {name} is a list of values with at least one, got {values!r}")
            for value in values:
                check_value(name, value)
            keys = [json.dumps(_as_json(value)) for value in values]
            if len(set(keys)) < len(keys):
                raise ValueError(f"axis {name} has a value twice: {list(values)}")
        self.axes = {name: tuple(values) for name, values in axes.items()}
        self._where = where

    def __iter__(self) -> Iterator[dict[str, object]]:
        """The allowed combinations; the last axis changes fastest."""
        for values in itertools.product(*self.axes.values()):
            config = dict(zip(self.axes, values, strict=True))
            if self._where is None or self._where(config):
                yield config

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shuffled(self, seed: int) -> list[dict[str, object]]:
        """The allowed combinations in a random order that the seed gives."""
        configs = list(self)
        random.Random(seed).shuffle(configs)
        return configs

    @property
    def digest(self) -> str:
        """Changes with the axes and with what is allowed."""
        configs = [config_key(config) for config in self]
        return hashlib.sha256("\n".join([json.dumps(list(self.axes)), *configs]).encode()).hexdigest()

    def as_json(self) -> dict[str, list[object]]:
        """The axes, to be written down."""
        return {name: [_as_json(value) for value in values] for name, values in self.axes.items()}

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(values)}' for name, values in self.axes.items())})"


def config_key(config: Config) -> str:
    """A text that equal configurations have in common, whatever the order of their names."""
    return json.dumps({name: _as_json(config[name]) for name in sorted(config)})


def _as_json(value: object) -> object:
    return ["tuple", *map(_as_json, value)] if isinstance(value, tuple) else value


def check_value(axis: str, value: object) -> None:
    if isinstance(value, tuple):
        for part in value:
            check_value(axis, part)
    elif type(value) not in _PLAIN:
        raise TypeError(
            f"axis {axis} has a {type(value).__name__}; values are numbers, texts, bools, None and tuples of those, "
            "so that they can be written to a log"
        )
