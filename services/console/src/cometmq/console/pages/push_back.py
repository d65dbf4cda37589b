# SPDX-License-Identifier: Apache-2.0
"""Push-back: the requests that brokers refuse or delay, with clients, reasons and remedies."""

from typing import Any, Final

import msgspec

from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.insight.model import BrokerState, Refusal, Snapshot, TopicKind, Unknown, known
from cometmq.insight.rules.clients import advice_for, question_of, unexpected_refusals
from cometmq.insight.views.view import Column, address
from cometmq.remoting.codes import ResponseCode, request_name
from cometmq.remoting.integers import whole
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.refusals import is_access_refusal, plain_remark

CLOSED_MAX: Final = 10
"""The most topics without write permission that are named."""


def _response_name(code: int) -> str:
    is_known = code in ResponseCode._value2member_map_
    return f"{ResponseCode(code).name} ({code})" if is_known else str(code)


async def overview(view: View) -> Shown:
    """Show the refusals that brokers report, and the requests that wait at each broker now."""
    snapshot = await view.snapshot()
    refusals = unexpected_refusals(snapshot)
    columns: list[Column[Refusal]] = [
        Column("last", "Last", lambda it: it.last_ms, "moment"),
        Column(
            "request",
            "Request",
            lambda it: f"{request_name(it.code)} at {it.broker}",
            "id",
        ),
        Column("subject", "About", lambda it: it.subject, "id"),
        Column("peer", "Of whom", lambda it: it.peer, "id"),
        Column(
            "remark",
            "Answer",
            lambda it: f"{_response_name(it.response)}: {plain_remark(it.remark)}",
            "prose",
            tone=lambda _: "warn",
        ),
        Column(
            "advice",
            "What helps",
            lambda it: advice_for(it.code, it.response, it.remark),
            "prose",
            link=lambda it: _accounts(it) if is_access_refusal(it.remark) else "",
        ),
        Column("count", "Times", lambda it: it.count, "number"),
    ]
    table = view.table(
        known(refusals),
        columns,
        default="-last",
        search=lambda it: f"{it.broker} {it.peer} {it.subject} {it.remark} {request_name(it.code)}",
    )
    states = _states(snapshot)
    shown = view.table(
        states, _STATES, default="-waiting", search=lambda it: str(it["broker"]), name="b"
    )
    closed = [
        it.name
        for it in known(snapshot.topics)
        if it.kind is TopicKind.NORMAL and not it.perm & Perm.WRITE
    ]
    told = (
        refusals
        if isinstance(refusals, Unknown)
        else [
            msgspec.structs.asdict(it) | {"advice": advice_for(it.code, it.response, it.remark)}
            for it in refusals
        ]
    )
    return Shown(
        {"refusals": told, "brokers": states},
        "cometmq top refused",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {
            "table": table,
            "states": shown,
            "closed": [(it, "," if it != closed[-1] else "") for it in closed[:CLOSED_MAX]],
            "closed_more": len(closed[CLOSED_MAX:]),
            "reason": refusals if isinstance(refusals, Unknown) else None,
        },
    )


def _accounts(refusal: Refusal) -> str:
    """Return the address of the page of accounts, with a question about the right that the request
    lacked.
    """
    asked = question_of(refusal.code, refusal.remark)
    if asked is None:
        return address("/accounts")
    return address("/accounts", who=asked.account, may=asked.deed, subject=asked.name)


def _states(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the reasons for which requests wait at each master; RocketMQ's brokers report these,
    too.
    """
    found: list[dict[str, Any]] = []
    for broker in snapshot.brokers:
        if not broker.is_master:
            continue
        state = broker.state
        if isinstance(state, BrokerState):
            figures = state.figures
            found.append(
                {
                    "broker": broker.name,
                    "refuses": figures.writes_refused or None,
                    "waiting": figures.incoming.waiting,
                    "wait_s": figures.incoming.wait_ms / 1_000,
                    "reads": figures.outgoing.waiting,
                    "failed": _count(state.runtime.get("putMessageFailedTimes")),
                }
            )
        else:
            names = ("refuses", "waiting", "wait_s", "reads", "failed")
            found.append({"broker": broker.name, **dict.fromkeys(names, state)})
    return found


def _count(text: str | None) -> int | Unknown:
    number = whole(text or "")
    return Unknown("the broker does not count them") if number is None else number


_STATES: Final[list[Column[dict[str, Any]]]] = [
    Column("broker", "Broker", lambda it: it["broker"]),
    Column("refuses", "Refuses messages because", lambda it: it["refuses"], tone=lambda _: "bad"),
    Column("waiting", "Sends waiting", lambda it: it["waiting"], "number"),
    Column("wait_s", "The oldest for", lambda it: it["wait_s"], "duration"),
    Column("reads", "Reads waiting", lambda it: it["reads"], "number"),
    Column(
        "failed",
        "Sends its store refused",
        lambda it: it["failed"],
        "number",
        help="Since its start, as while its disk is full; requests that it refused for another"
        " reason are in the list above",
    ),
]

PAGES: Final = (Page("/push-back", "Push-back", "push_back.html", overview, menu="Push-back"),)
