# SPDX-License-Identifier: Apache-2.0
"""The tasks of all groups."""

from collections.abc import Callable

from cometmq.ha.port import RecordPort
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.broker_groups.group_elector import Addresses, GroupElector
from cometmq.operator.broker_groups.group_pass import GroupPass
from cometmq.operator.managed import Key
from cometmq.operator.metrics import GroupFigures, OperatorFigures
from cometmq.operator.passes import Context, ObjectTasks


class Groups(ObjectTasks[GroupPass]):
    def __init__(
        self,
        context: Context,
        figures: OperatorFigures,
        *,
        record_of: Callable[[str, str], RecordPort],
        addresses: Addresses | None = None,
    ) -> None:
        """`record_of` returns the record of the group with this namespace and name."""
        super().__init__(context, figures.count)
        self._record_of = record_of
        self._addresses = addresses

    def new(self, key: Key) -> GroupPass:
        context = self.context
        record = self._record_of(*key[1:])
        elector = GroupElector(
            record, clock=context.clock, log=context.log, addresses=self._addresses
        )
        return GroupPass(key, context, elector)

    def note(self, kind: str, namespace: str, name: str, group: str, version: str) -> None:
        """Note the version of an owned object and wake its group, which repairs the object if
        another client changed it.
        """
        key = (KIND, namespace, group)
        work = self.get(key)
        if work is not None:
            work.note_version(kind, name, version)
            self.wake(key)

    def figures(self) -> list[GroupFigures]:
        return [
            GroupFigures(
                namespace=work.key[1],
                name=work.key[2],
                status=work.status,
                elector=work.elector.stats,
                operations=work.operations,
            )
            for work in self
        ]
