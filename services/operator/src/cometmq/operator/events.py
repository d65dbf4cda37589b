# SPDX-License-Identifier: Apache-2.0
"""Events on a BrokerGroup: one per change, understandable without the log."""

from collections.abc import Callable
from typing import Final

from cometmq.operator.api import ApiRefused, ApiUnreachable, KubeApi
from cometmq.operator.crd import API_VERSION
from cometmq.operator.decide import Nothing, Wait, has_master
from cometmq.operator.group import BrokerGroup
from cometmq.operator.models import KIND
from cometmq.operator.status import Findings, said
from cometmq.remoting.log import Log

COMPONENT: Final = "cometmq-operator"


class Reporter:
    """Writes an Event and a log line when the state of a group changes."""

    def __init__(self, api: KubeApi, *, wall_time: Callable[[], str], log: Log) -> None:
        self.log = log
        self._api = api
        self._wall_time = wall_time
        self._epoch: int | None = None
        self._step: tuple[str, str] | None = None

    async def note(self, group: BrokerGroup, found: Findings) -> None:
        """Compare a pass with the one before; the first after a start reports no change."""
        record = found.seen.record
        if record is not None and has_master(found.seen) and record.epoch != self._epoch:
            is_first, self._epoch = self._epoch is None, record.epoch
            if not is_first or record.epoch == 1:
                text = f"{group.pod(record.holder.ordinal)} is the master of epoch {record.epoch}"
                await self.report(group, "MasterChanged", text)
        step = said(group, found.step)
        if step != self._step:
            before, self._step = self._step, step
            is_warning = isinstance(found.step, Wait)
            if not isinstance(found.step, Nothing):
                await self.report(group, *step, is_warning=is_warning)
            elif before is not None:
                await self.report(group, "ChangeDone", "no change is under way any more")
        if operation := found.last_operation:
            text = f"{operation.verb} {operation.value}: {operation.message or 'started'}"
            is_warning = operation.result == "Refused"
            await self.report(group, f"Operation{operation.result}", text, is_warning=is_warning)

    async def report(
        self, group: BrokerGroup, reason: str, text: str, *, is_warning: bool = False
    ) -> None:
        """Write one Event; a failure is only logged, as nothing depends on Events."""
        self.log.info("group.changed", group=group.name, reason=reason, text=text)
        now = self._wall_time()
        body = {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"generateName": f"{group.name}.", "namespace": group.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION, "kind": KIND, "name": group.name,
                "namespace": group.namespace, "uid": group.uid,
            },
            "type": "Warning" if is_warning else "Normal",
            "reason": reason, "message": text[:1024],
            "source": {"component": COMPONENT},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        try:
            await self._api.create("Event", group.namespace, body)
        except (ApiRefused, ApiUnreachable) as error:
            self.log.warning("event.lost", group=group.name, error=str(error))
