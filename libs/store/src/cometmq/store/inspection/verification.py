# SPDX-License-Identifier: Apache-2.0
"""The result of the verification of a store: its state, and the inconsistencies found."""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from cometmq.store.recovery.recovery import Recovered

FINDINGS_PER_KIND_MAX: Final = 100
"""Maximum number of findings of one kind that are kept. A missing folder of queues has a finding
for each message, which must not hide other damage.
"""


class StoreState(StrEnum):
    """The overall result of a verification."""

    HEALTHY = "healthy"
    IN_USE = "in use"
    NEEDS_RECOVERY = "needs recovery"
    DAMAGED = "damaged"


class FindingKind(StrEnum):
    """The kinds of damage."""

    FILE_DAMAGED = "file-damaged"
    START_REFUSED = "start-refused"
    LOG_DAMAGED = "log-damaged"
    LOG_FILES_LOST = "log-files-lost"
    CHECKSUM_WRONG = "checksum-wrong"
    QUEUE_ENTRY_WRONG = "queue-entry-wrong"
    QUEUE_ENTRY_MISSING = "queue-entry-missing"
    QUEUE_ENTRY_WITHOUT_RECORD = "queue-entry-without-record"
    INDEX_ENTRY_WRONG = "index-entry-wrong"
    INDEX_CHAIN_BROKEN = "index-chain-broken"
    INDEX_KEYS_MISSING = "index-keys-missing"
    JOURNAL_DAMAGED = "journal-damaged"
    TABLE_DAMAGED = "table-damaged"


class Finding(NamedTuple):
    """One inconsistency and its location."""

    kind: FindingKind
    place: str
    text: str


class Verification(msgspec.Struct, kw_only=True):
    """The result of a verification: how much was checked, and the inconsistencies found."""

    state: StoreState = StoreState.HEALTHY
    in_use_by: int | None = None
    """Process that holds the store's lock; 0 if its id is unknown; None if the store is not in use.
    """
    was_clean: bool
    record_count: int = 0
    queue_entry_count: int = 0
    index_entry_count: int = 0
    journal_entry_count: int = 0
    min_offset: int = 0
    max_offset: int = 0
    """End of the part of the log that was checked."""
    findings: list[Finding] = []
    """The first findings of each kind; damage that outlasts a start comes first."""
    counts: dict[FindingKind, int] = {}
    """Kind -> number of findings, including those beyond the limit of `findings`."""
    recovery: Recovered | None = None
    """The result of the recovery that the broker's next start needs, if any."""

    @property
    def is_good(self) -> bool:
        """Whether there are no findings."""
        return not self.counts

    @property
    def finding_count(self) -> int:
        """The total number of findings."""
        return sum(self.counts.values())

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there are few of its kind."""
        count = self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if count <= FINDINGS_PER_KIND_MAX:
            self.findings.append(finding)

    def add_all(self, found: "Verification") -> None:
        """Add the findings of another check, and count those beyond its limit."""
        for finding in found.findings:
            self.add(finding)
        for kind, count in found.counts.items():
            kept_count = sum(finding.kind is kind for finding in found.findings)
            self.counts[kind] += count - kept_count

    def add_repairable(self, found: "Verification") -> None:
        """Add findings from before a start; the start has repaired those that are new here."""
        known = {(finding.kind, finding.place) for finding in self.findings}
        self.findings += [it for it in found.findings if (it.kind, it.place) not in known]
        for kind, count in found.counts.items():
            self.counts[kind] = max(count, self.counts.get(kind, 0))
