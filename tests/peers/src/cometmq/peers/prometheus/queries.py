# SPDX-License-Identifier: Apache-2.0
"""Lists the queries of dashboards and alerts in the form in which they always return data."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml
from monitoring.boards import BOARDS
from monitoring.prometheus import RULES

_TOKEN: Final = re.compile(
    r"""
    (?P<selector> \{ (?: [^}"] | "[^"]*" )* \} )
    | (?P<comparison> [=!<>]= | [<>] )
    | (?P<set> \b (?: or | unless ) \b (?: \s+ (?: on | ignoring ) \s* \( [^)]* \) )? )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_RATE_INTERVAL: Final = "30s"

CONDITIONAL: Final = (
    "CometmqMessagesRefused 0",
    "CometmqSubscriptionsDiffer 0",
    "CometmqDeadLetters 0",
)
"""The queries of alerts whose series exist only while the alert has a reason."""


class Query(NamedTuple):
    """A PromQL expression, and the panel or alert in which it occurs, with its number there."""

    name: str
    expr: str


def panel_queries() -> list[Query]:
    """Return the queries of all panels; they contain the variables of their dashboards."""
    return [
        Query(f"{board.uid}, {row.title}: {panel.title} {number}", query.expr)
        for board in BOARDS
        for row in board.rows
        for panel in row.panels
        for number, query in enumerate(panel.queries)
    ]


def with_values(expr: str, **values: str) -> str:
    """Replace a dashboard's variables by regular expressions, by default with one for all values.

    The rate interval is short, so the scrape interval must be at most 7 s.
    """
    expr = expr.replace("$__rate_interval", _RATE_INTERVAL)
    return re.sub(
        r"\$(cluster|broker|topic|group|namespace)\b",
        lambda found: values.get(found[1], ".*"),
        expr,
    )


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_queries() -> list[Query]:
    """Return the operands of all alerts: an alert has data if each of its operands has data."""
    return [
        Query(f"{rule['alert']} {number}", expr)
        for rule in alert_rules()
        for number, expr in enumerate(operands(rule["expr"]))
    ]


def operands(expr: str) -> list[str]:
    """Split an alert's expression at `or` and `unless`, and keep its comparisons from filtering.

    A comparison returns 0 or 1 instead (`bool`), so operands have data although nothing is wrong.
    """
    found, depth = [""], 0
    for kind, text in _tokens(expr):
        depth += (text == "(") - (text == ")")
        if kind == "set" and depth == 0:
            found.append("")
        else:
            found[-1] += f"{text} bool" if kind == "comparison" else text
    return [one.strip() for one in found]


def _tokens(expr: str) -> Iterator[tuple[str | None, str]]:
    return ((found.lastgroup, found[0]) for found in _TOKEN.finditer(expr))
