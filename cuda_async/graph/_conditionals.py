"""`if_else` and `while_loop`: what runs is decided by a number on the device.

In a graph they are conditional nodes, and the host has no part in it. Outside of one, the number is brought to the host
and the chain goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..driver.graph import ConditionalNode, ConditionKind
from ..memory import Tensor
from ..ops import DeviceOp, check_operand, to_host, value
from ..ops._combinators import refuse_coroutine
from ._recorder import RecordingStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..driver.graph import Node
    from ..ops._execution import Execution
    from ..scheduling import Device
    from ._memory import GraphBuffer

__all__ = ["if_else", "while_loop"]


class Conditional(DeviceOp[None]):
    """`if_else(...)` and `while_loop(...)`."""

    _composite = True

    def __init__(
        self, kind: ConditionKind, predicate: Tensor, bodies: tuple[Callable[[], DeviceOp[Any]], ...]
    ) -> None:
        self._kind = kind
        self._predicate = predicate
        self._bodies = bodies

    def _device_hint(self) -> Device | None:
        return self._predicate.device

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        stream = execution.ctx.stream
        if not isinstance(stream, RecordingStream):
            return self._on_host()._take()
        buffer = check_operand(self._predicate, execution.ctx.device, "the predicate")
        frame = _BodyFrame(self, stream)
        stream._lane.recorder.note_read(stream, buffer)
        return frame.begin(execution)

    def _on_host(self) -> DeviceOp[None]:
        if self._kind is ConditionKind.WHILE:
            return self._again(None)
        return to_host(self._predicate).then(self._choose).map(_nothing)

    def _again(self, _: object) -> DeviceOp[None]:
        body = self._bodies[0]
        return to_host(self._predicate).then(
            lambda array: _operation_of(body).then(self._again) if array.any() else value(None)
        )

    def _choose(self, array: Any) -> DeviceOp[Any]:  # a NumPy array
        if array.any():
            return _operation_of(self._bodies[0])
        return _operation_of(self._bodies[1]) if len(self._bodies) > 1 else value(None)


def _operation_of(body: Callable[[], DeviceOp[Any]]) -> DeviceOp[Any]:
    op = body()
    refuse_coroutine(op, body)
    if not isinstance(op, DeviceOp):
        raise TypeError(
            f"a body of if_else() and while_loop() is a function that returns a DeviceOp, got {type(op).__name__}"
        )
    return op


def _nothing(_: object) -> None:
    return None


class _BodyFrame:
    """Records the bodies, one after the other, and then the node."""

    __slots__ = ("bodies", "ctx", "current", "op", "overwritten", "stream")

    def __init__(self, op: Conditional, stream: RecordingStream) -> None:
        self.op = op
        self.stream = stream
        self.bodies: list[list[Node]] = []
        self.overwritten: list[GraphBuffer] = []

    def begin(self, execution: Execution) -> DeviceOp[Any]:
        body = _operation_of(self.op._bodies[len(self.bodies)])
        recorder = self.stream._lane.recorder
        self.ctx = execution.ctx
        self.current = recorder.begin_body(self.stream, repeats=self.op._kind is ConditionKind.WHILE)
        execution.ctx = self.current._lane.context
        execution.frames.append(self)
        return body._take()

    def _resume(self, execution: Execution, _: Any) -> DeviceOp[Any] | None:
        recorder = self.stream._lane.recorder
        self.bodies.append(recorder.end_body(self.stream, self.current, self.overwritten))
        execution.ctx = self.ctx
        op = self.op
        if len(self.bodies) < len(op._bodies):
            return self.begin(execution)
        recorder.end_bodies(self.overwritten)
        predicate = op._predicate
        if op._kind is ConditionKind.WHILE or any(self.bodies):
            self.stream._lane.add(
                ConditionalNode(
                    kind=op._kind,
                    predicate=predicate._address,
                    itemsize=predicate.itemsize,
                    bodies=tuple(self.bodies),
                )
            )
        execution.value = None
        return None


def _check_predicate(predicate: object, what: str) -> Tensor:
    if not isinstance(predicate, Tensor):
        raise TypeError(
            f"{what}() takes a tensor that decides, got {type(predicate).__name__}; go on with .then()"
        )
    if predicate.size != 1 or predicate.dtype.kind not in "biu":
        raise TypeError(f"{what}() takes a tensor of one bool or integer, got {predicate!r}")
    return predicate


def _check_body(body: object, what: str) -> None:
    if isinstance(body, DeviceOp) or not callable(body):
        raise TypeError(
            f"{what}() takes functions that return operations, got {type(body).__name__}; write lambda: op"
        )


def if_else(
    predicate: Tensor,
    then: Callable[[], DeviceOp[Any]],
    otherwise: Callable[[], DeviceOp[Any]] | None = None,
) -> DeviceOp[None]:
    """Run what `then` returns where `predicate` is not 0, else what `otherwise` returns. Yields None.

    In a graph both are recorded, and `predicate` is looked at on the device, in every launch; results go into tensors
    that exist before. Outside of a graph the number is brought to the host first.

    Args:
        predicate: one bool or integer. then, otherwise: functions without arguments.
    """
    checked = _check_predicate(predicate, "if_else")
    _check_body(then, "if_else")
    if otherwise is not None:
        _check_body(otherwise, "if_else")
    return Conditional(ConditionKind.IF, checked, (then,) if otherwise is None else (then, otherwise))


def while_loop(predicate: Tensor, body: Callable[[], DeviceOp[Any]]) -> DeviceOp[None]:
    """Run what `body` returns again and again, as long as `predicate`, which it changes, is not 0. Yields None.

    In a graph the body is recorded once, and `predicate` is looked at on the device before each turn. Outside of a
    graph the number is brought to the host before each turn, and `body` is called for each.

    Args:
        predicate: one bool or integer. body: a function without arguments.
    """
    checked = _check_predicate(predicate, "while_loop")
    _check_body(body, "while_loop")
    return Conditional(ConditionKind.WHILE, checked, (body,))
