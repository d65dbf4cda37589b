# SPDX-License-Identifier: Apache-2.0
"""The runbook pages of each event that has any, and the texts of the pages; tests compare both with
docs/runbooks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TEXTS: Final = Path(__file__).with_name("runbook_texts")
"""A folder of links to docs/runbooks; packages contain the files themselves."""

RUNBOOKS: Final[Mapping[str, tuple[str, ...]]] = {
    page: tuple(events.split())
    for page, events in {
        "accounts-broken.md": "accounts.unreadable",
        "certificate-expires.md": "certificate.expired",
        "dead-letters.md": "listener.failed",
        "disk-full.md": "disk.filling disk.freed disk.full files.sacrificed member.failed"
        " member.recovered queues.write_failed replica.failed replica.lost",
        "fsync-failed.md": "log.truncated record.dropped store.failed",
        "group-degraded.md": "control.unproven group.blocked program.failed store.failed",
        "half-messages-pile-up.md": "broker.unfollowed transaction.check_failed"
        " transaction.set_aside transaction.untold",
        "handler-fails.md": "handler.failed",
        "lag-grows.md": "delay.level_missing group.disabled listener.failed message.late"
        " pull.failed",
        "namesrv-unreachable.md": "broker.disconnected broker.expired namesrv.lookup_failed"
        " namesrv.lost namesrv.unreachable route.unknown",
        "operator.md": "leader.lost object.unattended",
        "parked-messages.md": "message.parked",
        "program-down.md": "program.failed",
        "slave-does-not-follow.md": "replica.copy_failed replica.failed replica.unfit"
        " slave.refused",
        "store-damaged.md": "index.damaged index.repaired log.damaged log.files_lost log.repaired"
        " log.shortened log.truncated log.unrepaired message.damaged message.unreadable"
        " messages.missing offsets.lowered pull.failed queue.file_lost queue.repaired"
        " records.damaged",
        "tables-not-saved.md": "config.save_failed journal.damaged journal.left_out"
        " journal.sync_failed journal.write_failed topic.adopted",
        "writes-refused.md": "log.write_failed queues.write_failed store.job_failed",
    }.items()
}
"""The events that each page explains."""


def runbooks_of(event: str) -> list[str]:
    """Return the names of the pages that explain an event."""
    return [page for page, events in RUNBOOKS.items() if event in events]


def runbook_text(name: str) -> str | None:
    """Return a runbook as Markdown, given its name with or without `.md`; None if there is none."""
    file = f"{name.removesuffix('.md')}.txt"
    if file not in {it.name for it in _TEXTS.iterdir()}:  # a name from outside may be a path
        return None
    return (_TEXTS / file).read_text("utf-8")
