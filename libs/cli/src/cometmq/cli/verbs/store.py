# SPDX-License-Identifier: Apache-2.0
"""`cometmq store`: inspect the folder of a store, including one that RocketMQ wrote, without a
broker.

Nothing is changed, and a broker may be running on the folder.
"""

import sys
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.lazy import App
from cometmq.cli.meter import Meter
from cometmq.cli.output import AsJson, Cell, as_objects, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.insight.times import shown
from cometmq.insight.words import counted, lasting
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.properties import RESERVED_KEYS
from cometmq.remoting.message.record import MessageRecord
from cometmq.runtime.settings import load
from cometmq.store.errors import CorruptRecord, CorruptStore
from cometmq.store.inspection.dump import DamagedEntry, dump_log, dump_queue
from cometmq.store.inspection.inspect import Damage, Inspection, inspect_store
from cometmq.store.inspection.verification import (
    FINDINGS_PER_KIND_MAX,
    FindingKind,
    StoreState,
    Verification,
)
from cometmq.store.inspection.verify import verify_store
from cometmq.store.settings import StoreSettings

EXIT_STATUS: Final = {
    StoreState.HEALTHY: 0,
    StoreState.IN_USE: 3,
    StoreState.NEEDS_RECOVERY: 4,
    StoreState.DAMAGED: 5,
}
EXIT_USAGE: Final = 2
METER_STEP: Final = 1_000
PREVIEW_CHARS: Final = 60
_PLACE: Final = (
    "physical_offset", "size", "topic", "queue_id", "queue_offset", "store_timestamp",
    "born_timestamp",
)  # fmt: skip

app = App("Inspect a store folder without a broker; RocketMQ stores are also supported.")

Folder = Annotated[Path, typer.Argument(help="Folder that contains commitlog (storePathRootDir).")]
Config = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        help="The broker's settings file; needed if its index sizes are not the defaults.",
    ),
]


# -- inspect ----------------------------------------------------------------------------------


@app.command()
def inspect(folder: Folder, config: Config = None, *, as_json: AsJson = False) -> None:
    """Show the contents of a store; exit status 5 if its log is damaged.

    \b
    EXAMPLE
      cometmq store inspect cometmq-data
    """
    settings = _settings(config)
    root = str(_root(folder))
    with Meter() as meter:
        meter.show("reading the log")
        found = inspect_store(root, settings=settings)
    facts = _facts(found)
    queues: list[list[Cell]] = [list(queue) for queue in found.queues]
    index: list[list[Cell]] = [
        [file.name, shown(file.begin_timestamp), shown(file.end_timestamp), *file[3:]]
        for file in found.index_files
    ]
    journal: list[list[Cell]] = [list(table) for table in found.journal]
    damages: list[list[Cell]] = [list(damage) for damage in found.damages]
    sections = (
        ("Queues", ("Topic", "Queue", "Min", "Max", "Files"), queues),
        (
            "Index files",
            ("Name", "First message", "Last message", "Begin", "End", "Entries"),
            index,
        ),
        ("Journal of the tables", ("Table", "Entries", "Last entry", "Applied"), journal),
        ("Damages", ("File", "Position", "Offset", "Next record"), damages),
    )
    if as_json:
        parts = {
            title.lower().replace(" ", "_"): as_objects(columns, rows)
            for title, columns, rows in sections
        }
        print_json({**facts, **parts})
    else:
        print_facts(facts, as_json=False)
        for title, columns, rows in sections:
            if rows:
                say()
                print_rows(columns, rows, as_json=False, title=title)
    if damages:
        raise typer.Exit(EXIT_STATUS[StoreState.DAMAGED])


def _facts(found: Inspection) -> dict[str, Cell]:
    checkpoint = found.checkpoint
    return {
        "folder": found.root,
        **_last_run(found.in_use_by, was_clean=found.was_clean),
        "records": found.record_count,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "log_files": found.commit_log_file_count,
        "log_file_bytes": found.commit_log_file_size,
        "log_on_disk_up_to": shown(checkpoint.log_timestamp),
        "queues_on_disk_up_to": shown(checkpoint.queue_timestamp),
        "index_on_disk_up_to": shown(checkpoint.index_timestamp),
        "last_journal_entry": found.journal_number,
        "journal_damage": found.journal_damage or None,
    }


# -- verify -----------------------------------------------------------------------------------


