# SPDX-License-Identifier: Apache-2.0
"""`cometmq ha`: inspect and control a broker group with failover.

The commands read the same record and query the same members as an elector; they work whether or not
an elector is running.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import Yes, confirm, run
from cometmq.cli.ha_group import GroupOptions, HaFailed, OpenGroup, opened
from cometmq.cli.option_sets import with_option_sets
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import (
    AsJson,
    Cell,
    as_objects,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.control.member import Report
from cometmq.ha import missing_record, planned
from cometmq.ha.actions import LIVE_ROLES, Create, Fence, HandOver, Wait
from cometmq.ha.member import OrderRefused, Role
from cometmq.ha.port import Answer
from cometmq.ha.record import Record

COLUMNS: Final = ("Broker", "Role", "Epoch", "In sync", "Behind", "Address", "State")
SWITCHOVER_TIMEOUT_MS: Final = 30_000
FENCE_WAIT_S: Final = 10
RESTORE_ROUNDS_MAX: Final = 5
LOOK_MS: Final = 100
UNKNOWN: Final = "unknown"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show a broker group with failover, and give its members orders.",
)

Broker = Annotated[int, typer.Argument(min=0, help="The broker's id in the group.")]


# ---- status ----------------------------------------------------------------------------------


@app.command()
@with_option_sets
def status(
    options: GroupOptions,
    *,
    as_json: AsJson = False,
) -> None:
    """Show master, epoch and members; exit status 1 if the group is not complete.

    It is complete if its master is open, and every broker answers and is in sync. Electors leave
    no trace in the group, so this command cannot tell whether one runs: ask /readyz of each.
    """

    async def show(open_group: OpenGroup) -> None:
        found = await open_group.read()
        await open_group.ask()
        now = None if found is None else found.record
        facts = _facts(open_group, now)
        rows = [_row(open_group, now, ordinal) for ordinal in open_group.clients]
        if as_json:
            objects = [
                {**row, **_details(open_group.reports.get(ordinal))}
                for ordinal, row in zip(open_group.clients, as_objects(COLUMNS, rows), strict=True)
            ]
            print_json({**facts, "members": objects})
        else:
            print_facts(facts, as_json=False)
            typer.echo()
            print_rows(COLUMNS, rows, as_json=False)
        _note_faults(open_group, now)

    _run(options, show)


def _facts(open_group: OpenGroup, record: Record | None) -> dict[str, Cell]:
    facts: dict[str, Cell] = {"group": open_group.plan.group.name, "record": open_group.place}
    if record is None:
        return {**facts, "master": None, "elector": UNKNOWN}
    return {
        **facts,
        "epoch": record.epoch,
        "master": record.holder.ordinal,
        "in_sync": " ".join(str(copy.ordinal) for copy in record.in_sync),
        "copies": record.copies,
        "policy": str(record.policy),
        "elector": UNKNOWN,
    }


def _row(open_group: OpenGroup, record: Record | None, ordinal: int) -> list[Cell]:
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
    """Return whether a member hears from an open master; otherwise its last known lag is
    outdated.
    """
    now = report.status
    return (
        now.role is Role.SLAVE
        and not now.has_lost_master
        and record is not None
        and now.epoch == record.epoch
        and _has_master(open_group, record)
    )


def _state(report: Report, record: Record | None) -> str:
    """Return the state of a member in one or two words; `_note_faults` explains it."""
    now = report.status
    if report.fault:
        return "fault"
    if now.role in (Role.RECOVERING, Role.FAILED, Role.FENCED):
        return str(now.role)
    if now.has_lost_master:
        return "lost its master"
    if record is not None and now.epoch != record.epoch:
        return "other epoch"
    if record is not None and now.copy not in record.in_sync:
        return "catching up" if record.member(now.copy.ordinal) is None else "other store"
    return "ok"


def _details(report: Report | None) -> dict[str, Cell]:
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


def _note_faults(open_group: OpenGroup, record: Record | None) -> None:
    """Report each fault with its remedy; any fault makes the exit status 1."""
    name = open_group.plan.group.name
    if record is None:
        MISSING[name] = _why_without_record(open_group)
    elif not _has_master(open_group, record):
        is_silent = record.holder.ordinal in open_group.faults
        state = "does not answer this command" if is_silent else "is not open"
        MISSING[name] = (
            f"group {name}: broker {record.holder.ordinal} is the master of epoch {record.epoch},"
            f" but {state}; an elector replaces a lost one within seconds if a broker in sync"
            " answers: if this lasts, start one (cometmq elector), or see the event group.blocked"
            " in its log"
        )
    if record is not None:
        _note_unnamed(open_group, record)
    for ordinal, fault in open_group.faults.items():
        MISSING[f"{name}/{ordinal}"] = f"{fault}; start it, or look at its log"
    for ordinal, report in open_group.reports.items():
        if report.fault:
            MISSING[f"{name}/{ordinal}"] = f"broker {ordinal}: {report.fault}"
        elif record is not None and report.status.copy not in record.in_sync:
            MISSING[f"{name}/{ordinal}"] = (
                f"broker {ordinal} is not in sync: wait until it has caught up; if it does not,"
                " look at its log"
            )


def _note_unnamed(open_group: OpenGroup, record: Record) -> None:
    """Report the brokers that belong to the group but were not asked."""
    name = open_group.plan.group.name
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
    """Return why an elector does not create the record, by the rules that electors follow."""
    name = open_group.plan.group.name
    readers = [number for number, report in open_group.reports.items() if report.record_uid]
    if readers:
        return (
            f"group {name} has no record in {open_group.place}, but brokers {readers} read one:"
            " give --record as in their settings"
        )
    statuses = open_group.statuses
    # Epoch 0: a member counts as fenced whatever it promised, because electors choose the epoch.
    for action in missing_record.restore(open_group.plan.whole, statuses, 0, ""):
        if isinstance(action, Wait):
            return f"group {name}: no elector can elect a master ({action.reason}): {action.text}"
    return (
        f"group {name} has no record yet: start an elector (cometmq elector); if one runs, see the"
        " event group.blocked in its log"
    )


def _has_master(open_group: OpenGroup, record: Record) -> bool:
    report = open_group.reports.get(record.holder.ordinal)
    return report is not None and (report.status.role, report.status.epoch) in (
        (Role.MASTER, record.epoch),
        (Role.PARKING, record.epoch),
    )


# ---- switchover ------------------------------------------------------------------------------


@app.command()
@with_option_sets
def switchover(
    options: GroupOptions,
    *,
    to: Annotated[
        int | None,
        typer.Option(min=0, help="Id of the next master; default: the slave that lags least."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make another broker the master without failing a send, and wait until it is open."""

    async def switch(open_group: OpenGroup) -> None:
        found = await open_group.found()
        if to is not None:
            await open_group.report_of(to)
        await open_group.ask()
        if to == found.record.holder.ordinal:
            raise HaFailed(f"broker {to} is the master already")
        order = planned.switch_over(found.record, open_group.statuses, to)
        if isinstance(order, Wait):
            raise HaFailed(f"{order.text}; see cometmq ha status")
        started = time.monotonic()
        await _hand_over(open_group, order)
        after = await _until_open(
            open_group, found.record.epoch, timeout_s=SWITCHOVER_TIMEOUT_MS / 1000
        )
        if after is None:
            raise HaFailed(
                f"the next master was not open after {SWITCHOVER_TIMEOUT_MS} ms: see cometmq ha"
                " status and the brokers' logs"
            )
        print_facts(
            {
                "group": after.group,
                "master": after.holder.ordinal,
                "epoch": after.epoch,
                "took_ms": round((time.monotonic() - started) * 1000),
            },
            as_json=as_json,
        )

    _run(options, switch)


