# SPDX-License-Identifier: Apache-2.0
"""`cometmq store`: look into a store's folder without a broker, RocketMQ's as well.

Nothing is changed, and a broker may be running on the folder. Exit status 1 says damage.
"""

import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.output import AsJson, Cell, as_objects, print_facts, print_json, print_rows
from cometmq.cli.times import shown
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.message.properties import RESERVED_KEYS
from cometmq.remoting.message.record import MessageRecord
from cometmq.runtime.settings import load
from cometmq.store.errors import CorruptRecord
from cometmq.store.inspect import Inspection, dump_log, dump_queue, inspect_store
from cometmq.store.settings import StoreSettings
from cometmq.store.verify import FindingKind, Verification, verify_store

EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2
PREVIEW_CHARS: Final = 60
REBUILT: Final = frozenset({FindingKind.QUEUE_ENTRY_MISSING, FindingKind.INDEX_KEYS_MISSING})
"""What a broker that was not stopped in order leaves, and builds again at its next start."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into a store's folder without a broker, RocketMQ's as well.",
)

Folder = Annotated[
    Path, typer.Argument(help="Folder that has `commitlog` in it (storePathRootDir).")
]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="The broker's settings, if its index has another shape."),
]


# -- inspect ----------------------------------------------------------------------------------


@app.command()
def inspect(folder: Folder, config: Config = None, *, as_json: AsJson = False) -> None:
    """Show what a store holds; exit status 1 if its log is damaged."""
    settings = _settings(config)
    root = str(_root(folder))
    with _progress("Reading the log"):
        found = inspect_store(root, settings=settings)
    facts = _facts(found)
    queues: list[list[Cell]] = [list(queue) for queue in found.queues]
    index: list[list[Cell]] = [
        [file.name, shown(file.begin_timestamp), shown(file.end_timestamp), *file[3:]]
        for file in found.index_files
    ]
    damages: list[list[Cell]] = [list(damage) for damage in found.damages]
    sections = (
        ("Queues", ("Topic", "Queue", "Min", "Max", "Files"), queues),
        (
            "Index files",
            ("Name", "First message", "Last message", "Begin", "End", "Entries"),
            index,
        ),
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
                typer.echo()
                print_rows(columns, rows, as_json=False, title=title)
    if damages:
        raise typer.Exit(EXIT_DAMAGED)


def _facts(found: Inspection) -> dict[str, Cell]:
    checkpoint = found.checkpoint
    return {
        "folder": found.root,
        "stopped_in_order": found.was_clean,
        "records": found.record_count,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "log_files": found.commit_log_file_count,
        "log_file_bytes": found.commit_log_file_size,
        "log_on_disk_up_to": shown(checkpoint.log_timestamp),
        "queues_on_disk_up_to": shown(checkpoint.queue_timestamp),
        "index_on_disk_up_to": shown(checkpoint.index_timestamp),
    }


# -- verify -----------------------------------------------------------------------------------


@app.command()
def verify(folder: Folder, config: Config = None, *, as_json: AsJson = False) -> None:
    """Check every record, queue entry and index entry; exit status 1 if something is damaged."""
    settings = _settings(config)
    root = str(_root(folder))
    with _progress("Reading the log") as advance:
        found = verify_store(root, settings=settings, on_progress=advance)
    is_damaged = _is_damaged(found)
    facts: dict[str, Cell] = {
        "folder": root,
        "stopped_in_order": found.was_clean,
        "records": found.record_count,
        "queue_entries": found.queue_entry_count,
        "index_entries": found.index_entry_count,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "findings": found.finding_count,
        "damaged": is_damaged,
    }
    columns = ("Kind", "Place", "Finding")
    rows = [list(finding) for finding in found.findings]
    if as_json:
        print_json({**facts, "first_findings": as_objects(columns, rows)})
    else:
        print_facts(facts, as_json=False)
        if rows:
            typer.echo()
            print_rows(columns, rows, as_json=False)
            if not is_damaged:
                typer.echo("The next start of a broker builds what is missing.")
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


def _is_damaged(found: Verification) -> bool:
    """Whether something is wrong that recovery does not make good by itself."""
    if found.was_clean or found.finding_count > len(found.findings):
        return not found.is_good
    return not {finding.kind for finding in found.findings} <= REBUILT


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    rich: Any = import_module("rich.progress")
    console: Any = import_module("rich.console")
    with rich.Progress(console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)  # it moves without end until a total is known
        yield lambda done, total: bar.update(task, completed=done, total=total)


# -- dump -------------------------------------------------------------------------------------


class RecordLine(msgspec.Struct, omit_defaults=True):
    """One record as JSON; `produce --json-lines` takes it as a message to send."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    born_timestamp: int
    sys_flag: int = 0
    reconsume_times: int = 0
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    system_properties: dict[str, str] = {}
    body: str | None = None
    body_base64: str | None = None


@app.command()
def dump(
    folder: Folder,
    *,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    queue: Annotated[
        int | None, typer.Option(min=0, help="Only this queue of --topic, by its own entries.")
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--from", min=0, help="First queue offset, without --queue log offset."),
    ] = None,
    count_max: Annotated[
        int | None, typer.Option("--max", min=1, help="Show so many records at most.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per record.")] = False,
) -> None:
    """Print records, in the order of the log or of one queue."""
    root = str(_root(folder))
    if queue is None:
        found = dump_log(root, start)
        records = (record for record in found if topic in (None, record.topic))
    elif topic is None:
        raise _refused("--queue: needs --topic")
    else:
        records = (record for record in dump_queue(root, topic, queue, start or 0))
    render = _as_json if as_json else _as_text
    for record in islice(records, count_max):
        typer.echo(render(record))


def _body(record: MessageRecord) -> bytes:
    try:
        return record.decompressed_body()
    except CorruptRecord:
        return record.body  # as it is stored: looking into damage is what this command is for


def _as_text(record: MessageRecord) -> str:
    text = _body(record).decode("utf-8", "replace")
    preview = text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"
    tag = f" [{record.tags}]" if record.tags else ""
    place = f"{record.topic}:{record.queue_id}:{record.queue_offset}"
    moment = shown(record.store_timestamp)
    return f"{record.physical_offset:>12} {record.size:>7} {moment} {place}{tag} {preview!r}"


def _as_json(record: MessageRecord) -> str:
    body = _body(record)
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, b64encode(body).decode()
    own = {name: value for name, value in record.properties.items() if name not in RESERVED_KEYS}
    line = RecordLine(
        physical_offset=record.physical_offset,
        size=record.size,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_timestamp=record.store_timestamp,
        born_timestamp=record.born_timestamp,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        tag=record.tags,
        keys=list(record.keys),
        properties=own,
        system_properties={
            name: value for name, value in record.properties.items() if name in RESERVED_KEYS
        },
        body=text,
        body_base64=encoded,
    )
    return msgspec.json.encode(line).decode()


# -- arguments --------------------------------------------------------------------------------


def _root(folder: Path) -> Path:
    """Return the store's folder; that of `standalone --data` has it one level below."""
    for root in (folder, folder / "store"):
        if (root / "commitlog").is_dir():
            return root
    raise _refused(f"{folder}: no store, it has no folder commitlog")


def _settings(config: Path | None) -> StoreSettings:
    try:
        return load(StoreSettings, prefix="COMETMQ_BROKER", file=config).value
    except SettingsError as error:
        raise _refused(str(error)) from error


def _refused(line: str) -> typer.Exit:
    typer.echo(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_USAGE)
