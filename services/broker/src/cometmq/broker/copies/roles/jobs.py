# SPDX-License-Identifier: Apache-2.0
"""What waits in the queue of a member."""

import asyncio
from typing import NamedTuple

from cometmq.ha import events
from cometmq.ha.member import Member
from cometmq.ha.record import Record, Versioned


class Read(NamedTuple):
    """An answer to a read of the record, and the state in which the read began."""

    began: Member
    found: Versioned | None


class Seen(NamedTuple):
    """A fact in the record that the state file lacks."""

    record: Record


class Retry(NamedTuple):
    """A request to retry saving the state, which did not fit on the disk."""


class Job(NamedTuple):
    event: events.Event | Read | Seen | Retry
    done: asyncio.Future[None] | None