async def _hand_over(open_group: OpenGroup, order: HandOver) -> None:
    try:
        await open_group.clients[order.master].hand_over(order.target, leaves=False)
    except OrderRefused as error:
        raise HaFailed(f"broker {order.master} did not hand over: {error}") from error


async def _until_open(open_group: OpenGroup, epoch: int, timeout_s: float) -> Record | None:
    """Wait for a later epoch whose master is open; return None after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = await open_group.read()
        if found is not None and found.record.epoch > epoch:
            await open_group.ask()
            if _has_master(open_group, found.record):
                return found.record
        await asyncio.sleep(LOOK_MS / 1000)
    return None


# ---- fence -----------------------------------------------------------------------------------


@app.command()
@with_option_sets
def fence(  # one parameter per option
    broker: Broker,
    options: GroupOptions,
    *,
    wait: Annotated[
        int, typer.Option(min=0, help="Seconds to wait for the next master; 0 does not wait.")
    ] = FENCE_WAIT_S,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop a master at once, although sends fail; an elector then elects another broker in sync.

    Use `switchover` unless the master does harm. The election chooses the same broker again only if
    no other in sync answers.
    """

    async def stop_master(open_group: OpenGroup) -> None:
        report = await open_group.report_of(broker)
        if report.status.role not in LIVE_ROLES:
            raise HaFailed(f"broker {broker} is {report.status.role}, not the master")
        found = await open_group.read()
        name = open_group.plan.group.name
        await confirm(
            f"Stop the master of group {name}, broker {broker}? Sends fail until the next is open.",
            is_confirmed=yes,
        )
        known = 0 if found is None else found.record.epoch
        epoch = max(known, report.status.promised, report.status.epoch) + 1
        try:
            after = await open_group.clients[broker].fence(epoch)
        except OrderRefused as error:
            raise HaFailed(f"broker {broker} refused: {error}") from error
        facts: dict[str, Cell] = {
            "broker": broker,
            "role": str(after.status.role),
            "promised": after.status.promised,
        }
        if wait:
            following = await _until_open(open_group, known, timeout_s=wait)
            facts["master"] = None if following is None else following.holder.ordinal
            _note_next(name, broker, facts["master"], wait)
        print_facts(facts, as_json=as_json)

    _run(options, stop_master)


