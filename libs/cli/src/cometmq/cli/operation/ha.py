# SPDX-License-Identifier: Apache-2.0
"""`cometmq ha`: inspect and control a broker group with failover.

The commands read the same record and query the same members as an elector; they work whether or not
an elector is running.
"""

import uuid
from typing import Annotated, Final

import msgspec

from cometmq.cli.access import ACCESS
from cometmq.cli.connecting import DryRunOption, Yes, confirm, end_dry_run
from cometmq.cli.lazy import App
from cometmq.cli.operation import ha_status
from cometmq.cli.operation.ha_status import GroupOptions, check_member, opened, report_of
from cometmq.cli.option_sets import arg, opt
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
from cometmq.cli.say import say
from cometmq.elector.open_group import GroupFailed, OpenGroup
from cometmq.elector.switchover import carry_out, plan_switchover, until_open
from cometmq.ha import missing_record
from cometmq.ha.actions import Create, Tell, Wait
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import Fence, Rebuild
from cometmq.ha.port import Answer, Outcome
from cometmq.ha.record import Record
from cometmq.ha.role import Role

FENCE_WAIT_S: Final = 10
RESTORE_ROUNDS_MAX: Final = 5

app = App("Show and control a broker group with failover.")

Broker = Annotated[int, arg("The broker's id in the group.", min=0)]


# ---- status ----------------------------------------------------------------------------------


@app.command()
async def status(options: GroupOptions, *, as_json: AsJson = False) -> None:
    """Show the master, epoch and members; exit status 1 if the group is incomplete.

    A group is complete if its master is open, every broker answers and is in sync, and electors
    look after every broker.

    \b
    EXAMPLE
      cometmq ha status -c elector.conf
    """

    async with opened(options) as open_group:
        found = await open_group.read()
        await open_group.ask()
        now = None if found is None else found.record
        facts = ha_status.facts(open_group, now)
        rows = [ha_status.row(open_group, now, ordinal) for ordinal in open_group.clients]
        if as_json:
            objects = [
                {**row, **ha_status.details(open_group.reports.get(ordinal))}
                for ordinal, row in zip(
                    open_group.clients, as_objects(ha_status.COLUMNS, rows), strict=True
                )
            ]
            print_json({**facts, "members": objects})
        else:
            print_facts(facts, as_json=False)
            say()
            print_rows(ha_status.COLUMNS, rows, as_json=False)
        ha_status.note_faults(open_group, now)


# ---- switchover ------------------------------------------------------------------------------