@app.command()
def verify(folder: Folder, config: Config = None, *, as_json: AsJson = False) -> None:
    """Check every record, queue entry and index entry; the exit status gives the state.

    \b
    0  healthy         no findings
    3  in use          open in a process; no findings before its last checkpoint
    4  needs recovery  the next start of a broker repairs the findings
    5  damaged         recovery cannot repair the findings

    \b
    EXAMPLE
      cometmq store verify cometmq-data
    """
    from cometmq.broker.native import open_native_code  # noqa: PLC0415  # slow to import
    from cometmq.broker.settings import BrokerSettings  # noqa: PLC0415

    settings = _settings(config)
    root = str(_root(folder))
    with Meter() as meter:
        begun_s = monotonic()

        def advance(done: int, total: int) -> None:
            left_s = (monotonic() - begun_s) * (total - done) / max(1, done)
            percent = 100 * done // total if total else 100
            meter.show(f"{percent} % of the store is checked; {lasting(left_s)} to go")

        try:
            native = open_native_code(BrokerSettings(), NO_LOG)
            found = verify_store(root, settings=settings, on_progress=advance, native=native)
        except CorruptStore as error:  # all index files differ from the settings
            raise _refused(f"{error}; give the broker's settings with -c") from error
    facts: dict[str, Cell] = {
        "folder": root,
        "state": found.state.value,
        **_last_run(found.in_use_by, was_clean=found.was_clean),
        "records": found.record_count,
        "queue_entries": found.queue_entry_count,
        "index_entries": found.index_entry_count,
        "journal_entries": found.journal_entry_count,
        "min_offset": found.min_offset,
        "checked_up_to": found.max_offset,
        "recovery_starts_at": found.recovery.start.offset if found.recovery is not None else None,
        "findings": found.finding_count,
    }
    columns = ("Kind", "Place", "Finding")
    rows = [list(finding) for finding in found.findings]
    if as_json:
        by_kind = {kind.value: count for kind, count in found.counts.items()}
        first = as_objects(columns, rows)
        print_json({**facts, "findings_by_kind": by_kind, "first_findings": first})
    else:
        print_facts(facts, as_json=False)
        if rows:
            say()
            print_rows(columns, rows, as_json=False)
        if len(rows) < (count := found.finding_count):
            kinds = ", ".join(f"{it:,} {kind}" for kind, it in found.counts.items())
            say(
                f"\nThe table shows {len(rows):,} of {count:,} findings, the first"
                f" {FINDINGS_PER_KIND_MAX} of each kind: {kinds}."
            )
        say(f"\n{_advice(found)}")
    raise typer.Exit(EXIT_STATUS[found.state])


def _last_run(in_use_by: int | None, *, was_clean: bool) -> dict[str, Cell]:
    """Return the facts about the process that has the store open, or that opened it last."""
    if in_use_by is None:
        return {"stopped_in_order": was_clean}
    return {"in_use_by": f"process {in_use_by}" if in_use_by else "unknown process"}


def _advice(found: Verification) -> str:
    recovery = found.recovery
    match found.state:
        case StoreState.HEALTHY:
            return "The store is healthy."
        case StoreState.IN_USE:
            return (
                "A process has the store open. It is healthy up to its last checkpoint, which"
                " is as far as an open store can be checked."
            )
        case StoreState.NEEDS_RECOVERY:
            if recovery is None and FindingKind.JOURNAL_DAMAGED not in found.counts:
                return (
                    "A broker reads the other copy of a damaged table when it starts, and writes"
                    " both again."
                )
            if recovery is None:
                return (
                    "Start a broker on the folder: it leaves out what is damaged in the journal."
                    " Groups continue at the offsets before the damage."
                )
            return (
                "Start a broker on the folder: it recovers the store from offset"
                f" {recovery.start.offset:,} on."
            )
        case StoreState.DAMAGED:
            return (
                "Recovery cannot repair this. Copy the folder, then follow the runbook"
                " docs/runbooks/store-damaged.md."
            )


# -- dump -------------------------------------------------------------------------------------


@app.command()
def dump(
    folder: Folder,
    *,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    queue: Annotated[
        int | None,
        typer.Option(min=0, help="Only this queue of --topic, read through its consume queue."),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, help="First queue offset; without --queue, first log offset."
        ),
    ] = None,
    count_max: Annotated[
        int | None, typer.Option("--max", min=1, help="Maximum number of records.")
    ] = None,
    with_deleted: Annotated[
        bool,
        typer.Option(
            "--with-deleted",
            help="Also print the records of a deleted topic that had the name of --topic.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per record.")] = False,
) -> None:
    """Print records in log order, or in the order of one queue.

    If a topic was deleted and created again, --topic leaves out the records of the deleted one, and
    gives their number on standard error.

    Damaged records are reported on standard error, and the exit status is then 5. With --queue,
    records with damage only in the body are printed as well.

    \b
    EXAMPLE
      cometmq store dump cometmq-data -t orders --max 3
    """
    root = str(_root(folder))
    faults = DumpFaults(start)
    records: Iterator[MessageRecord]
    if queue is None:
        records = dump_log(
            root,
            start,
            topic=topic,
            on_gone=None if with_deleted else faults.note_gone,
            on_damage=faults.note_range,
            on_fault=faults.note,
        )
    elif topic is None:
        raise _refused("--queue needs --topic")
    else:
        records = dump_queue(root, topic, queue, start or 0, on_damage=faults.note_entry)
    render = _as_json if as_json else _as_text
    number = 0
    with Meter(beside_output=True) as meter:
        for number, record in enumerate(islice(records, count_max), 1):
            sys.stdout.write(render(record) + "\n")
            if number % METER_STEP == 0:
                meter.show(f"{number:,} records")
    if faults.gone_count:
        say(
            f"cometmq: left out {counted(faults.gone_count, 'record')} of a deleted topic {topic},"
            " which the queues no longer contain; to print them too: --with-deleted",
            err=True,
        )
    if faults.status:
        raise typer.Exit(faults.status)
    if number == 0 and (topic is not None or start is not None):
        say(f"cometmq: {folder} has {_no_record(topic, queue, start)}", err=True)
        raise typer.Exit(1)


