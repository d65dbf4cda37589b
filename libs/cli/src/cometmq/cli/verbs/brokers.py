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
from cometmq.client.admin.figures import BrokerFigures
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.insight.rules.brokers import Fault, faults_of
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
            for it in _faults(member):
                MISSING[f"{member.address} {it.word}"] = f"{it.text}; {it.remedy}"
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


def _faults(member: ClusterMember) -> list[Fault]:
    """Return the problems of a broker, worst first; none if it does not answer."""
    if member.figures is None:
        return []
    is_master = member.broker_id == MASTER_ID
    word = "broker" if is_master else "slave"
    whose = f"{word} {member.broker_name} ({member.address})"
    return faults_of(whose, member.figures, is_master=is_master)


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
    words = "; ".join(it.word for it in _faults(member))
    state = words or ("read-only" if is_read_only else "ok")
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
        state if has_master else "no master: nobody can send",
    ]


def _slow_reasons(figures: BrokerFigures) -> str:
    """Return the most frequent reasons why requests left the native path, with their codes."""
    rows = sorted(figures.slow_requests, key=lambda row: row.count, reverse=True)
    return ", ".join(f"{row.code} {row.reason.replace('_', ' ')}" for row in rows[:SLOW_REASONS])