@app.command()
async def switchover(
    options: GroupOptions,
    *,
    to: Annotated[
        int | None, opt("Id of the next master; by default the slave with the least lag.", min=0)
    ] = None,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Make another broker the master without failing any sends, and wait until it is open.

    \b
    EXAMPLE
      cometmq ha switchover -c elector.conf --to 2
    """

    async with opened(options) as group:
        if to is not None:
            check_member(group, to)
        plan = await plan_switchover(group, to)
        end_dry_run(
            f"make broker {plan.order.successor} the master of group {group.name}",
            [group.name],
            {
                "master": plan.master,
                "in_sync": plan.in_sync,
                "behind": plan.lag_bytes,
                "sends": "wait until it is open; none fails",
            },
        )
        after, took_ms = await carry_out(group, plan)
        print_facts(
            {
                "group": after.group,
                "master": after.holder.ordinal,
                "epoch": after.epoch,
                "took_ms": took_ms,
            },
            as_json=as_json,
        )


# ---- fence -----------------------------------------------------------------------------------


@app.command()
async def fence(  # one parameter per option
    broker: Broker,
    options: GroupOptions,
    *,
    wait: Annotated[
        int, opt("Seconds to wait for the next master; 0 does not wait.", min=0)
    ] = FENCE_WAIT_S,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Stop a master at once, even if sends fail; an elector then elects another in-sync broker.

    Use `switchover` unless the master is doing harm. The same broker is elected again only if no
    other in-sync broker answers.

    \b
    EXAMPLE
      cometmq ha fence 0 -c elector.conf
    """

    async with opened(options) as open_group:
        report = await report_of(open_group, broker)
        if not report.status.role.is_live:
            raise GroupFailed(f"broker {broker} is {report.status.role}, not the master")
        found = await open_group.read()
        name = open_group.name
        await confirm(
            f"Stop the master of group {name}, broker {broker}? Sends fail until the next is open.",
            is_confirmed=yes,
        )
        end_dry_run(f"stop broker {broker}, the master of group {name}", [name])
        known = 0 if found is None else found.record.epoch
        epoch = max(known, report.status.promised, report.status.epoch) + 1
        try:
            after = await open_group.clients[broker].order(Fence(epoch))
        except OrderRefused as error:
            raise GroupFailed(f"broker {broker} refused: {error}") from error
        facts: dict[str, Cell] = {
            "broker": broker,
            "role": str(after.status.role),
            "promised": after.status.promised,
        }
        if wait:
            following = await until_open(open_group, known, timeout_s=wait)
            facts["master"] = None if following is None else following.holder.ordinal
            _note_next(name, broker, facts["master"], wait)
        print_facts(facts, as_json=as_json)


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
async def rebuild(
    broker: Broker,
    options: GroupOptions,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Make a slave discard its store; it stops and copies everything at its next start.

    The old files move to the folder discarded-TIME in its store; delete that folder once you no
    longer need its contents.

    \b
    EXAMPLE
      cometmq ha rebuild 1 -c elector.conf
    """

    async with opened(options) as open_group:
        report = await report_of(open_group, broker)
        found = await open_group.found()
        now = found.record
        if broker == now.holder.ordinal or report.status.role.is_live:
            raise GroupFailed(
                f"broker {broker} is the master: hand over first, with cometmq ha switchover"
            )
        await open_group.ask()
        if not open_group.has_master(now):
            raise GroupFailed(
                f"no broker of group {now.group} is open as the master, so there is nothing to copy"
                " from: see cometmq ha status"
            )
        is_member = now.member(broker) is not None
        others = len(now.in_sync) - is_member
        if is_member and others < open_group.plan.group.min_in_sync:
            raise GroupFailed(
                f"without broker {broker}, {others} copies are in sync, and minInSync is"
                f" {open_group.plan.group.min_in_sync}: have another broker catch up first"
            )
        pause_text = " It is in sync, so sends wait until the master has dropped it." * is_member
        await confirm(
            f"Discard the store of broker {broker} of group {now.group}?{pause_text}",
            is_confirmed=yes,
        )
        end_dry_run(f"discard the store of broker {broker} of group {now.group}", [now.group])
        try:
            after = await open_group.clients[broker].order(Rebuild())
        except OrderRefused as error:
            raise GroupFailed(f"broker {broker} refused: {error}") from error
        print_facts({"broker": broker, "role": str(after.status.role)}, as_json=as_json)
        print_notes([f"broker {broker} stops now: start it again, unless a supervisor does"])


# ---- restore ---------------------------------------------------------------------------------


@app.command()
async def restore(
    options: GroupOptions,
    *,
    accept_loss: Annotated[
        bool,
        opt(
            "--accept-loss",
            "Choose the most complete store even if messages may be missing from it.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Create the record of a group that has none, as an elector would.

    An elector does this on its own unless acknowledged messages might be lost; in that case you
    have to decide, with --accept-loss. All brokers in --members have to answer, so leave out
    brokers that will never return.

    \b
    EXAMPLE
      cometmq ha restore -c elector.conf --accept-loss
    """

    async with opened(options) as open_group:
        if await open_group.read() is not None:
            raise GroupFailed(
                f"group {open_group.name} has a record in {open_group.place}: there is"
                " nothing to restore; see cometmq ha status"
            )
        name = open_group.name
        risk = " Messages that only other stores had are lost for good." if accept_loss else ""
        await confirm(
            f"Stop all brokers of group {name} and choose its most complete store?{risk}",
            is_confirmed=yes,
        )
        if ACCESS.get().is_dry_run:
            await _foresee(open_group, accept_loss=accept_loss)
        made = await _created(open_group, accept_loss=accept_loss)
        print_facts(
            {"group": name, "master": made.holder.ordinal, "epoch": made.epoch}, as_json=as_json
        )


async def _foresee(open_group: OpenGroup, *, accept_loss: bool) -> None:
    """End a dry run with the store that would be chosen, or with the reason why none is."""
    await open_group.ask()
    _check_no_record(open_group)
    # The members as they are after the fence orders; with epoch 0, any promise will do.
    fenced = tuple(
        msgspec.structs.replace(it, role=Role.FENCED) if it.role.has_store else it
        for it in open_group.statuses
    )
    actions = missing_record.restore(open_group.plan.whole, fenced, 0, "", accept_loss=accept_loss)
    for action in actions:
        if isinstance(action, Wait):
            raise GroupFailed(ha_status.wait_text(action))
        if isinstance(action, Create):
            chosen = action.record.holder.ordinal
            name = open_group.name
            end_dry_run(f"make broker {chosen} the master of group {name}, and stop all", [name])


def _check_no_record(open_group: OpenGroup) -> None:
    if any(report.record_uid for report in open_group.reports.values()):
        raise GroupFailed(
            "brokers read a record where this command finds none: give --record as in their"
            " settings"
        )


async def _created(open_group: OpenGroup, *, accept_loss: bool) -> Record:
    """Fence all members, then create the record."""
    fence_epoch = 0
    for _ in range(RESTORE_ROUNDS_MAX):
        await open_group.ask()
        _check_no_record(open_group)
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
                raise GroupFailed(ha_status.wait_text(action))
            if isinstance(action, Create):
                outcome = await open_group.record.create(action.record)
                if outcome.answer is Answer.APPLIED:
                    return action.record
                raise GroupFailed(_why_not_created(outcome))
            if isinstance(action, Tell):
                try:
                    await open_group.clients[action.ordinal].order(action.order)
                except OrderRefused:
                    fence_epoch = 0  # it has promised a later epoch: choose again
    raise GroupFailed("other programs fence the members meanwhile: see cometmq ha status")


def _why_not_created(outcome: Outcome) -> str:
    if outcome.answer is Answer.CONFLICT:
        return (
            "the record was not created, because another program was first: see cometmq ha status"
        )
    # The backend may have refused the write, or may still carry it out.
    reason = outcome.reason or "the write was not answered"
    return f"the creation of the record was not confirmed: {reason}; see cometmq ha status"
