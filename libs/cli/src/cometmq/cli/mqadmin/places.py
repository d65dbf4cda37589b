# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that decode ids or show entries of consume queues."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import Family, Namesrv, Topic
from cometmq.cli.mqadmin.text import java_text
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing
from cometmq.remoting.bodies.stats import ConsumeQueueEntries, ConsumeQueueEntry

app = Family()

_ADDRESS_BYTES: Final = {16: 4, 28: 16}
"""The length of the address in a unique key, by the length of the key."""
_PROCESS_BYTES: Final = 6
_ENTRY_FIELDS: Final = ("physicOffset", "physicSize", "tagsCode")
_LINE: Final = "=" * 38


class Origin(NamedTuple):
    """The machine and the time in a unique key."""

    ip: str
    date: datetime


@app.named("DecodeMessageId")
def decode_message_id(
    message_id: Annotated[str, typer.Option("-i", "--messageId", help="Unique key of a message.")],
    _namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Decode the machine and time in a unique key."""
    try:
        origin = decoded(message_id, now_ms=wall_ms())
    except ValueError as error:
        raise wrong_usage(f"{message_id} is not a unique key: {error}") from error
    if as_json:
        moment = origin.date.astimezone(UTC).isoformat(timespec="milliseconds")
        print_json({"ip": origin.ip, "date": moment.replace("+00:00", "Z")})
        return
    text = f"{origin.date:%Y-%m-%d#%H:%M:%S}:{origin.date.microsecond // 1000:03}"
    say(f"ip={origin.ip}\ndate={text}")


def decoded(text: str, *, now_ms: int) -> Origin:
    """Return the content of a unique key, whose time counts from the start of a local month.

    The month is the current one, or the previous one if the time would be in the future.
    """
    data = bytes.fromhex(text)
    if len(data) not in _ADDRESS_BYTES or len(text) != 2 * len(data):
        raise ValueError("it has 32 or 56 hex digits")
    address_bytes = _ADDRESS_BYTES[len(data)]
    begin = address_bytes + _PROCESS_BYTES
    elapsed = timedelta(milliseconds=int.from_bytes(data[begin : begin + 4], "big"))
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone()
    month = _month(now)
    if month + elapsed >= now:
        month = _month(month - timedelta(days=1))
    return Origin(str(ip_address(data[:address_bytes])), (month + elapsed).astimezone())


def _month(moment: datetime) -> datetime:
    """Return the start of a local time's month; the UTC offset may differ from today's."""
    return datetime(moment.year, moment.month, 1).astimezone()  # local time


@app.named("queryCq")
def query_cq(
    topic: Topic,
    queue_id: Annotated[int, typer.Option("-q", "--queue", min=0, help="Number of the queue.")],
    index: Annotated[int, typer.Option("-i", "--index", min=0, help="Index of the first entry.")],
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="Number of entries.")] = 10,
    broker: Annotated[
        str | None, typer.Option("-b", "--broker", help="Address of the broker.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("-g", "--consumer", help="Group whose filter is applied.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show entries of a consume queue and whether a group's filter matches them."""

    async def question(admin: AdminClient) -> ConsumeQueueEntries:
        address = broker or await _first_master(admin, topic)
        chosen = admin.broker(address)
        return await chosen.queue_entries(topic, queue_id, index, count=count, group=group)

    found = ask(namesrv, question)
    if as_json:
        print_json(found)
    else:
        _print_entries(found, index)


async def _first_master(admin: AdminClient, topic: str) -> str:
    for data in (await admin.route(topic)).broker_datas:
        if MASTER_ID in data.broker_addrs:
            return data.broker_addrs[MASTER_ID]
    raise BrokerMissing(f"no master has the topic {topic}")


def _print_entries(found: ConsumeQueueEntries, index: int) -> None:
    if found.subscription_data is not None:
        text = msgspec.json.format(msgspec.json.encode(found.subscription_data), indent=2)
        say(f"Subscription data: \n{text.decode()}\n{_LINE}")
    if found.filter_data is not None:
        say(f"Filter data: \n{found.filter_data}\n{_LINE}")
    say(f"Queue data: \nmax: {found.max_queue_index}, min: {found.min_queue_index}\n{_LINE}")
    for number, entry in enumerate(found.queue_data, index):
        say(f"idx: {number}\n{_entry(entry)}\n{_LINE}")


def _entry(entry: ConsumeQueueEntry) -> str:
    numbers = [f"{name}={value}" for name, value in java_text.fields(entry, _ENTRY_FIELDS)]
    word = java_text.word
    filtered = f"extendDataJson='{word(entry.extend_data_json)}', bitMap='{word(entry.bit_map)}'"
    judged = f"eval={word(entry.eval)}, msg='{word(entry.msg)}'"
    return f"ConsumeQueueData{{{', '.join(numbers)}, {filtered}, {judged}}}"
