# SPDX-License-Identifier: Apache-2.0
"""The group that `cometmq ha` opens, and the output of `ha status`: facts, members, faults."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cometmq.cli.access import resolved_access, tls_config_name
from cometmq.cli.option_sets import OptionSet, opt
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import Cell
from cometmq.client.errors import InvalidArgument
from cometmq.control.controlled import SILENCE_MS, Report
from cometmq.elector.open_group import OpenGroup, open_group
from cometmq.elector.plan import plan_of
from cometmq.elector.settings import ElectorSettings
from cometmq.ha import missing_record
from cometmq.ha.actions import Wait
from cometmq.ha.record import Record
from cometmq.ha.role import Role
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls, client_tls_of_file


class GroupOptions(OptionSet, frozen=True, kw_only=True):
    """The options that describe a group, common to the commands of `cometmq ha`."""

    config: Annotated[
        Path | None,
        opt("-c", "--config", "The elector's settings file, which describes the group."),
    ] = None
    group: Annotated[str, opt("--group", "Name of the broker group.")] = ""
    record: Annotated[
        str, opt("--record", "Location of its record: file:/PATH or etcd:HOST:PORT/KEY.")
    ] = ""
    members: Annotated[
        str, opt("--members", "Its brokers, as 0=HOST:CONTROLPORT;1=HOST:CONTROLPORT.")
    ] = ""
    group_key_file: Annotated[
        str, opt("--group-key-file", "File with the group's key, if its brokers have groupKeyFile.")
    ] = ""

    def settings(self) -> ElectorSettings:
        """Return the elector's settings with these options; raise InvalidArgument on errors."""
        given = {
            "brokerName": self.group,
            "groupRecord": self.record,
            "controlMembers": self.members,
            "groupKeyFile": self.group_key_file,
        }
        options = {name: value for name, value in given.items() if value}
        names = {
            "brokerName": "--group", "groupRecord": "--record", "controlMembers": "--members",
            "groupKeyFile": "--group-key-file",
        }  # fmt: skip
        try:
            settings = load(
                ElectorSettings,
                prefix=PROGRAMS["elector"].prefix,
                file=self.config,
                cli=options,
                options=names,
            )
            plan_of(settings.value)
        except SettingsError as error:
            advice = (
                "; give --group, --record and --members, or the elector's settings file with -c"
            )
            hint = "" if self.config else advice
            raise SettingsError(f"{error}{hint}") from error
        return settings.value


@asynccontextmanager
async def opened(options: GroupOptions) -> AsyncIterator[OpenGroup]:
    """Open a group; connections are made as needed."""
    settings = options.settings()
    async with AsyncExitStack() as stack:
        try:
            group = await stack.enter_async_context(
                open_group(settings, _tls(settings), key_setting="--group-key-file")
            )
        except SettingsError as error:
            raise InvalidArgument(str(error)) from error
        yield group


async def report_of(group: OpenGroup, ordinal: int) -> Report:
    """Return one member's answer; raise InvalidArgument if the group has no such member."""
    check_member(group, ordinal)
    return await group.report_of(ordinal)


def check_member(group: OpenGroup, ordinal: int) -> None:
    """Raise InvalidArgument if the group has no such member."""
    if ordinal not in group.clients:
        known = ", ".join(map(str, group.clients))
        raise InvalidArgument(f"group {group.name!r} has no broker {ordinal}; it has {known}")


def _tls(settings: ElectorSettings) -> TlsSettings:
    """Return the TLS settings of the --tls-config file, or else the elector's client settings."""
    access = resolved_access()
    if access.tls_config is not None:
        return client_tls_of_file(access.tls_config, tls_config_name(access.tls_config))
    return msgspec.structs.replace(
        client_tls(settings), enable=settings.tls_client.is_on or access.is_tls
    )


COLUMNS: Final = ("Broker", "Role", "Epoch", "In sync", "Behind", "Address", "State")
UNKNOWN: Final = "unknown"
ACCEPT: Final = "cometmq ha restore --accept-loss"


