"""Locks and threads over `os.fork`.

Only the forking thread lives on in the child, so a lock that another thread held at that moment would stay
locked there for ever, over data that is half changed. Locks made here are taken before a fork and released
after it, in both processes: what they guard is whole. They are taken level by level, in the order in which
code nests them.
"""

from __future__ import annotations

import os
import threading
import weakref
from enum import IntEnum
from typing import Protocol

__all__ = ["Level", "Restartable", "fork_safe_lock", "restart_in_child"]


class Level(IntEnum):
    """Nesting of locks: a thread that holds one takes only locks of later levels."""

    REGISTRY = 0
    ENGINE = 1
    POOL = 2
    MEMORY = 3
    PINNED = 4
    CHECK = 5


class Restartable(Protocol):
    """Something that has to put itself in order in a forked child."""

    def _restart_in_child(self) -> None: ...


_locks: dict[Level, weakref.WeakSet[threading.RLock]] = {level: weakref.WeakSet() for level in Level}
_restartable: weakref.WeakSet[Restartable] = weakref.WeakSet()
_held: list[threading.RLock] = []


def fork_safe_lock(level: Level) -> threading.RLock:
    """A reentrant lock that is free in a forked child, whoever held it in the parent."""
    lock = threading.RLock()
    _locks[level].add(lock)
    return lock


def restart_in_child(thing: Restartable) -> None:
    """Call `thing._restart_in_child()` in forked children, as long as it lives; its locks are held then."""
    _restartable.add(thing)


def _before() -> None:
    for level in Level:
        for lock in list(_locks[level]):
            lock.acquire()
            _held.append(lock)


def _after() -> None:
    while _held:
        _held.pop().release()


def _after_in_child() -> None:
    for thing in list(_restartable):
        thing._restart_in_child()
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
