"""Devices and streams, which stream is next, who waits for what, and how the host learns it is done.

`_submission` and `_stream` number the work, `_ordering` puts waits between streams, `_sharing` does so with other
libraries, `_waiting` suspends tasks, `_lookout` looks where an interrupt is lost, `_device` holds the lock and the
memory counts, `_opening` what is made ready with it, `_current` says which device and policy are current, `_reaper`
waits for everything, `_callbacks` says where nothing may wait.
"""

from ._callbacks import Burst, as_callback, check_not_in_callback, current_burst
from ._current import (
    check_policy,
    current_device,
    default_device_if_known,
    policy_in_force,
    use_device,
    use_policy,
)
from ._device import (
    Device,
    all_open_devices,
    checked_open,
    devices,
    resolve_default_device,
)
from ._dropped import destroy_dropped
from ._event import Event
from ._kept_errors import note_kept_error
from ._opening import call_behind_opening
from ._ordering import order_enqueued, order_read, order_uses, order_write
from ._policies import LeastLoaded, PriorityStreams, SchedulingPolicy, SingleStream, StreamPoolRoundRobin
from ._put_off import do_what_was_put_off, log_unasked, put_off, unasked_futures
from ._reaper import drain
from ._sharing import adopt, foreign_calls, wait_for_producer
from ._statistics import MemoryStatistics
from ._stream import Stream
from ._submission import Submission, look_at, raise_first_error
from ._waiting import checkpoint, running_library, wait_for_callback, wait_for_submission, wait_until_done
from ._watchdog import PendingWait, pending_waits, set_watchdog, waiting
from ._workers import (
    Unfinished,
    WaitElsewhere,
    WorkerTask,
    block_on,
    check_not_forked,
    forks,
    may_wait_elsewhere,
    run_in_worker,
    waiting_elsewhere,
)

__all__ = [
    "Burst",
    "Device",
    "Event",
    "LeastLoaded",
    "MemoryStatistics",
    "PendingWait",
    "PriorityStreams",
    "SchedulingPolicy",
    "SingleStream",
    "Stream",
    "StreamPoolRoundRobin",
    "Submission",
    "Unfinished",
    "WaitElsewhere",
    "WorkerTask",
    "adopt",
    "all_open_devices",
    "as_callback",
    "block_on",
    "call_behind_opening",
    "check_not_forked",
    "check_not_in_callback",
    "check_policy",
    "checked_open",
    "checkpoint",
    "current_burst",
    "current_device",
    "default_device_if_known",
    "destroy_dropped",
    "devices",
    "do_what_was_put_off",
    "drain",
    "foreign_calls",
    "forks",
    "log_unasked",
    "look_at",
    "may_wait_elsewhere",
    "note_kept_error",
    "order_enqueued",
    "order_read",
    "order_uses",
    "order_write",
    "pending_waits",
    "policy_in_force",
    "put_off",
    "raise_first_error",
    "resolve_default_device",
    "run_in_worker",
    "running_library",
    "set_watchdog",
    "unasked_futures",
    "use_device",
    "use_policy",
    "wait_for_callback",
    "wait_for_producer",
    "wait_for_submission",
    "wait_until_done",
    "waiting",
    "waiting_elsewhere",
]
