# SPDX-License-Identifier: Apache-2.0
"""`cometmq cluster`: every broker with its role, rates, disk usage and send path."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from cometmq.cli.admin import note_missing, note_no_master
from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask
from cometmq.cli.lazy import App
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
from cometmq.cli.verbs.write_access import ReadOnlyBroker, read_only_brokers
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient, ClusterMember
from cometmq.client.admin.figures import BrokerFigures, GroupCopies
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.insight.times import shown
from cometmq.insight.words import sized

COLUMNS: Final = (
    "Cluster", "Broker", "Id", "Member", "Role", "Address", "Version", "In per s", "Out per s",
    "Messages today", "Disk percent", "Behind bytes", "Started", "Sends", "Slow percent",
    "Slow because", "State",
)  # fmt: skip

NARROW: Final[Mapping[str, str]] = {
    "Role": "Role", "Address": "Address", "In per s": "In/s", "Out per s": "Out/s",
    "Disk percent": "Disk %", "Behind bytes": "Behind", "State": "State",
}  # fmt: skip
"""The columns that fit on 80 characters, after the broker's name and id, with their headings."""
SLOW_REASONS: Final = 3

FOLLOW_REMEDY: Final = "see its log, and the runbook slave-does-not-follow.md"
ACCOUNTS_REMEDY: Final = "correct it as accounts.unreadable in the broker's log says"
REMEDY: Final = "look at its disk, its log and its /readyz"

app = App()


