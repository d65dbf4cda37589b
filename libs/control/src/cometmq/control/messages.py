# SPDX-License-Identifier: Apache-2.0
"""Converts reports to protobuf messages and back."""

from cometmq.control.controlled import Report, Target
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.actions import Status
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.remoting.errors import RemoteProtocolError


def _to_copy(copy: Copy) -> pb.Copy:
    return pb.Copy(ordinal=copy.ordinal, incarnation=copy.incarnation)


def _from_copy(message: pb.Copy) -> Copy:
    return Copy(message.ordinal, message.incarnation)


def to_target(target: Target) -> pb.Target:
    """Return the message that names a member."""
    return pb.Target(group=target.group, ordinal=target.ordinal)


def to_message(report: Report) -> pb.MemberStatus:
    """Return a report as a message."""
    status = report.status
    return pb.MemberStatus(
        group=report.group,
        copy=_to_copy(status.copy),
        role=status.role,
        promised=status.promised,
        epoch=status.epoch,
        last_log_epoch=status.last_log_epoch,
        max_offset=status.max_offset,
        tables_epoch=status.tables_epoch,
        tables=status.tables,
        standing=status.standing,
        has_lost_master=status.has_lost_master,
        lag_bytes=status.lag_bytes,
        is_full=status.is_full,
        has_room=status.has_room,
        master=report.master,
        confirm_offset=report.confirm_offset,
        record_uid=report.record_uid,
        version=report.version,
        fault=report.fault,
        electors=report.electors,
        group_keys=report.group_keys,
        risk=report.risk,
        last_in_sync=[_to_copy(copy) for copy in status.last_in_sync],
    )


def from_message(message: pb.MemberStatus) -> Report:
    """Return the report in a message; raise RemoteProtocolError for values from a later version."""
    try:
        role, standing = Role(message.role), Standing(message.standing)
    except ValueError as error:
        raise RemoteProtocolError(
            f"broker {message.copy.ordinal} reports role {message.role[:64]!r} and standing"
            f" {message.standing[:64]!r}, which this version does not know: update this program"
        ) from error
    status = Status(
        copy=_from_copy(message.copy),
        role=role,
        promised=message.promised,
        epoch=message.epoch,
        last_log_epoch=message.last_log_epoch,
        max_offset=message.max_offset,
        tables_epoch=message.tables_epoch,
        tables=message.tables,
        standing=standing,
        has_lost_master=message.has_lost_master,
        lag_bytes=message.lag_bytes,
        is_full=message.is_full,
        has_room=message.has_room,
        last_in_sync=tuple(_from_copy(copy) for copy in message.last_in_sync),
    )
    return Report(
        group=message.group,
        status=status,
        master=message.master if message.HasField("master") else None,
        confirm_offset=message.confirm_offset,
        record_uid=message.record_uid,
        version=message.version,
        fault=message.fault,
        group_keys=tuple(message.group_keys),
        electors=message.electors if message.HasField("electors") else None,
        risk=message.risk,
    )
