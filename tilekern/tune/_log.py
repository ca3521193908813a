"""The log of a search: one line of JSON per configuration, so that a search that was stopped goes on.

The first line says what was searched: a digest of the space, the device, and the caller's own words for the
problem, by which searches are told apart, and the axes, so that an error can say how they differ. A log of another
search is refused. A last line that was cut short is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import get_args

from ..errors import TilekernError
from ._space import Space, check_value, config_key
from ._trial import Status, Trial

__all__ = ["TrialLog", "TuneLogError", "value_from_json"]

_FORMAT = 1
_MAX_BYTES = 256 << 20
"""Of a log that is read: that of a million configurations."""


class TuneLogError(TilekernError, ValueError):
    """A log that is damaged, or of another search."""


class TrialLog:
    """A log that is read when it is opened, and appended to. Without a path, nothing is kept.

    Attributes:
        trials: what is in it, by configuration.
    """

    def __init__(self, path: str | os.PathLike[str] | None, space: Space, device: str, problem: str) -> None:
        self.trials: dict[str, Trial] = {}
        self._path = None if path is None else Path(path)
        self._about: dict[str, object] = {
            "format": _FORMAT,
            "space": space.digest,
            "device": device,
            "problem": problem,
            "axes": space.as_json(),
            "combinations": len(space),
        }
        if self._path is None:
            return
        if self._path.exists() and not self._path.is_file():
            raise TuneLogError(
                f"{path} is no file; give the path of a log, or of a file that is not there yet"
            )
        if self._path.exists() and self._path.stat().st_size:
            self._read(self._path)
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(self._about)

    def add(self, trial: Trial) -> None:
        """Write a configuration down."""
        self.trials[config_key(trial.config)] = trial
        line = {"config": json.loads(config_key(trial.config)), "status": trial.status}
        if trial.ms is not None:
            line["ms"] = trial.ms
        if trial.error:
            line["error"] = trial.error
        self._append(line)

    def _append(self, line: Mapping[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _read(self, path: Path) -> None:
        try:
            text = _text_of(path)
        except ValueError as error:
            raise TuneLogError(f"{path} is no log of a search: {error}; name another file") from None
        whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
        try:
            about, *lines = [_object(line) for line in whole.splitlines()]
            found = [self._trial(line) for line in lines]
            trials = {config_key(trial.config): trial for trial in found}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TuneLogError(
                f"{path} is no log of a search, or damaged: {error}; name another file, or remove it if it was one"
            ) from None
        differences = self._differences(about)
        if differences:
            raise TuneLogError(
                f"{path} is the log of another search: they differ in {', '.join(differences)}; use another file"
            )
        if len(whole) < len(text):
            path.write_text(whole, encoding="utf-8")
        self.trials = trials

    def _differences(self, about: Mapping[str, object]) -> list[str]:
        """What another search is told apart by, as it is there and here."""
        own = self._about
        found = [
            f"{name} ({about.get(name)}, here {own[name]})"
            for name in ("format", "device", "problem")
            if about.get(name) != own[name]
        ]
        if about.get("space") == own["space"]:
            return found
        there, here = about.get("axes"), own["axes"]
        if not isinstance(there, dict) or not isinstance(here, dict):
            return [*found, "the space"]
        axes = [
            f"axis {k} ({_said(there, k)}, here {_said(here, k)})"
            for k in {**there, **here}
            if there.get(k) != here.get(k)
        ]
        if not axes:
            what = f"{about.get('combinations')}, here {own['combinations']}"
            axes = [f"the order of the axes, or which combinations `where` allows ({what})"]
        return [*found, *axes]

    def _trial(self, line: Mapping[str, object]) -> Trial:
        config = line["config"]
        if not isinstance(config, dict):
            raise TypeError("a line has no configuration")
        values = {name: value_from_json(value) for name, value in config.items()}
        for name, value in values.items():
            check_value(name, value)
        status, ms, error = line["status"], line.get("ms"), line.get("error", "")
        if status not in get_args(Status) or not isinstance(error, str):
            raise TypeError("a line has no status")
        if ms is not None and (isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < inf):
            raise TypeError(f"a time is {ms!r}")
        return Trial(values, status, ms, error)  # type: ignore[arg-type]  # one of the words


def _text_of(path: Path) -> str:
    """The log's text; raises `ValueError` for what is too large, or no text."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return data.decode()


def _object(line: str) -> dict[str, object]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise TypeError("a line is no JSON object")
    return found


def _said(axes: Mapping[str, object], name: str) -> str:
    """The values of an axis, as they are written in Python."""
    values = axes.get(name)
    return str([value_from_json(v) for v in values]) if isinstance(values, list) else "none"


def value_from_json(value: object) -> object:
    """A value of a configuration: JSON has no tuples."""
    return tuple(map(value_from_json, value[1:])) if isinstance(value, list) else value