@app.command("cluster")
@watched
def show_cluster(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    expected: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="NAME",
            help="Fail if no broker of this name is registered; may be repeated.",
        ),
    ] = None,
    *,
    wide: Annotated[
        bool, typer.Option("--wide", help="Also clusters, versions, starts and send paths.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show each broker's role, rates, disk usage and slave lag; exit status 1 if one fails.

    A broker fails if it does not answer, its account file is broken, a name server lacks it, or no
    elector looks after its group. A master also fails if it accepts no messages (unless it was made
    read-only), its group lacks copies, or it is a SYNC_MASTER without a slave; a slave fails if it
    has no master or cannot follow it. A slave's lag is in bytes of the commit log.

    Name servers forget dead brokers: --expect names those that must be there. In a group with
    failover, the number after a broker's name is the brokerId in its settings.

    \b
    EXAMPLE
      cometmq cluster --expect broker-a --expect broker-b
    """

    async def question(admin: AdminClient) -> tuple[list[ClusterMember], dict[str, ReadOnlyBroker]]:
        members = await admin.members(cluster)
        answering = {
            it.broker_name: admin.broker(it.address, name=it.broker_name)
            for it in members
            if it.broker_id == MASTER_ID and it.figures is not None
        }
        return members, await read_only_brokers(admin, answering)

    members, read_only = ask(namesrv, question)
    ends = _ends_of_masters(members)
    leaderless, numbers = _without_master(members), _members_of_groups(members)
    rows = [
        _row(
            member,
            numbers.get(member.address),
            ends.get((member.cluster, member.broker_name)),
            has_master=member.broker_name not in leaderless,
            is_read_only=member.broker_id == MASTER_ID and member.broker_name in read_only,
        )
        for member in members
    ]
    if wide or as_json:
        print_rows(COLUMNS, rows, as_json=as_json)
    else:
        print_rows(("Broker", *NARROW.values()), [_narrow(row) for row in rows], as_json=False)
    print_notes(it.note for it in read_only.values())
    _note_absent(set(expected or ()) - {member.broker_name for member in members}, cluster)
    for name, slaves in leaderless.items():
        note_no_master(name, slaves)
    for member in members:
        if member.failure is not None:
            note_missing(member.broker_name, member.address, member.failure)
        else:
            _note_faults(member)
            _note_misspelt(member)


def _narrow(row: list[Cell]) -> list[Cell]:
    cells = dict(zip(COLUMNS, row, strict=True))
    number = cells["Id"] if cells["Member"] is None else cells["Member"]
    behind = cells["Behind bytes"]
    cells["Behind bytes"] = sized(behind) if isinstance(behind, int) else None
    return [f"{cells['Broker']}:{number}", *(cells[name] for name in NARROW)]


def _members_of_groups(members: list[ClusterMember]) -> dict[str, int | None]:
    """Return the brokerId of each member of a group with failover, by address.

    The value is None for a master that does not answer: name servers list every master under 0, and
    a slave under its brokerId + 1.
    """
    told = {it.address: it.figures.member_id for it in members if it.figures is not None}
    groups = {it.broker_name for it in members if told.get(it.address) is not None}
    return {
        it.address: told.get(it.address) if it.figures or not it.broker_id else it.broker_id - 1
        for it in members
        if it.broker_name in groups
    }


def _note_absent(names: Iterable[str], cluster: str | None) -> None:
    """Record the expected brokers that are not registered."""
    inside = "" if cluster is None else f" in the cluster {cluster}"
    for name in sorted(names):
        MISSING[name] = (
            f"broker {name} is not registered{inside}: it is down, uses other name servers, or was"
            " refused; start it, or look at its log and its /readyz"
        )


def _note_faults(member: ClusterMember) -> None:
    """Record the faults of a broker that answers, with a remedy."""
    place = f"{member.broker_name} ({member.address})"
    if reasons := _refusal(member):
        MISSING[member.address] = f"broker {place} takes no messages: {reasons}; {REMEDY}"
    elif reason := _unfit(member):
        MISSING[member.address] = (
            f"slave {place} cannot follow its master: {reason}; {FOLLOW_REMEDY}"
        )
    if reason := _missing_slave(member):
        MISSING[f"{member.address}/slave"] = (
            f"broker {place} is a SYNC_MASTER, but its slave is {reason}: it stores messages"
            " without a second copy, and sends end with SLAVE_NOT_AVAILABLE; start the slave, or"
            " look at its log"
        )
    if reason := _missing_routes(member):
        MISSING[f"{member.address}/routes"] = (
            f"broker {place} is {reason}: clients that ask these name servers do not find it;"
            " remove the cause, and the broker registers again by itself"
        )
    if _is_elector_missing(member):
        MISSING[f"{member.broker_name}/elector"] = (
            f"no elector looks after broker {place}, so nobody replaces a lost master of this"
            " group: start one (cometmq elector, or the operator), or look at its /readyz"
        )
    if file := _broken_accounts(member):
        MISSING[f"{member.address}/accounts"] = (
            f"broker {place} cannot use its account file {file}: it serves the accounts read"
            f" before, and will not start again; {ACCOUNTS_REMEDY}"
        )
    if (copies := _copies(member)) is not None:
        numbers = ", ".join(map(str, copies.missing))
        verb, them = ("is", "it") if len(copies.missing) == 1 else ("are", "them")
        MISSING[f"{member.address}/copies"] = (
            f"broker group {member.broker_name} lacks copies: brokerId {numbers} {verb} not in sync"
            f" ({len(copies.in_sync)} of {len(copies.members)} are, minInSync is"
            f" {copies.min_in_sync}); start {them}, or wait for {them} to catch up"
        )


def _note_misspelt(member: ClusterMember) -> None:
    """Warn about account files that are in use although they contain unknown keys or words."""
    if member.figures and (files := member.figures.accounts_misspelt):
        note = (
            f"broker {member.broker_name} ({member.address}) does not know keys or words of its"
            f" account file {files}: unknown rights mean DENY, unknown keys have no effect;"
            " accounts.misspelt in its log names them"
        )
        print_notes([note])


def _without_master(members: list[ClusterMember]) -> dict[str, list[str]]:
    """Return the addresses of the slaves of each broker without a registered master."""
    led = {member.broker_name for member in members if member.broker_id == MASTER_ID}
    found: dict[str, list[str]] = {}
    for member in members:
        if member.broker_name not in led:
            found.setdefault(member.broker_name, []).append(member.address)
    return found


def _ends_of_masters(members: list[ClusterMember]) -> dict[tuple[str, str], int]:
    """Return the log end of each master that answers."""
    return {
        (member.cluster, member.broker_name): member.figures.log_max_offset
        for member in members
        if member.broker_id == MASTER_ID and member.figures is not None
    }


def _unfit(member: ClusterMember) -> str:
    """Return why a slave cannot follow its master."""
    is_slave = member.broker_id != MASTER_ID
    return member.figures.not_following if is_slave and member.figures else ""


def _refusal(member: ClusterMember) -> str:
    """Return why a master accepts no messages; slaves never accept any."""
    is_master = member.broker_id == MASTER_ID
    return member.figures.writes_refused if is_master and member.figures else ""


def _missing_slave(member: ClusterMember) -> str:
    """Return why a SYNC_MASTER has no second copy."""
    return member.figures.slave_missing if member.figures else ""


def _missing_routes(member: ClusterMember) -> str:
    """Return which name servers do not list a broker."""
    return member.figures.routes_missing if member.figures else ""


def _is_elector_missing(member: ClusterMember) -> bool:
    return member.figures is not None and member.figures.is_elector_missing


def _broken_accounts(member: ClusterMember) -> str:
    return member.figures.accounts_broken if member.figures else ""


def _copies(member: ClusterMember) -> GroupCopies | None:
    """Return the copies of the broker group whose master this broker is, if one is missing."""
    copies = member.figures.copies if member.figures else None
    return copies if copies is not None and copies.missing else None


def _row(
    member: ClusterMember,
    number: int | None,
    master_end: int | None,
    *,
    has_master: bool,
    is_read_only: bool,
) -> list[Cell]:
    """Build the row of a broker; `master_end` is the end of its master's log, if known."""
    role = "master" if member.broker_id == MASTER_ID else "slave"
    place: list[Cell] = [
        *(member.cluster, member.broker_name, member.broker_id, number, role, member.address)
    ]
    figures = member.figures
    if figures is None:
        return [*place, *[None] * (len(COLUMNS) - len(place) - 1), str(member.failure)]
    ratio = figures.commit_log_disk_ratio
    behind = None
    if role == "slave" and master_end is not None:
        behind = max(0, master_end - figures.log_max_offset)
    return [
        *place,
        figures.version,
        round(figures.incoming.tps, 1),
        round(figures.outgoing.tps, 1),
        figures.put_today,
        None if ratio is None else round(100 * ratio, 1),
        behind,
        shown(figures.started_ms),
        figures.send_path.partition(":")[0] or None,
        None if figures.slow_share is None else round(100 * figures.slow_share, 1),
        _slow_reasons(figures) or None,
        _state(member, is_read_only=is_read_only) if has_master else "no master: nobody can send",
    ]


def _slow_reasons(figures: BrokerFigures) -> str:
    """Return the most frequent reasons why requests left the native path, with their codes."""
    rows = sorted(figures.slow_requests, key=lambda row: row.count, reverse=True)
    return ", ".join(f"{row.code} {row.reason.replace('_', ' ')}" for row in rows[:SLOW_REASONS])


def _state(member: ClusterMember, *, is_read_only: bool) -> str:
    copies = _copies(member)
    missing = "" if copies is None else f"lacks copies: {', '.join(map(str, copies.missing))}"
    if reasons := _refusal(member):
        return f"takes no messages: {reasons}" + (f"; {missing}" if missing else "")
    if missing:
        return missing
    if reason := _unfit(member):
        return f"cannot follow: {reason}"
    if reason := _missing_slave(member):
        return f"no second copy: slave {reason}"
    if reason := _missing_routes(member):
        return reason
    if _is_elector_missing(member):
        return "no elector"
    if file := _broken_accounts(member):
        return f"account file broken: {file}"
    return "read-only" if is_read_only else "ok"