def facts(open_group: OpenGroup, record: Record | None) -> dict[str, Cell]:
    """Return the facts about the whole group."""
    group = {"group": open_group.name, "record": open_group.place}
    if record is None:
        missing: dict[str, Cell] = {"epoch": None, "master": None, "in_sync": [], "copies": None}
        return {**group, **missing, **_known(open_group)}
    return {
        **group,
        "epoch": record.epoch,
        "master": record.holder.ordinal,
        "in_sync": [copy.ordinal for copy in record.in_sync],
        "copies": record.copies,
        **_known(open_group),
    }


def _known(open_group: OpenGroup) -> dict[str, Cell]:
    """Return what the members know about the group besides its record."""
    risks = [report.risk for report in open_group.reports.values() if report.risk]
    return {"elector": _electors(open_group), "risk": risks[0] if risks else None}


def _electors(open_group: OpenGroup) -> Cell:
    """Return how many electors are connected to the members, or that no member answers."""
    counts = [it.electors for it in open_group.reports.values() if it.electors is not None]
    return max(counts) if counts else UNKNOWN


def row(open_group: OpenGroup, record: Record | None, ordinal: int) -> list[Cell]:
    """Return a member's cells for the columns in `COLUMNS`."""
    address = open_group.clients[ordinal].address
    report = open_group.reports.get(ordinal)
    is_in_sync = record is not None and record.member(ordinal) is not None
    if report is None:
        return [ordinal, None, None, is_in_sync, None, address, "no answer"]
    now = report.status
    behind = now.lag_bytes if _knows_lag(open_group, record, report) else None
    return [ordinal, str(now.role), now.epoch or None, is_in_sync, behind, address,
            _state(report, record)]  # fmt: skip


def _knows_lag(open_group: OpenGroup, record: Record | None, report: Report) -> bool:
    """Return whether a member hears from an open master; if not, its last known lag is stale."""
    now = report.status
    return (
        now.role is Role.SLAVE
        and not now.has_lost_master
        and record is not None
        and now.epoch == record.epoch
        and open_group.has_master(record)
    )


def _state(report: Report, record: Record | None) -> str:
    """Return a member's state in a few words; `note_faults` explains it."""
    now = report.status
    if report.fault:
        return "fault"
    if now.role.is_out:
        return str(now.role)
    if now.has_lost_master:
        return "lost its master"
    if record is not None and now.epoch != record.epoch:
        return "other epoch"
    if record is not None and now.copy not in record.in_sync:
        return "catching up" if record.member(now.copy.ordinal) is None else "other store"
    return "ok"


def details(report: Report | None) -> dict[str, Cell]:
    """Return the facts that do not fit into the table."""
    if report is None:
        return {}
    now = report.status
    return {
        "incarnation": now.copy.incarnation,
        "promised": now.promised,
        "last_log_epoch": now.last_log_epoch,
        "max_offset": now.max_offset,
        "confirm_offset": report.confirm_offset,
        "standing": str(now.standing),
        "follows": report.master,
        "version": report.version,
        "fault": report.fault,
    }


def note_faults(open_group: OpenGroup, record: Record | None) -> None:
    """Report each fault with its remedy; any fault makes the exit status 1."""
    name = open_group.name
    if record is None:
        MISSING[name] = _why_without_record(open_group)
    elif not open_group.has_master(record):
        MISSING[name] = _why_without_master(open_group, record)
    if record is not None:
        _note_unnamed(open_group, record)
    _note_electors(open_group)
    for ordinal, fault in open_group.faults.items():
        MISSING[f"{name}/{ordinal}"] = f"{fault}; start it, or look at its log"
    for ordinal, report in open_group.reports.items():
        if report.fault:
            MISSING[f"{name}/{ordinal}"] = f"broker {ordinal}: {report.fault}"
        elif record is not None and report.status.copy not in record.in_sync:
            MISSING[f"{name}/{ordinal}"] = (
                f"broker {ordinal} is not in sync: wait until it has caught up; if it does not,"
                " look at its log"
                if open_group.has_master(record)
                else f"broker {ordinal} is not in sync, and cannot catch up until a master is open"
            )


