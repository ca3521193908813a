"""The process that runs candidates for `_isolated.py`: `python -m tilekern.tune._worker IN OUT`, two pipes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

from cuda_async import Device
from cuda_async.errors import DeviceLostError

from ..bench import Comparison, MeasureOptions
from ._log import value_from_json
from ._runner import Here, Outcome

__all__: list[str] = []


def _main(read: int, write: int) -> None:
    with os.fdopen(read, "rb") as questions, os.fdopen(write, "wb", buffering=0) as answers:

        def answer(message: dict[str, object]) -> None:
            answers.write(json.dumps(message).encode() + b"\n")

        hello = json.loads(questions.readline())
        try:
            runner = _runner(hello)
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            return
        answer({})
        with runner:
            for line in questions:
                try:
                    answer(_answer(runner, json.loads(line)))
                except DeviceLostError as error:
                    answer({"outcome": Outcome("invalid", None, str(error))._asdict(), "is_lost": True})
                    os._exit(1)  # a lost device cannot be closed in order


def _runner(hello: dict[str, Any]) -> Here:
    sys.path[:] = hello["path"]
    make = _function(hello["make"])
    verify = None if hello["verify"] is None else _function(hello["verify"])
    device = Device(hello["device"]).open()
    return Here(make, verify, device, MeasureOptions(**hello["options"]))


def _function(address: list[str]) -> Any:
    module, file, name = address
    if not file:
        return getattr(importlib.import_module(module), name)
    known = sys.modules.get("__tune_main__")
    if known is None:
        spec = importlib.util.spec_from_file_location("__tune_main__", file)
        assert spec is not None
        assert spec.loader is not None
        known = importlib.util.module_from_spec(spec)
        sys.modules["__tune_main__"] = known
        spec.loader.exec_module(known)
    return getattr(known, name)


def _answer(runner: Here, question: dict[str, Any]) -> dict[str, object]:
    if "run" in question:
        config = {name: value_from_json(value) for name, value in question["run"].items()}
        return {"outcome": runner.run(config, question["slow_ms"])._asdict()}
    configs = [
        {name: value_from_json(value) for name, value in config.items()} for config in question["compare"]
    ]
    found: Comparison | Outcome = runner.compare(*configs)
    if isinstance(found, Outcome):
        return {"outcome": found._asdict()}
    return {
        "comparison": {
            "first": found.first.samples_ms,
            "second": found.second.samples_ms,
            "ratio": found.ratio,
            "interval": found.interval,
        }
    }


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
