# SPDX-License-Identifier: Apache-2.0
"""Decoders of small files, texts and bodies that operators, applications or other programs write.

Each target turns the documented error of its decoder into RemoteProtocolError.
"""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cometmq.client.consume.queues.offset_file import _table
from cometmq.client.message import Message
from cometmq.client.trace import CorruptTrace, decode_trace, encode_record
from cometmq.console.login.tokens import parse_tokens
from cometmq.ha.epochs import EpochsDamaged, decode_epochs, encode_epochs
from cometmq.ha.proof import parse_keys
from cometmq.ha.record import RecordDamaged, decode_record
from cometmq.ha.record import encode_record as encode_group_record
from cometmq.ha.state import StateDamaged, StateFile
from cometmq.insight import decode as bodies
from cometmq.insight import definitions as form
from cometmq.insight import message_json
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.errors import CometError, RemoteProtocolError, SettingsError
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.recall_handle import parse_recall_handle
from cometmq.runtime.acl.documents import Document


@contextmanager
def _refusing(*errors: type[Exception]) -> Any:
    try:
        yield
    except errors as error:
        raise RemoteProtocolError(_reason(str(error))) from error


def _reason(text: str) -> str:
    """Return the reason of a refusal, which must be one line."""
    assert text.strip(), "a refusal without a reason"
    assert "\n" not in text, "a refusal of several lines"
    return text


def epoch_file(data: bytes) -> None:
    with _refusing(EpochsDamaged):
        history = decode_epochs(data, place="here")
    assert decode_epochs(encode_epochs(history), place="here") == history


def group_record(data: bytes) -> None:
    with _refusing(RecordDamaged):
        found = decode_record(data, place="here")
    assert decode_record(encode_group_record(found), place="here") == found


def member_state(data: bytes) -> None:
    files: Any = SimpleNamespace(read=lambda _: data)
    with _refusing(StateDamaged):
        StateFile(Path("/store"), files).load("orders", 0)


def group_keys(data: bytes) -> None:
    with _refusing(SettingsError):
        parse_keys(data, "groupKeyFile=here")


def accounts_file(data: bytes) -> None:
    with _refusing(ValueError):
        Document(str(data, "utf-8")).read()


def token_file(data: bytes) -> None:
    with _refusing(SettingsError):
        parse_tokens(str(data, "utf-8", "replace"), "here")


def local_offsets(data: bytes) -> None:
    """Read the offsets of a broadcasting member."""
    table = _table(data)
    assert _table(encode_json(QueueOffsetTable(dict(table)))) == table


def trace_body(data: bytes) -> None:
    with _refusing(CorruptTrace):
        found = decode_trace(data)
    assert len(decode_trace("".join(map(encode_record, found)))) == len(found)


def shown_body(data: bytes) -> None:
    """Show a body in every form, as console and commands do; no body is refused."""
    for wanted in bodies.Format:
        if wanted is not bodies.Format.PROTOBUF:
            shown = bodies.decode(data, wanted, chars_max=2_000)
            assert len(shown.text) <= 2_000, "more is shown than wanted"


def message_line(data: bytes) -> None:
    """Read a line of `cometmq produce --json`."""
    with _refusing(CometError, ValueError):
        message_json.parse(data, defaults=Message("T", b""))


def definitions(data: bytes) -> None:
    with _refusing(CometError, ValueError):
        form.decode(data)


def ids(data: bytes) -> None:
    """Read the texts that name a message: its id and the handle of a recall."""
    text = str(data, "utf-8", "replace")
    with _refusing(ValueError):
        if len(data) % 2:
            parse_recall_handle(text)
        else:
            parse_offset_message_id(text)


SMALL_TARGETS: Final = {
    target.__name__: target
    for target in (
        epoch_file,
        group_record,
        member_state,
        group_keys,
        accounts_file,
        token_file,
        local_offsets,
        trace_body,
        shown_body,
        message_line,
        definitions,
        ids,
    )
}
