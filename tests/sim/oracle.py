# SPDX-License-Identifier: Apache-2.0
"""Records the promises made to clients, and checks that every promise is kept.

The checks run whenever a promise could be broken: when an answer is sent, a master opens, or a
confirm offset advances. They need no clock. Every check uses facts that were collected outside the
brokers.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from cometmq.ha.member import Duty, Lead
from cometmq.ha.record import Versioned
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.store.results import PutResult, PutStatus

if TYPE_CHECKING:
    from tests.sim.host import BrokerProcess
    from tests.sim.world import World


class Oracle:
    """The facts of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.confirmed = bytearray()
        """The longest prefix of the log that a master has confirmed."""
        self.acknowledged: dict[int, bytes] = {}
        """Body of each acknowledged message by physical offset."""
        self.changes: set[str] = set()
        """Names of the table changes that a broker has answered."""
        self.opened_epochs: dict[int, str] = {}
        self._shown: dict[int, int] = {}  # epoch -> end that its master has shown
        self._seen: dict[str, int] = {}  # incarnation -> end that its readers have seen
        self._checked: dict[str, int] = {}  # incarnation -> compared bytes of its log
        self._copied: dict[str, int] = {}  # incarnation -> end that enough copies have
        self._locked_epoch = 0
        self.read_count = 0

    def watch(self, process: "BrokerProcess") -> None:
        """Check the actions of a broker from its start."""
        roles: Any = process.copies.roles
        roles.perform = partial(self._perform, process, roles.perform)
        new_leading = roles.new_leading

        def watched(view: Any) -> Any:
            leading = new_leading(view)
            leading.confirmed = partial(self._confirm, process, leading.confirmed)
            leading.acknowledged = partial(self._acknowledge, process, leading.acknowledged)
            return leading

        roles.new_leading = watched

    # Events

    async def _perform(self, process: "BrokerProcess", perform: Any, action: Duty) -> None:
        if isinstance(action, Lead):
            self._lead(process, action.found)
        await perform(action)

    def _lead(self, process: "BrokerProcess", found: Versioned) -> None:
        epoch = found.record.epoch
        name = str(process.member.me.incarnation)
        self._world.note(process.name, "opens", epoch=epoch, end=process.end_offset)
        if self.opened_epochs.setdefault(epoch, name) != name:
            self._world.violated(
                f"epoch {epoch} is opened by {name} and {self.opened_epochs[epoch]}"
            )
        self._checked[name] = 0
        # The master of an older epoch has been replaced, and can confirm nothing.
        if epoch == max(self.opened_epochs):
            self._check_has(process, f"opens epoch {epoch}")
            self._checked[name] = len(self.confirmed)

    def _confirm(self, process: "BrokerProcess", confirm: Any, offset: int) -> None:
        known = len(self.confirmed)
        name = str(process.member.me.incarnation)
        checked = self._checked.get(name, 0)
        if offset > checked:
            self._checked[name] = offset
            data = process.log_bytes(checked, offset)
            common = min(offset, known)
            if checked < common and data[: common - checked] != self.confirmed[checked:common]:
                self._world.violated(
                    f"{process.name} confirms {offset} in epoch {process.member.epoch}, but its log"
                    f" differs below from what was confirmed before"
                )
            if offset > known:
                self.confirmed += data[known - checked :]
                for other in self._later_masters(process):
                    self._check_has(other, f"is master while {process.name} confirms {offset}")
        confirm(offset)

    def _acknowledge(self, process: "BrokerProcess", acknowledge: Any, offset: int) -> None:
        """Check the size of the in-sync set at the moment when all its copies have a message.

        The answer may follow later, after the master's own sync; the set may have shrunk by then,
        but the copies have the message.
        """
        record = self._world.place.current
        least = process.host.settings.min_in_sync
        is_current = record is not None and record.record.epoch == process.broker.role.state.epoch
        if is_current and record is not None and len(record.record.in_sync) < least:
            self._world.violated(
                f"{process.name} acknowledges while the set has fewer than {least}"
            )
        name = str(process.member.me.incarnation)
        self._copied[name] = max(offset, self._copied.get(name, 0))
        acknowledge(offset)

    def answered(self, process: "BrokerProcess", call: Call[str], result: Any) -> None:
        """Check an answer that is being sent to a client."""
        match call.code:
            case Code.SEND_MESSAGE:
                self._sent(process, call.body, result)
            case Code.UPDATE_AND_CREATE_TOPIC:
                self.changes.add(call.header)
                for other in self._later_masters(process):
                    self._check_has(other, f"is master while {process.name} answers {call.header}")
            case Code.LOCK_BATCH_MQ:
                self._lock(process)
            case Code.GET_MAX_OFFSET:
                self._show(process, *result)

    def _sent(self, process: "BrokerProcess", body: bytes, result: PutResult) -> None:
        if result.status is not PutStatus.PUT_OK:
            return
        offset = result.physical_offset
        end = offset + result.size
        if end > len(self.confirmed) or body not in self.confirmed[offset:end]:
            self._world.violated(
                f"{process.name} acknowledges {body!r} at {offset}, confirmed is"
                f" {len(self.confirmed)}: {bytes(self.confirmed[offset:end])!r}"
            )
        if end > self._copied.get(str(process.member.me.incarnation), 0):
            self._world.violated(
                f"{process.name} acknowledges {body!r} at {offset} before the copies have it"
            )
        self.acknowledged[offset] = body

    def _lock(self, process: "BrokerProcess") -> None:
        epoch = process.broker.role.state.epoch
        if epoch < self._locked_epoch:
            self._world.violated(
                f"{process.name} answers a lock in epoch {epoch}; epoch {self._locked_epoch} did"
            )
        self._locked_epoch = epoch

    def read(self, process: "BrokerProcess") -> tuple[int, int]:
        """Return the end of the queues, and the highest end that this broker has shown before."""
        shown = self._seen.get(process.member.me.incarnation, 0)
        return process.store.commit_log.confirm_offset, shown

    def _show(self, process: "BrokerProcess", end: int, before: int) -> None:
        """Check an answer to a read; answers to later reads may have been sent before it."""
        self.read_count += 1
        if end > len(self.confirmed):
            self._world.violated(f"{process.name} shows {end}, confirmed is {len(self.confirmed)}")
        name = process.member.me.incarnation
        if end < before:
            self._world.violated(f"{process.name} shows {end} after {before}")
        self._seen[name] = max(end, self._seen.get(name, 0))
        if not process.is_master:
            return
        epoch = process.member.epoch
        for earlier, shown in self._shown.items():
            if earlier < epoch and shown > end:
                self._world.violated(
                    f"{process.name} shows {end} in epoch {epoch}; epoch {earlier} showed {shown}"
                )
        self._shown[epoch] = max(end, self._shown.get(epoch, 0))

    def look(self, process: "BrokerProcess") -> None:
        """Read from a broker as a consumer does, if the broker serves reads now."""
        if process.gate.permission.may_read() and process.life >= 0:
            process.copies.roles.before_write()
            if process.gate.permission.may_read():
                self._show(process, *self.read(process))

    # Checks

    def _later_masters(self, process: "BrokerProcess") -> list["BrokerProcess"]:
        epoch = process.broker.role.state.epoch
        found = []
        for host in self._world.hosts.values():
            other = host.process
            if other is None or other is process or other.copies.roles.leading is None:
                continue
            if other.broker.role.state.epoch > epoch:
                found.append(other)
        return found

    def _check_has(self, process: "BrokerProcess", when: str) -> None:
        """Check that a master has everything that was confirmed and answered."""
        size = len(self.confirmed)
        data = process.log_bytes(0, min(size, process.end_offset))
        if data != self.confirmed:
            pairs = enumerate(zip(data, self.confirmed, strict=False))
            at = next((number for number, (one, two) in pairs if one != two), len(data))
            self._world.violated(
                f"{process.name} {when}, but its log, which ends at {process.end_offset}, lacks"
                f" bytes from {at} that were confirmed up to {size}"
            )
        missing = self.changes - process.broker.topics.values.keys()
        if missing:
            self._world.violated(
                f"{process.name} {when} without the answered changes {sorted(missing)}"
            )
