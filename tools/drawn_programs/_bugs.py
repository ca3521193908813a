"""Planted bugs: races and lifetimes, each a line of the core that is wrong for as long as it is planted."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True)
class Bug:
    """What to replace by what in which function of `cuda_async`."""

    name: str
    function: str
    """`module:qualified.name`, the module without the package."""
    right: str
    wrong: str

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Inside, the function is wrong, for everybody who has it already too."""
        module_name, _, path = self.function.partition(":")
        found = importlib.import_module(f"cuda_async.{module_name}")
        for part in path.split("."):
            found = getattr(found, part)
        source = textwrap.dedent(inspect.getsource(found))
        if source.count(self.right) != 1:
            raise ValueError(
                f"{self.name}: {self.function} holds {self.right!r} {source.count(self.right)} times"
            )
        namespace = dict(found.__globals__)
        flags = annotations.compiler_flag
        code = compile(source.replace(self.right, self.wrong), inspect.getfile(found), "exec", flags)
        exec(code, namespace)
        before = found.__code__
        found.__code__ = namespace[found.__name__].__code__
        try:
            yield
        finally:
            found.__code__ = before


BUGS = (
    Bug(
        "a read does not wait for the last write on another stream",
        "scheduling._ordering:order_read",
        "stream._wait_for(writer, usage.write_number)",
        "pass",
    ),
    Bug(
        "a write does not wait for the last write on another stream",
        "scheduling._ordering:order_write",
        "stream._wait_for(writer, usage.write_number)",
        "pass",
    ),
    Bug(
        "a write does not wait for the read before it",
        "scheduling._ordering:order_write",
        "stream._wait_for(reader, usage.read_number)",
        "pass",
    ),
    Bug(
        "a write waits for one of several readers",
        "scheduling._ordering:order_write",
        "in usage.more_reads.items():",
        "in ():",
    ),
    Bug(
        "a reader takes the place of one that is not done",
        "scheduling._ordering:order_read",
        "if reader is stream or reader is None or reader._done >= usage.read_number:",
        "if True:",
    ),
    Bug(
        "a wait for an event is taken for one for later work",
        "scheduling._stream:Stream._wait_for",
        "self._waited[source] = submission.number",
        "self._waited[source] = source._next",
    ),
    Bug(
        "an event is taken to cover the work after it",
        "scheduling._stream:Stream._covering",
        "if s.number >= number)",
        "if s.number >= number - 1)",
    ),
    Bug(
        "an event is reused while the device has not passed it",
        "scheduling._stream:Stream._record",
        "self._pending.append(submission)",
        "self._pending.append(submission); events.append(event)",
    ),
    Bug(
        "a submission counts as done as soon as it is asked about",
        "scheduling._stream:Stream._advance",
        "if not driver.event_query(submission.event):\n                    return has_failed",
        "if not driver.event_query(submission.event):\n                    pass",
    ),
    Bug(
        "memory is freed behind its last write only",
        "scheduling._device:Device._stream_that_frees",
        "uses = list(usage.uses())",
        "uses = list(usage.uses())[:1]",
    ),
    Bug(
        "memory is freed without waiting for other streams",
        "scheduling._device:Device._stream_that_frees",
        "stream._wait_for(source, number)",
        "pass",
    ),
    Bug(
        "the staging of an upload goes back before the device has read it",
        "ops._copies:Upload.execute",
        "stream._retained.append(block)",
        "pass",
    ),
    Bug(
        "the staging of a new tensor goes back before the device has read it",
        "ops._creation:FromHost.execute",
        "stream._retained.append(block)",
        "pass",
    ),
    Bug(
        "the staging of a cancelled download goes back before the device has written it",
        "ops._copies:ToHost.execute",
        "stream._retained.append(block)",
        "pass",
    ),
    Bug(
        "branches are not joined",
        "ops._combinators:_Fork._join",
        "home.stream._wait_for(stream, number)",
        "pass",
    ),
    Bug(
        "a callback looks at an array that is still on its way",
        "ops._execution:Execution.wait_for_host_data",
        "if submission.poll():",
        "if submission.poll() or True:",
    ),
    Bug(
        "a wake-up is lost when a submission is done",
        "scheduling._submission:Submission._finish",
        "callbacks.extend(self.callbacks)",
        "pass",
    ),
    Bug(
        "an import joins only what it overlaps itself",
        "scheduling._sharing:adopt",
        "for other in sharers:",
        "for other in sharing:",
    ),
    Bug(
        "an import does not know what was freed in use",
        "scheduling._sharing:adopt",
        "if b.start < end and start < b.start + b.size_bytes",
        "if b.address < end and start < b.address + b.size_bytes",
    ),
    Bug(
        "a launch of a graph takes what it writes for what it reads",
        "graph._graph:CudaGraph._enqueue",
        "order_write(stream, buffer)",
        "order_read(stream, buffer)",
    ),
)
