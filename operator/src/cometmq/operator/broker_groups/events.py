# SPDX-License-Identifier: Apache-2.0
"""Events on a BrokerGroup: one per change, understandable without the log."""

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups.decide import Ending, Nothing, Reason, Step, Wait
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.status import Findings, said
from cometmq.operator.passes import Report

PATIENCE_MS: Final[Mapping[str, int]] = {
    Reason.STATEFUL_SET_LAGS: 30_000,
    Reason.NO_RECORD: 120_000,
    Reason.POD_MISSING: 120_000,
    Reason.ROLL_BLOCKED: 120_000,
    Reason.TOO_FEW_IN_SYNC: 120_000,
    Reason.MEMBER_LEAVES: 120_000,
}
"""How long a change may wait before a Warning is written, for reasons that are part of a normal
change. A pod has 90 s to stop, and a master needs 35 s of this to forward requests.
"""


class Reporter:
    """Writes an Event and a log line when the state of a group changes."""

    def __init__(self, now_ms: Callable[[], int], report: Report) -> None:
        self._now_ms = now_ms
        self._report = report
        self._epoch: int | None = None
        self._step: tuple[str, str] | None = None
        self._waits_since: int | None = None
        """Start of the current wait, whose reason may change until the next step."""

    def note(self, group: BrokerGroup, found: Findings, before: GroupStatus) -> None:
        """Report the changes since the previous pass, which wrote the status `before`.

        The first pass after the operator starts reports the master only if it differs from the one
        in `before`.
        """
        self._note_master(group, found, before)
        step = said(group, found.step)
        may_still_pass = self._may_still_pass(found.step)
        if step != self._step and not may_still_pass:
            last, self._step = self._step, step
            is_warning = isinstance(found.step, Wait)
            if not isinstance(found.step, Nothing):
                self._report(*step, is_warning=is_warning)
            elif last is not None:
                self._report("ChangeDone", "no change is under way any more")
        if operation := found.last_operation:
            text = f"{operation.verb} {operation.value}: {operation.message or 'started'}"
            is_warning = operation.result == "Refused"
            self._report(f"Operation{operation.result}", text, is_warning=is_warning)

    def _note_master(self, group: BrokerGroup, found: Findings, before: GroupStatus) -> None:
        record = found.seen.record
        if record is None or not found.seen.has_master or record.epoch == self._epoch:
            return
        is_first, self._epoch = self._epoch is None, record.epoch
        pod = group.pod(record.holder.ordinal)
        if not is_first or (before.master, before.epoch) != (pod, record.epoch):
            text = f"{pod} is the master of epoch {record.epoch}"
            self._report("MasterChanged", text)

    def _may_still_pass(self, step: Step | Ending) -> bool:
        """Return whether the step is a wait that is still too short to report."""
        if not isinstance(step, Wait):
            self._waits_since = None
            return False
        now_ms = self._now_ms()
        if self._waits_since is None:
            self._waits_since = now_ms
        return now_ms - self._waits_since < PATIENCE_MS.get(step.reason, 0)
