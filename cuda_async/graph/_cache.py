"""`GraphCache`: one graph per shape bucket, captured when it is first needed."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from ..errors import ReentrancyError
from ..ops import DeviceOp, SharedOp
from ._capture import Capture
from ._graph import CudaGraph

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["GraphCache"]

K = TypeVar("K")
T = TypeVar("T")


class GraphCache(Generic[K, T]):
    """Graphs by key: of a batch size, a pair of sizes, or whatever tells shapes apart.

    `await cache.get(n)` gives the graph for `n`. The first who asks captures it; others who ask meanwhile, from any
    task, thread and loop, wait for that one. What could not be captured is an error for those who waited, and is
    tried anew by the next; a graph that was closed, by itself or with its device, is captured anew, too. A graph is
    for the device that was current when it was captured. The graph that was not asked for the longest makes room for
    a new one, once that is captured; whoever has it may go on using it.

    Args:
        build: given a key, an operation to capture, or `op.graph(inputs=...)` as it is.
        buckets: sizes, for keys that are ints: a key is rounded up to the next of them.
        max_graphs: how many are kept, beside at most as many that are still to be captured.
    Raises:
        ValueError: no bucket, a negative one, or `max_graphs` below 1. TypeError: buckets or `max_graphs` that are no
            ints, or a `build` that is no function; when it runs, an operation that yields a graph made before.
    """

    @overload
    def __init__(
        self: GraphCache[K, T],
        build: Callable[[K], DeviceOp[CudaGraph[T]]],
        *,
        buckets: Sequence[int] | None = None,
        max_graphs: int = 16,
    ) -> None: ...
    @overload
    def __init__(
        self: GraphCache[K, T],
        build: Callable[[K], DeviceOp[T]],
        *,
        buckets: Sequence[int] | None = None,
        max_graphs: int = 16,
    ) -> None: ...
    def __init__(
        self,
        build: Callable[[K], DeviceOp[Any]],
        *,
        buckets: Sequence[int] | None = None,
        max_graphs: int = 16,
    ) -> None:
        if isinstance(build, DeviceOp) or not callable(build):
            raise TypeError(
                f"build is a function of a key that returns an operation, got {type(build).__name__}"
            )
        if not hasattr(max_graphs, "__index__"):
            raise TypeError(f"max_graphs is a number of graphs, got {max_graphs!r}")
        if max_graphs < 1:
            raise ValueError(f"max_graphs is {max_graphs}; a cache keeps at least 1")
        self._build = build
        self._buckets = None if buckets is None else _checked_buckets(buckets)
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[Hashable, SharedOp[CudaGraph[T]]] = OrderedDict()
        self._building: set[K] = set()
        self._build_lock = threading.RLock()  # `build` may ask for another graph
        # of what is kept; not while it builds, which may wait for what another thread captures
        self._lock = threading.RLock()

    def bucket(self, key: K) -> K:
        """The key that `key` is rounded up to.

        Raises:
            ValueError: it is beyond the largest bucket, or negative. TypeError: there are buckets, and it is no int.
        """
        if self._buckets is None:
            return key
        if not hasattr(key, "__index__"):
            raise TypeError(f"a cache with buckets takes sizes as keys, got {key!r}")
        size: Any = key  # an int, where there are buckets
        if size < 0:
            raise ValueError(f"a cache with buckets takes sizes from 0 on, got {key!r}")
        for bucket in self._buckets:
            if size <= bucket:
                found: Any = bucket
                return found  # type: ignore[no-any-return]
        raise ValueError(
            f"{key!r} is beyond the largest bucket, {self._buckets[-1]}; split the work, or add a bucket"
        )

    def get(self, key: K) -> DeviceOp[CudaGraph[T]]:
        """An operation that yields the graph of the key's bucket, captured on first use.

        `build` is called here, not by the await, and what it raises comes out of this call; the next one tries again.
        One is called at a time, so it must not wait for another thread that has a graph built.
        """
        place = self.bucket(key)
        try:
            hash(place)
        except TypeError:
            raise TypeError(
                f"the keys of a GraphCache are hashable, as those of a dict, got {place!r}"
            ) from None
        found = self._kept(place)
        if found is not None:
            return found
        with self._build_lock:
            found = self._kept(place)
            if found is not None:
                return found
            if place in self._building:
                raise ReentrancyError(f"build({place!r}) asks the cache for the graph that it is to build")
            try:  # first: an interrupt may come as the place is noted
                self._building.add(place)
                found = self._capture(place).shared()
            finally:
                self._building.discard(place)
            with self._lock:
                self._graphs[place] = found
                self._graphs.move_to_end(place)
                dropped = self._make_room()
        del dropped  # runs finalizers
        return found

    def _kept(self, place: K) -> SharedOp[CudaGraph[T]] | None:
        """What is there, if it is of use; asked for now."""
        with self._lock:
            found = self._graphs.get(place)
            if found is None or _is_useless(found):
                return None
            self._graphs.move_to_end(place)
            return found

    def _make_room(self, captured: SharedOp[CudaGraph[T]] | None = None) -> list[SharedOp[CudaGraph[T]]]:
        """Take out what is of no use, and the oldest that are more than are kept; `captured` has its graph just now."""
        out: list[Hashable] = []
        ready: list[Hashable] = []
        waiting: list[Hashable] = []
        with self._lock:
            for place, op in self._graphs.items():
                if _is_useless(op):
                    out.append(place)
                elif isinstance(op._gate.value, CudaGraph) or op is captured:
                    ready.append(place)
                else:
                    waiting.append(place)
            for places in (ready, waiting):
                out += places[: max(0, len(places) - self._max_graphs)]
            return [self._graphs.pop(place) for place in out]

    def _capture(self, key: K) -> DeviceOp[CudaGraph[T]]:
        op = self._build(key)
        if inspect.iscoroutine(op):
            op.close()
            raise TypeError(
                f"build({key!r}) is an async def; make it a def that returns the operation to capture"
            )
        if not isinstance(op, DeviceOp):
            raise TypeError(f"build({key!r}) returned {type(op).__name__}, expected a DeviceOp to capture")

        def captured(graph: CudaGraph[T]) -> CudaGraph[T]:
            if not isinstance(op, Capture) and isinstance(graph._template.value, CudaGraph):
                raise TypeError(
                    f"build({key!r}) returned an operation that yields a graph; return what is to be captured, or "
                    "op.graph(inputs=...) itself"
                )
            dropped = self._make_room(self._graphs.get(key))
            del dropped
            return graph

        return (op if isinstance(op, Capture) else Capture(op, None, None)).map(captured)

    def __repr__(self) -> str:
        buckets = "" if self._buckets is None else f", buckets {self._buckets}"
        return f"<GraphCache: {len(self)} of at most {self._max_graphs} graphs{buckets}>"

    def __len__(self) -> int:
        """Graphs, those that are still to be captured among them."""
        with self._lock:
            return sum(not _is_useless(op) for op in self._graphs.values())

    def __contains__(self, key: object) -> bool:
        """Whether the graph of the key's bucket is there, or is to be captured."""
        known: Any = key  # of whatever type
        try:
            found = self._graphs.get(self.bucket(known))
        except (TypeError, ValueError):  # no key of this cache
            return False
        return found is not None and not _is_useless(found)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GraphCache cannot be copied or pickled; make another one")

    def clear(self) -> None:
        """Forget all graphs. Those in use are kept by their users."""
        with self._lock:
            dropped = self._graphs
            self._graphs = OrderedDict()
        del dropped


def _checked_buckets(buckets: Sequence[int]) -> list[int]:
    found = list(buckets) if isinstance(buckets, Iterable) else [buckets]
    if not isinstance(buckets, Iterable) or not all(hasattr(bucket, "__index__") for bucket in found):
        raise TypeError(f"buckets are sizes, such as (64, 256), got {buckets!r}")
    if not found:
        raise ValueError("buckets is empty; give sizes, or None to take keys as they are")
    if min(found) < 0:
        raise ValueError(f"buckets are sizes from 0 on, got {min(found)}")
    return sorted(found)


def _is_useless(captured: SharedOp[CudaGraph[Any]]) -> bool:
    """It failed, or its graph was closed, or the graph's device."""
    gate = captured._gate
    graph = gate.value
    return gate.error is not None or (
        isinstance(graph, CudaGraph) and (graph.is_closed or not graph._device.is_healthy)
    )