def _note_next(name: str, fenced: int, master: Cell, waited_s: int) -> None:
    """Record a fault if no other broker became the master after a fence; the exit status is then
    1.
    """
    if master is None:
        MISSING[name] = (
            f"group {name}: no broker was open as the master after {waited_s} s: see cometmq ha"
            " status; an elector has to run"
        )
    elif master == fenced:
        MISSING[name] = (
            f"group {name}: broker {fenced} was elected again, because no other broker in sync"
            " answered: have another catch up, or stop the process of this one"
        )


# ---- rebuild ---------------------------------------------------------------------------------


@app.command()
@with_option_sets
def rebuild(
    broker: Broker,
    options: GroupOptions,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a slave discard its store; it stops, and copies everything at its next start.

    The old files move into the folder discarded-TIME of its store; delete it when nothing in it is
    needed.
    """

    async def discard(open_group: OpenGroup) -> None:
        report = await open_group.report_of(broker)
        found = await open_group.found()
        now = found.record
        if broker == now.holder.ordinal or report.status.role in LIVE_ROLES:
            raise HaFailed(
                f"broker {broker} is the master: hand over first, with cometmq ha switchover"
            )
        await open_group.ask()
        if not _has_master(open_group, now):
            raise HaFailed(
                f"no broker of group {now.group} is open as the master, so there is nothing to copy"
                " from: see cometmq ha status"
            )
        is_member = now.member(broker) is not None
        others = len(now.in_sync) - is_member
        if is_member and others < open_group.plan.group.min_in_sync:
            raise HaFailed(
                f"without broker {broker}, {others} copies are in sync, and minInSync is"
                f" {open_group.plan.group.min_in_sync}: have another broker catch up first"
            )
        pause_text = " It is in sync, so sends wait until the master has dropped it." * is_member
        await confirm(
            f"Discard the store of broker {broker} of group {now.group}?{pause_text}",
            is_confirmed=yes,
        )
        try:
            after = await open_group.clients[broker].rebuild()
        except OrderRefused as error:
            raise HaFailed(f"broker {broker} refused: {error}") from error
        print_facts({"broker": broker, "role": str(after.status.role)}, as_json=as_json)
        print_notes([f"broker {broker} stops now: start it again, unless a supervisor does"])

    _run(options, discard)


# ---- restore ---------------------------------------------------------------------------------


@app.command()
@with_option_sets
def restore(
    options: GroupOptions,
    *,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Choose the most complete store even if messages may be missing in it.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create the record of a group that has none, as an elector does.

    An elector does this by itself unless acknowledged messages may be lost: then a person has to
    decide, with --accept-loss. All brokers of --members have to answer, so leave out brokers that
    will never return.
    """

    async def create(open_group: OpenGroup) -> None:
        if await open_group.read() is not None:
            raise HaFailed(
                f"group {open_group.plan.group.name} has a record in {open_group.place}: there is"
                " nothing to restore; see cometmq ha status"
            )
        name = open_group.plan.group.name
        risk = " Messages that only other stores had are lost for good." if accept_loss else ""
        await confirm(
            f"Stop all brokers of group {name} and choose its most complete store?{risk}",
            is_confirmed=yes,
        )
        made = await _created(open_group, accept_loss=accept_loss)
        print_facts(
            {"group": name, "master": made.holder.ordinal, "epoch": made.epoch}, as_json=as_json
        )

    _run(options, create)


async def _created(open_group: OpenGroup, *, accept_loss: bool) -> Record:
    """Fence all members, then create the record."""
    fence_epoch = 0
    for _ in range(RESTORE_ROUNDS_MAX):
        await open_group.ask()
        if any(report.record_uid for report in open_group.reports.values()):
            raise HaFailed(
                "brokers read a record where this command finds none: give --record as in their"
                " settings"
            )
        fence_epoch = fence_epoch or missing_record.restore_epoch(open_group.statuses)
        actions = missing_record.restore(
            open_group.plan.whole,
            open_group.statuses,
            fence_epoch,
            uuid.uuid4().hex,
            accept_loss=accept_loss,
        )
        for action in actions:
            if isinstance(action, Wait):
                raise HaFailed(action.text)
            if isinstance(action, Create):
                outcome = await open_group.record.create(action.record)
                if outcome.answer is Answer.APPLIED:
                    return action.record
                raise HaFailed(
                    f"the record was not created ({outcome.answer.value}): see cometmq ha status"
                )
            if isinstance(action, Fence):
                try:
                    await open_group.clients[action.ordinal].fence(action.epoch)
                except OrderRefused:
                    fence_epoch = 0  # it has promised a later epoch: choose again
    raise HaFailed("other programs fence the members meanwhile: see cometmq ha status")


def _run(options: GroupOptions, command: Callable[[OpenGroup], Awaitable[None]]) -> None:
    async def with_group() -> None:
        async with opened(options) as open_group:
            await command(open_group)

    run(with_group())
