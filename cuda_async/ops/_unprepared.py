"""The answer of an operation that is asked to execute before it is prepared."""

from __future__ import annotations

from typing import Any

__all__ = ["UNPREPARED"]

UNPREPARED: Any = object()
"""What `execute` of an operation that sets `_reports_unprepared` returns when `prepare` has to run first."""
