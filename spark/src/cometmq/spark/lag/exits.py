# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of `cometmq-lag`."""

from enum import IntEnum, StrEnum

from cometmq.spark.lag.columns import SEVERITIES, Header


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    COVERAGE = 3
    WARN = 10
    ERROR = 20
    CRITICAL = 30
    INTERRUPTED = 130


class FailOn(StrEnum):
    """The lowest severity that a report signals through its exit status."""

    NEVER = "never"
    WARN = "warn"
    ERROR = "error"
    CRITICAL = "critical"


_EXITS = {"warn": Exit.WARN, "error": Exit.ERROR, "critical": Exit.CRITICAL}


def exit_of(header: Header, *, fail_on: FailOn, coverage_min: float) -> Exit:
    """Map a report to an exit status; severity takes precedence over low coverage."""
    found = SEVERITIES.index(header.severity)
    if fail_on is not FailOn.NEVER and found >= SEVERITIES.index(fail_on.value):
        return _EXITS[header.severity]
    return Exit.COVERAGE if header.coverage < coverage_min else Exit.OK
