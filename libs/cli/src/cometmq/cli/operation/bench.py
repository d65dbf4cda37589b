# SPDX-License-Identifier: Apache-2.0
"""`cometmq bench`: how fast this machine's Python client sends, reads and sees messages."""

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, run, with_access
from cometmq.cli.lazy import App
from cometmq.cli.meter import live
from cometmq.cli.operation.bench_client import Histogram, Outcome, Task, client
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import AsJson, Cell, print_errors, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.cli.verbs.sent import delay_ms_of
from cometmq.client import ClientOptions, MessageQueue
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError
from cometmq.client.settings import DELAY_LEVEL_MAX
from cometmq.remoting.errors import SettingsError

BYTES_MAX: Final = 1 << 30
"""The maximum size of the file; after that, the blocks overwrite it from its beginning."""


class DiskOutcome(msgspec.Struct):
    """The flushes of one run."""

    bytes: int = 0
    seconds: float = 0.0
    latencies: Histogram = msgspec.field(default_factory=Histogram)


def measure(folder: Path, size: int, seconds: float) -> DiskOutcome:
    """Append and flush blocks of `size` bytes, one after another, to a temporary file without a
    name.

    Raise SettingsError if the folder cannot be written, or its disk is full.
    """
    outcome, block = DiskOutcome(), os.urandom(size)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            descriptor, at, begin = file.fileno(), 0, monotonic()
            while monotonic() - begin < seconds:
                begin_ns = monotonic_ns()
                if os.pwrite(descriptor, block, at) != size:
                    raise SettingsError(f"{folder}: the disk is full")
                os.fdatasync(descriptor)
                outcome.latencies.add((monotonic_ns() - begin_ns) // 1000)
                outcome.bytes += size
                at = at + size if at + 2 * size <= BYTES_MAX else 0
            outcome.seconds = monotonic() - begin
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
    return outcome


CLIENTS_MAX: Final = 64
BUSY_SHARE: Final = 0.9
"""Share of a processor above which a client process limits the result."""
BAR_CHARS: Final = 30
EXTRA_S: Final = 30.0
"""Time after the duration in which processes must end."""
HONEST: Final = (
    "measured with the Python client, from this machine: a broker can take more than this"
)

app = App("Measure how fast messages are sent, read and delivered, with processes of this machine.")

Topic = Annotated[str, arg("Existing topic; messages are added to it.")]
Clients = Annotated[int, opt("--clients", "Client processes.", min=1, max=CLIENTS_MAX)]
Size = Annotated[int, opt("Bytes of each body.", min=1, max=4 << 20)]
RateOption = Annotated[
    float | None,
    opt("--rate", "Messages per second of all clients; without it, at full speed.", min=0.001),
]
Seconds = Annotated[float, opt("--seconds", "Duration of the measurement.", min=0.1, max=86_400)]
Count = Annotated[int | None, opt("--count", "End after so many messages per client.", min=1)]
InFlight = Annotated[int, opt("Concurrent sends per client without --rate.", min=1, max=10_000)]


@app.command()
def send(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    clients: Clients = 1,
    size: Size = 1024,
    rate: RateOption = None,
    seconds: Seconds = 10,
    count: Count = None,
    in_flight: InFlight = 64,
    transaction: Annotated[
        bool, opt("--transaction", "Send each in a transaction, and commit it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send messages; with --rate, latencies count from when each message was due.

    \b
    EXAMPLES
      cometmq bench send orders --seconds 30 --clients 2
      cometmq bench send orders --rate 1000 --size 4096 --json
      cometmq bench send orders --transaction
    """
    task = Task(
        kind="txn" if transaction else "send", namesrv=namesrv, topic=topic, size=size,
        options=with_access(ClientOptions()), rate=None if rate is None else rate / clients,
        duration_s=seconds, count=count, in_flight=in_flight,
    )  # fmt: skip
    _queues(namesrv, topic)
    _measure([task] * clients, as_json=as_json)


@app.command()
def consume(
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    clients: Clients = 1,
    seconds: Seconds = 10,
    count: Count = None,
    as_json: AsJson = False,
) -> None:
    """Read a topic from its beginning, without changing offsets; latencies are those of pulls.

    \b
    EXAMPLE
      cometmq bench consume orders --clients 2
    """
    queues = _queues(namesrv, topic)
    clients = min(clients, len(queues))
    options = with_access(ClientOptions())
    tasks = [
        Task(
            kind="consume", namesrv=namesrv, topic=topic, options=options, duration_s=seconds,
            count=count, queues=tuple(queues[number::clients]),
        )
        for number in range(clients)
    ]  # fmt: skip
    _measure(tasks, as_json=as_json)


@app.command()
def latency(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    rate: Annotated[float, opt("--rate", "Messages per second of all clients.", min=0.001)] = 100,
    delay_level: Annotated[
        int, opt("Measure from the end of this delay.", min=0, max=DELAY_LEVEL_MAX)
    ] = 0,
    clients: Clients = 1,
    size: Size = 1024,
    seconds: Seconds = 10,
    as_json: AsJson = False,
) -> None:
    """Send messages at a rate and read them: the time from when each was due until it arrived.

    \b
    EXAMPLES
      cometmq bench latency orders --rate 500 --seconds 30
      cometmq bench latency orders --delay-level 2
    """
    _queues(namesrv, topic)
    options = with_access(ClientOptions())
    delay_ms = run(delay_ms_of(namesrv, delay_level)) if delay_level else 0
    tasks = [
        Task(
            kind="latency", namesrv=namesrv, topic=topic, options=options, size=max(size, 24),
            rate=rate / clients, duration_s=seconds, run=os.urandom(8), delay_level=delay_level,
            delay_ms=delay_ms,
        )
        for _ in range(clients)
    ]  # fmt: skip
    _measure(tasks, as_json=as_json)


@app.command()
def disk(
    folder: Annotated[Path, arg("Folder on the disk of a store.", exists=True, file_okay=False)],
    *,
    size: Annotated[int, opt("Bytes of each append.", min=1, max=4 << 20)] = 4096,
    seconds: Seconds = 5,
    as_json: AsJson = False,
) -> None:
    """Append to a file of this machine and flush it, as SYNC_FLUSH does; the file is removed.

    \b
    EXAMPLE
      cometmq bench disk /var/lib/cometmq --size 65536
    """
    found = measure(folder, size, seconds)
    flushes = found.latencies.count
    facts: dict[str, Any] = {
        "folder": str(folder),
        "flushes": flushes,
        "seconds": round(found.seconds, 3),
        "per_second": round(flushes / found.seconds, 1),
        "mib_per_second": round(found.bytes / found.seconds / (1 << 20), 2),
    }
    _print_latencies(facts, found.latencies, as_json=as_json)


def _queues(namesrv: str, topic: str) -> list[MessageQueue]:
    async def question(admin: AdminClient) -> list[MessageQueue]:
        return await admin.queues(topic)

    found = ask(namesrv, question)
    if not found:
        raise ClientError(f"the topic {topic} has no queue that may be read")
    return found


# -- processes --------------------------------------------------------------------------------


def _measure(tasks: Sequence[Task], *, as_json: bool) -> None:
    outcomes = run(_outcomes(tasks))
    if not outcomes:
        raise ClientError("no client process has ended")
    _print(tasks, outcomes, as_json=as_json)
    if any(it.failures for it in outcomes):
        raise typer.Exit(1)


async def _outcomes(tasks: Sequence[Task]) -> list[Outcome]:
    """Run a process for each task; they end even if this one is interrupted."""
    context = multiprocessing.get_context("spawn")
    running: list[tuple[Any, Any]] = []
    try:
        for task in tasks:
            mine, theirs = context.Pipe(duplex=False)
            child = context.Process(target=client, args=(task, theirs), daemon=True)
            child.start()
            theirs.close()
            running.append((child, mine))
        return await _collected(tasks[0], [pipe for _, pipe in running])
    finally:
        for child, pipe in running:
            child.terminate()
            pipe.close()
        for child, _ in running:
            child.join(5)


async def _collected(task: Task, pipes: Sequence[Any]) -> list[Outcome]:
    """Read what the processes report until all have ended, and show the progress."""
    counts = [0] * len(pipes)
    found: list[Outcome] = []
    open_pipes = dict(enumerate(pipes))
    begin = monotonic()
    limit_s = (task.duration_s or 0) + task.delay_ms / 1_000 + EXTRA_S

    def progress() -> str:
        seconds, count = monotonic() - begin, sum(counts)
        share = seconds / task.duration_s if task.duration_s else 0.0
        done = min(BAR_CHARS, int(share * BAR_CHARS))
        bar = "#" * done + "." * (BAR_CHARS - done)
        return f"[{bar}] {count:,} messages, {count / max(seconds, 0.1):,.0f}/s"

    async with live(progress):
        while open_pipes and monotonic() - begin < limit_s:
            await asyncio.sleep(0.05)
            for number, pipe in list(open_pipes.items()):
                with suppress(EOFError, OSError):
                    while pipe.poll():
                        report = pipe.recv()
                        if isinstance(report, Outcome):
                            found.append(report)
                            open_pipes.pop(number, None)
                            break
                        counts[number] = report
                    else:
                        continue
                    continue
                open_pipes.pop(number, None)
    return found


# -- results ----------------------------------------------------------------------------------


def _print(tasks: Sequence[Task], outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    total = Histogram()
    for it in outcomes:
        total.merge(it.latencies)
    messages, size = sum(it.messages for it in outcomes), sum(it.bytes for it in outcomes)
    seconds = max((it.seconds for it in outcomes), default=0.0)
    errors = list(dict.fromkeys(text for it in outcomes for text in it.errors))
    facts: dict[str, Any] = {
        "clients": len(outcomes),
        "messages": messages,
        "seconds": round(seconds, 3),
        "per_second": round(messages / seconds, 1) if seconds else 0,
        "mib_per_second": round(size / seconds / (1 << 20), 2) if seconds else 0,
        "failed": sum(it.failures for it in outcomes),
        "client_cpu_percent": [round(100 * _share(it)) for it in outcomes],
        "late_max": max((it.late_max for it in outcomes), default=0),
        "verdict": verdict(tasks, outcomes),
    }
    _print_latencies(facts, total, as_json=as_json, errors=errors, note=HONEST)
    if not as_json:
        print_errors([*errors, HONEST])


def _print_latencies(
    facts: dict[str, Any], total: Histogram, *, as_json: bool, **more: Any
) -> None:
    """Print figures and the percentiles of a histogram; `more` is printed only as JSON."""
    percentiles = {f"p{share:g}": value / 1000 for share, value in total.percentiles().items()}
    if total.count:
        percentiles |= {"mean": total.total / total.count / 1000, "max": total.most / 1000}
    if as_json:
        ms = {name: round(value, 3) for name, value in percentiles.items()}
        print_json({**facts, "latency_ms": ms, **more})
        return
    print_facts(facts, as_json=False)
    say()
    rows: list[list[Cell]] = [[name, f"{value:,.3f}"] for name, value in percentiles.items()]
    print_rows(("Latency", "ms"), rows, as_json=False)


def _share(outcome: Outcome) -> float:
    return outcome.cpu_s / outcome.seconds if outcome.seconds else 0.0


def verdict(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> str:
    """Return what limits the result, or whether a rate was kept."""
    if len(outcomes) < len(tasks):
        return f"{len(tasks) - len(outcomes)} client processes did not end"
    if failed := sum(it.failures for it in outcomes):
        return f"{failed:,} messages failed: the figures are those of the others"
    if not any(it.messages for it in outcomes):
        return "there were no messages, so nothing was measured"
    is_busy = any(_share(it) >= BUSY_SHARE for it in outcomes)
    wanted = sum(it.rate or 0 for it in tasks)
    seconds = max(it.seconds for it in outcomes)
    rate = sum(it.messages for it in outcomes) / seconds if seconds else 0
    if wanted and rate < 0.95 * wanted:
        why = "the clients are at their limit" if is_busy else "the brokers or the network are"
        return f"the rate was not kept: {rate:,.0f} of {wanted:,.0f} per second; {why}"
    if is_busy:
        return "the clients are at their limit, not the brokers: give more --clients"
    return "the rate was kept" if wanted else "the brokers or the network limit the rate"