class DumpFaults:
    """Prints the damage that a dump cannot show."""

    def __init__(self, start: int | None) -> None:
        self._start = start
        self.status = 0
        self.gone_count = 0

    def note_gone(self, _record: MessageRecord) -> None:
        """Count a record of a deleted topic."""
        self.gone_count += 1

    def note(self, text: str) -> None:
        """Print one case of damage."""
        say(f"cometmq: damaged: {text}", err=True)
        self.status = EXIT_STATUS[StoreState.DAMAGED]

    def note_range(self, damage: Damage) -> None:
        """Print a range of the log that contains no valid record."""
        if damage.physical_offset == self._start:
            say(
                f"cometmq: no valid record begins at log offset {self._start}, as --from says; the"
                f" next one begins at {damage.next_offset}",
                err=True,
            )
            self.status = max(self.status, 1)
            return
        self.note(
            f"no valid record from log offset {damage.physical_offset} to {damage.next_offset}"
            f" ({damage.path}, position {damage.position})"
        )

    def note_entry(self, damage: DamagedEntry) -> None:
        """Print a queue entry that has no intact record."""
        place = f"queue offset {damage.queue_offset}"
        if damage.physical_offset is None:
            self.note(f"the entry of {place} cannot be read")
        elif damage.is_printable:
            self.note(
                f"{place}: the body of the record at log offset {damage.physical_offset} does not"
                " match its CRC"
            )
        else:
            self.note(f"{place}: no valid record at log offset {damage.physical_offset}")


def _no_record(topic: str | None, queue: int | None, start: int | None) -> str:
    place = "" if topic is None else f" of the topic {topic}"
    if queue is not None:
        place += f" in queue {queue}"
    if start is not None:
        place += f" from {'log ' if queue is None else ''}offset {start} on"
    if queue is not None:
        place += (
            " in its consume queue, which may have lost entries; to read the log itself, leave out"
            " --queue"
        )
    return f"no record{place}"


def _body(record: MessageRecord) -> bytes:
    try:
        return record.decompressed_body()
    except CorruptRecord:
        return record.body  # as stored: this command is for looking at damage


def _as_text(record: MessageRecord) -> str:
    text = _body(record).decode("utf-8", "replace")
    preview = text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"
    tag = f" [{record.tags}]" if record.tags else ""
    place = f"{record.topic}:{record.queue_id}:{record.queue_offset}"
    moment = shown(record.store_timestamp)
    return f"{record.physical_offset:>12} {record.size:>7} {moment} {place}{tag} {preview!r}"


def _as_json(record: MessageRecord) -> str:
    """Return a record as JSON, which `produce --json-lines` accepts as a message to send."""
    body = _body(record)
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, b64encode(body).decode()
    own: dict[str, str] = {}
    reserved: dict[str, str] = {}
    for name, value in record.properties.items():
        (reserved if name in RESERVED_KEYS else own)[name] = value
    optional = {
        "sys_flag": record.sys_flag, "reconsume_times": record.reconsume_times,
        "tag": record.tags, "keys": list(record.keys), "properties": own,
        "system_properties": reserved, "body": text, "body_base64": encoded,
    }  # fmt: skip
    line = {name: getattr(record, name) for name in _PLACE}
    line |= {name: it for name, it in optional.items() if it or (name == "body" and it is not None)}
    return msgspec.json.encode(line).decode()


# -- arguments --------------------------------------------------------------------------------


def _root(folder: Path) -> Path:
    """Return the store's folder; in the data folder of `standalone` it is one level down."""
    for root in (folder, folder / "store"):
        if (root / "commitlog").is_dir():
            return root
    raise _refused(f"{folder} is not a store: it has no folder commitlog")


def _settings(config: Path | None) -> StoreSettings:
    try:
        return load(StoreSettings, prefix="COMETMQ_BROKER", file=config, is_part=True).value
    except SettingsError as error:
        raise _refused(str(error)) from error


def _refused(line: str) -> typer.Exit:
    say(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_USAGE)
