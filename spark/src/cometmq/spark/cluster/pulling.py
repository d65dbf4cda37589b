# SPDX-License-Identifier: Apache-2.0
"""Builds the data source's pull requests and their filters."""

import re
from typing import Final

import msgspec

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Request
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.message.flags import PullSysFlag
from cometmq.remoting.names import ALL_TAGS
from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import ExpressionType, Options
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.options.where import parse_where

PULL_CODES: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)
"""Answers to a pull; any other code is an error."""

_LOOKS_LIKE_SQL: Final = re.compile(
    r"[<>=]|\b(AND|OR|NOT|IS|IN|BETWEEN|LIKE|CONTAINS)\b", re.IGNORECASE
)

_PUSHABLE_TAG: Final = re.compile(r"[^\s|*]+")


class Filter(msgspec.Struct, frozen=True):
    """A filter that brokers apply; `tags` are also compared here, because brokers only compare
    hashes.
    """

    expression: str = ALL_TAGS
    kind: ExpressionType = ExpressionType.TAG
    tags: tuple[str, ...] = ()

    @property
    def takes_all(self) -> bool:
        """Whether the filter passes every message."""
        return self.kind is ExpressionType.TAG and not self.tags


def filter_of(options: Options) -> Filter:
    """Parse the filter in the options; raise OptionError for SQL without `expressionType`."""
    text, kind = options.sub_expression.strip(), options.expression_type
    wanted = parse_where(options.where).tags
    if kind is ExpressionType.SQL92:
        if not text or text == ALL_TAGS:
            raise OptionError(
                "option `expressionType`=SQL92 requires a condition in `subExpression`"
            )
        return Filter(text, kind, wanted or ())
    if text in {"", ALL_TAGS}:
        return _filter_by_tags(wanted) if wanted else Filter()
    if wanted is not None:
        raise OptionError("give the tags either in `subExpression` or in `where`, not in both")
    tags = tuple(sorted({tag.strip() for tag in text.split("||") if tag.strip()}))
    if not tags:
        raise OptionError(f"option `subExpression`={text!r} names no tag")
    if any(_LOOKS_LIKE_SQL.search(tag) for tag in tags):
        raise OptionError(
            f"option `subExpression`={text!r} looks like SQL: set `expressionType`=SQL92"
        )
    return Filter(text, kind, tags)


def _filter_by_tags(tags: tuple[str, ...]) -> Filter:
    """Build a filter for exactly these tags. Brokers would parse some tags as expressions, so these
    are only compared here.
    """
    can_push = all(_PUSHABLE_TAG.fullmatch(tag) for tag in tags)
    expression = " || ".join(tags) if can_push else ALL_TAGS
    return Filter(expression, ExpressionType.TAG, tags)


def pull_request(
    queue: Queue, offset: int, count: int, *, group: str, message_filter: Filter
) -> Request:
    header = pull_header(
        queue,
        offset,
        count,
        group=group,
        expression=message_filter.expression,
        expression_type=message_filter.kind.value,
    )
    return Request(RequestCode.PULL_MESSAGE, header)


def pull_header(
    queue: Queue, offset: int, count: int, *, group: str, expression: str, expression_type: str
) -> PullMessage:
    """Build the header of a pull with a filter and without long polling."""
    return PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type=expression_type,
    )
