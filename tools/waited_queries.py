"""Runs a program so that compute-sanitizer sees what the program has seen: that work on the device is done.

    python tools/waited_queries.py examples/add.py
    python tools/waited_queries.py -m pytest tests/tilekern/kernels

`cuEventQuery` and `cuStreamQuery` tell that work is done, and what is enqueued after that is ordered behind it. The
sanitizer does not follow them where it tracks stream-ordered races: a program of ten calls (allocate on one stream,
query its event until it is done, read on another stream) is reported as an access before the allocation, and is not
where the query is followed by `cuEventSynchronize`. So here each query that tells so is followed by the wait, which
returns at once.
"""

from __future__ import annotations

import runpy
import sys

from cuda_async.driver import EventHandle, StreamHandle
from cuda_async.driver.cuda._driver import CudaDriver


def wait_after_queries() -> None:
    event_query, stream_query = CudaDriver.event_query, CudaDriver.stream_query

    def event_query_and_wait(self: CudaDriver, event: EventHandle) -> bool:
        done = event_query(self, event)
        if done:  # not event_synchronize, which may itself query
            self._call("cuEventSynchronize", self._events[event])
        return done

    def stream_query_and_wait(self: CudaDriver, stream: StreamHandle) -> bool:
        done = stream_query(self, stream)
        if done:
            self._call("cuStreamSynchronize", self._streams[stream])
        return done

    CudaDriver.event_query = event_query_and_wait  # type: ignore[method-assign]
    CudaDriver.stream_query = stream_query_and_wait  # type: ignore[method-assign]


def main() -> None:
    wait_after_queries()
    del sys.argv[0]
    if sys.argv[:1] == ["-m"]:
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
