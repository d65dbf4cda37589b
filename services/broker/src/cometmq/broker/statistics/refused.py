# SPDX-License-Identifier: Apache-2.0
"""The requests that the broker refused lately, by peer, subject and reason (pure), and how many it
refused since the start.

Invariant: the table is bounded; the least recently used entry is evicted first. Peers choose the
names in it, so their length is bounded, too.
"""

from collections import Counter
from typing import Any, Final

from cometmq.remoting.bodies.overview import RefusedRequests
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.refusals import is_access_refusal
from cometmq.remoting.signature import ACCESS_KEY

ENTRIES_MAX: Final = 200
PAUSE_MS: Final = 600_000
"""After a pause of this length, the count of an entry begins again: the earlier fault has ended."""
SUBJECT_CHARS_MAX: Final = 255
REMARK_CHARS_MAX: Final = 500
ACCOUNT_CHARS_MAX: Final = 100
_ANSWERS: Final = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED, ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)  # fmt: skip
"""Codes of ordinary answers, such as those of an empty queue, which are not counted."""
_ASKED_BY_TOOLS: Final = frozenset(code for code, it in COMMANDS.items() if it.may_miss)


class RecentRefusals:
    """Counts refusals by request, response and subject; refusals of access control also by remark,
    because it differs between accounts.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int, str, str], RefusedRequests] = {}
        self.counts: Counter[tuple[int, int]] = Counter()
        """All refusals since the start, by request code and response code."""

    def note(
        self, call: Call[Any], response: int, remark: str | None, now_ms: int, topic: str = ""
    ) -> None:
        """Count a refusal, in about 2 us; `topic` is given if the call's header was not decoded."""
        if response in _ANSWERS or call.code in _ASKED_BY_TOOLS:
            return
        self.counts[call.code, response] += 1
        subject = _subject(call.header) or topic[:SUBJECT_CHARS_MAX]
        refused = _access_refused(call, remark or "")
        key = (call.code, response, subject, refused)
        entry = self._entries.pop(key, None)
        if entry is None or now_ms - entry.last_ms > PAUSE_MS:
            if len(self._entries) >= ENTRIES_MAX:
                del self._entries[next(iter(self._entries))]
            entry = RefusedRequests(call.code, response, subject, "", "", 0, now_ms, now_ms)
        entry.count += 1
        entry.last_ms = now_ms
        entry.peer = call.peer.address
        entry.remark = refused or (remark or "")[:REMARK_CHARS_MAX]
        self._entries[key] = entry  # the newest is last

    def newest(self) -> list[RefusedRequests]:
        """Return all entries, the newest first."""
        return list(self._entries.values())[::-1]


def _access_refused(call: Call[Any], remark: str) -> str:
    """Return the remark if access control has refused the request, with the account's name added if
    it is not in the remark; empty if another check refused it.
    """
    if not is_access_refusal(remark):
        return ""
    key = call.ext.get(ACCESS_KEY, "")[:ACCOUNT_CHARS_MAX]
    text = f"{remark} (account {key})" if key and key not in remark else remark
    return text[:REMARK_CHARS_MAX]


def _subject(header: object) -> str:
    """Return the topic or the group that a request is about; empty if it names none."""
    for name in ("topic", "consumer_group", "group", "group_name", "producer_group"):
        text = getattr(header, name, None)
        if isinstance(text, str) and text:
            return text[:SUBJECT_CHARS_MAX]
    return ""