def _note_electors(open_group: OpenGroup) -> None:
    """Report the members to which no elector is connected."""
    name, reports = open_group.name, open_group.reports
    alone = sorted(one for one, report in reports.items() if report.electors == 0)
    if not alone:
        return
    if any(report.electors for report in reports.values()):
        MISSING[f"{name}/elector"] = (
            f"group {name}: no elector reaches brokers {alone}: compare controlMembers in its"
            " settings with their addresses, and look at its log"
        )
        return
    MISSING[f"{name}/elector"] = (
        f"group {name}: no elector has asked brokers {alone} for {SILENCE_MS // 1000} s, so nobody"
        " replaces a lost master: start one (cometmq elector), or look at its /readyz and its log"
    )


def _why_without_master(open_group: OpenGroup, record: Record) -> str:
    """Return why the master named in the record is not open, and the remedy."""
    holder = record.holder.ordinal
    is_silent = holder in open_group.faults
    state = "does not answer this command" if is_silent else "is not open"
    text = (
        f"group {open_group.name}: broker {holder} is the master of epoch"
        f" {record.epoch}, but {state}"
    )
    in_sync = [copy.ordinal for copy in record.in_sync]
    if any(it not in open_group.faults for it in in_sync):
        return (
            f"{text}; an elector replaces a lost one within seconds if a broker in sync answers: if"
            " this lasts, start one (cometmq elector), or see the event group.blocked in its log"
        )
    if in_sync == [holder]:
        who, them = "no other broker is in sync", f"broker {holder}"
    else:
        who, them = "no broker in sync answers", f"one of the brokers {in_sync}"
    return (
        f"{text}, and {who}: no elector replaces it, because the others lack acknowledged messages;"
        f" start {them} again with its store. Only if these stores are lost for good: remove the"
        f" record ({open_group.place}), and run {ACCEPT} with the other brokers as --members:"
        " messages that they lack are lost"
    )


def _note_unnamed(open_group: OpenGroup, record: Record) -> None:
    """Report the brokers that belong to the group but were not queried."""
    name = open_group.name
    unnamed = [it.ordinal for it in record.in_sync if it.ordinal not in open_group.clients]
    if unnamed:
        names = " and ".join(f"broker {ordinal}" for ordinal in unnamed)
        MISSING[f"{name}/unnamed"] = (
            f"{names} of group {name} {'is' if len(unnamed) == 1 else 'are'} in sync, but not"
            " asked: add ID=HOST:CONTROLPORT of each to --members, or to controlMembers in the"
            " elector's file"
        )
    elif len(open_group.clients) < record.copies:
        MISSING[f"{name}/unnamed"] = (
            f"group {name} has {record.copies} copies, but only {len(open_group.clients)} were"
            " asked: add the others to --members, or to controlMembers in the elector's file"
        )


def _why_without_record(open_group: OpenGroup) -> str:
    """Return why electors do not create the record, according to their own rules."""
    name = open_group.name
    readers = [number for number, report in open_group.reports.items() if report.record_uid]
    if readers:
        return (
            f"group {name} has no record in {open_group.place}, but brokers {readers} read one:"
            " give --record as in their settings"
        )
    statuses = open_group.statuses
    # With epoch 0, every member counts as fenced, whatever it promised; electors choose the epoch.
    for action in missing_record.restore(open_group.plan.whole, statuses, 0, ""):
        if isinstance(action, Wait):
            text = wait_text(action)
            return f"group {name}: no elector can elect a master ({action.reason}): {text}"
    return (
        f"group {name} has no record yet: start an elector (cometmq elector); if one runs, see the"
        " event group.blocked in its log"
    )


def wait_text(wait: Wait) -> str:
    """Return why the record is not created, with the command that accepts a loss."""
    return f"{wait.text}, with {ACCEPT}" if wait.reason in missing_record.ACCEPTABLE else wait.text
