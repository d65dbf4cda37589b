# SPDX-License-Identifier: Apache-2.0
"""Checks whether the sender of a request has the right that the catalogue demands for its code.

The order is RocketMQ's: a global white address, a known access key, a white address of the account,
the signature, sending traces, the administrator role, the right to each topic and group that the
request names.

Compatibility: these checks are stricter than in RocketMQ 4.9.4:

- a batch (320) is checked like a single message, and a lite pull (361) like a pull;
- a message to a group's retry topic needs SUB on that group, not on a group that the sender names;
- a reply (324, 325) to a topic other than a cluster's reply topic needs PUB, because it is stored;
- an account's default rights cover neither the topics that hold messages of all topics
  (`SHARED_TOPICS`) nor the group that checks transactions;
- codes that show or change accounts, move groups, deliver messages, or delete need an
  administrator;
- requests that change something, or show a consumer's stack, need a right to the topic or group,
  as in RocketMQ 5 (`NEEDS_OF_5`, and the handler of END_TRANSACTION); to register a producer group
  needs PUB on some topic, and to send traces needs any right.

`aclRocketmq4Rights=true` restores 4.9's rules for the last item.

Hot path: with access control, `AccessControl.check` runs once per request. The budget for a
signed send is 10 us, half of which is spent on decoding the header again as text
(bench/micro/bench_acl.py). Without access control, `check` is not called.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cometmq.remoting.bodies.heartbeat import Heartbeat
from cometmq.remoting.bodies.locks import LockBatch
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS, table
from cometmq.remoting.commands.send import SendMessage, SendMessageV2
from cometmq.remoting.commands.table import Access
from cometmq.remoting.errors import RemoteProtocolError, ServerError
from cometmq.remoting.names import (
    INNER_PRODUCER_GROUP,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    retry_topic,
)
from cometmq.remoting.signature import ACCESS_KEY, FORWARDED, SIGNATURE
from cometmq.remoting.transport.bodies import decoded_by_hook
from cometmq.remoting.transport.flow.places import ACCOUNT
from cometmq.runtime.acl import errors
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.runtime.acl.permissions import Right, resource_text

T = TypeVar("T")
Need = tuple[str, Right]
"""The right that a request needs, and the topic; for a group, this is the group's retry topic."""
Find = Callable[[Call[Any]], Iterator[Need]]


def _sending(call: Call[SendMessage | SendMessageV2]) -> Iterator[Need]:
    topic = call.header.topic
    yield topic, Right.SUB if topic.startswith(RETRY_PREFIX) else Right.PUB


def _replying(call: Call[SendMessage | SendMessageV2]) -> Iterator[Need]:
    if not call.header.topic.endswith(REPLY_SUFFIX):
        yield from _sending(call)


def _decoded(type_: type[T], call: Call[Any]) -> T:
    try:
        return decoded_by_hook(type_, call)
    except RemoteProtocolError as error:
        raise ServerError(str(error)) from error


def _heartbeat(call: Call[Any]) -> Iterator[Need]:
    beat = _decoded(Heartbeat, call)
    for consumer in beat.consumer_data_set:
        yield retry_topic(consumer.group_name), Right.SUB
        for subscription in consumer.subscription_data_set:
            yield subscription.topic, Right.SUB


def _locking(call: Call[Any]) -> Iterator[Need]:
    batch = _decoded(LockBatch, call)
    yield retry_topic(batch.consumer_group), Right.SUB
    for topic in {queue.topic for queue in batch.mq_set}:
        yield topic, Right.SUB


def _consuming(fields: Sequence[str]) -> Find:
    def find(call: Call[Any]) -> Iterator[Need]:
        for field in fields:
            name = getattr(call.header, field)
            if name is not None:
                yield name if field == "topic" else retry_topic(name), Right.SUB

    return find


def _finder(access: Access) -> Find | None:
    """Return the function that finds the topics and groups in requests with this row, if any."""
    if access.need is table.Need.CONSUME:
        return _consuming(access.fields)
    return {
        table.Need.SEND: _sending,
        table.Need.REPLY: _sending,
        table.Need.HEARTBEAT: _heartbeat,
        table.Need.LOCKS: _locking,
    }.get(access.need)


_ACCESS: Final = {
    code: command.access
    for code, command in COMMANDS.items()
    if table.Service.BROKER in command.services
}
_FINDERS: Final = {
    code: find for code, access in _ACCESS.items() if (find := _finder(access)) is not None
}

NEEDS: Final[Mapping[int, Find]] = {
    code: _replying if access is table.REPLY else _FINDERS[code]
    for code, access in _ACCESS.items()
    if code in _FINDERS and not access.is_of_5
}
"""Per request code, the function that finds the rights that a request needs under 4.9's rules.
Codes that are missing here need only a signature, unless they need an administrator.

VIEW_MESSAGE_BY_ID and CONSUMER_SEND_MSG_BACK name a position in the log, and QUERY_CONSUME_QUEUE
lists positions. With the setting `aclCheckStoredTopic`, their handlers also demand SUB on the topic
of the messages at these positions.
"""

NEEDS_OF_5: Final[Mapping[int, Find]] = {
    code: find
    for code, find in _FINDERS.items()
    if _ACCESS[code].is_of_5 or _ACCESS[code] is table.REPLY
}
"""Rights that RocketMQ 5 demands for requests that need only a signature in 4.9.

END_TRANSACTION names a half message by its position, so its handler demands PUB on the topic. A
reply is pushed to a client whatever its topic is, so its handler demands PUB on the cluster's reply
topic.
"""

SIGNED_TIME_CODES: Final = frozenset(
    code for code in _ACCESS if "born_timestamp" in COMMANDS[code].header_type.__struct_fields__
)
"""Requests whose signed header contains the sender's time; no other request of 4.9 has one."""

UNCHANGING: Final = frozenset(code for code, it in _ACCESS.items() if it is table.SIGNED)
"""Requests that every account may make, as in RocketMQ, because they change nothing."""

ADMIN_CODES: Final = frozenset(code for code, it in _ACCESS.items() if it is table.ADMIN)
ADMIN_CODES_OF_5: Final = frozenset(code for code, it in _ACCESS.items() if it is table.ADMIN_OF_5)
"""Requests that change something for which there is no topic or group: they need an administrator,
while 4.9 demands only a signature.
"""


@dataclass(frozen=True)
class Rules:
    """The settings of access control that change which requests are allowed."""

    is_rocketmq_4: bool = False
    """Whether RocketMQ 4.9's rules apply where those of 5 are stricter."""
    signed_age_ms_max: int = 0
    """The maximum age of a send's signed time; 0 accepts any."""


NO_RULES: Final = Rules()


class AccessControl:
    """Checks requests against the newest accounts."""

    def __init__(
        self,
        accounts: Accounts,
        own: Account | None = None,
        *,
        clock_ms: Callable[[], int],
        rules: Rules = NO_RULES,
    ) -> None:
        """`own` is the account used by programs in this process; it remains valid when the files
        change. `clock_ms` is wall-clock time.
        """
        self.accounts = accounts
        self._clock_ms = clock_ms
        self.rules = rules
        self._own = {} if own is None else {own.access_key: own}
        self.refused_count = 0

    def check(self, _context: object, call: Call[Any]) -> None:
        """Raise ServerError if the request is not allowed."""
        try:
            self._check(call)
        except ServerError:
            self.refused_count += 1
            raise

    def known(self) -> dict[str, Account]:
        """Return all valid accounts by access key, including that of programs in this process."""
        return {**self._own, **self.accounts.by_key}

    def account_name(self, call: Call[Any]) -> str | None:
        """Return the access key of a checked call; None if its address alone grants all rights."""
        if not call.head or self._is_white(call):
            return None
        account = self._account(call, call.ext)
        return None if account is None else account.access_key

    def may_stay(
        self, before: Accounts, account: str | None, host: bytes, group: str, *, consumes: bool
    ) -> bool:
        """Return whether a client's group may stay registered now that the accounts have changed.

        `before` are the previous accounts. `account` is the access key with which the group was
        registered; None means that the client's address granted all rights.
        """
        if account is None:
            its = (it.white_addresses for it in self.accounts.by_key.values())
            return any(it.matches(host) for it in (*self.accounts.white_addresses, *its))
        now, old = self.known().get(account), before.by_key.get(account)
        if now is None or (old is not None and old.config.secret_key != now.config.secret_key):
            return False
        if now.is_admin and not now.rights:
            return True
        if consumes:
            right = now.right_to(retry_topic(group))
            return bool(right & Right.SUB) and not right & Right.DENY
        return self.rules.is_rocketmq_4 or now.may_produce or group == INNER_PRODUCER_GROUP

    def reader(self, call: Call[Any]) -> Callable[[str], bool] | None:
        """Return a function that tells whether the sender of a checked call may consume a topic,
        and counts refusals; None if it may consume all topics.

        This is for requests whose topic is known only once a message has been read.
        """
        return self._holder(call, Right.SUB)

    def writer(self, call: Call[Any]) -> Callable[[str], None] | None:
        """Return a function that raises ServerError, and counts the refusal, unless the sender of a
        checked call has PUB on a topic; None if it may send to all topics.

        This is for requests whose header does not name the topic; RocketMQ 5 checks them, too.
        """
        may_write = self._holder(call, Right.PUB)
        if may_write is None:
            return None

        def check(topic: str) -> None:
            if not self.rules.is_rocketmq_4 and not may_write(topic):
                raise errors.no_permission(resource_text(topic), is_default=True)

        return check

    def _holder(self, call: Call[Any], needed: Right) -> Callable[[str], bool] | None:
        account = None if self._is_white(call) else self._account(call, call.ext)
        if account is None or (account.is_admin and not account.rights):
            return None

        def has_right(topic: str) -> bool:
            right = account.right_to(topic)
            is_allowed = bool(right & needed) and not right & Right.DENY
            self.refused_count += not is_allowed
            return is_allowed

        return has_right

    def _check(self, call: Call[Any]) -> None:
        if self._is_white(call):
            return
        ext = call.ext  # each access decodes it again
        account = self._account(call, ext)
        if account is None:
            return
        if not account.signer.has_signed(ext, call.body):
            raise errors.wrong_signature(account.access_key)
        call.peer.state[ACCOUNT] = account.access_key
        if self.rules.signed_age_ms_max:
            self._check_age(account, call)
        self._check_rights(account, call)

    def _check_age(self, account: Account, call: Call[Any]) -> None:
        """Refuse a send that was signed too long ago, or by a clock too far ahead."""
        if call.code not in SIGNED_TIME_CODES:
            return
        age_ms = self._clock_ms() - call.header.born_timestamp
        if abs(age_ms) > self.rules.signed_age_ms_max:
            raise errors.too_old(account.access_key, age_ms, self.rules.signed_age_ms_max)

    def _check_rights(self, account: Account, call: Call[Any]) -> None:
        code, is_4 = call.code, self.rules.is_rocketmq_4
        find = NEEDS.get(code) if is_4 else NEEDS_OF_5.get(code) or NEEDS.get(code)
        needs = list(find(call)) if find is not None else []
        if (TRACE_TOPIC, Right.PUB) in needs and (is_4 or account.may_trace):
            return
        is_for_admins = code in ADMIN_CODES or (not is_4 and code in ADMIN_CODES_OF_5)
        if is_for_admins and not account.is_admin:
            raise errors.not_admin(code, account.access_key)
        if account.is_admin and not account.rights:
            return
        for resource, needed in needs:
            right = account.right_to(resource)
            if right & Right.DENY or not right & needed:
                is_default = resource not in account.rights
                raise errors.no_permission(resource_text(resource), is_default=is_default)
        if code == Code.HEART_BEAT and not is_4 and not account.may_produce:
            _check_producers(call)

    def _account(self, call: Call[Any], ext: Mapping[str, str]) -> Account | None:
        """Return the account whose rights apply, or None if its address alone grants all rights."""
        access_key = ext.get(ACCESS_KEY)
        if access_key is None:
            raise errors.no_access_key()
        account = self.accounts.by_key.get(access_key) or self._own.get(access_key)
        if account is None:
            raise errors.unknown_access_key(access_key)
        if account.white_addresses.matches(call.peer.host) and not _is_of_another(ext):
            return None
        return account

    def _is_white(self, call: Call[Any]) -> bool:
        host = call.peer.host
        if not any(addresses.matches(host) for addresses in self.accounts.white_addresses):
            return False
        return not (call.head and _is_of_another(call.ext))


def _is_of_another(ext: Mapping[str, str]) -> bool:
    """Return whether another broker has forwarded this request, and a client has signed it.

    For such a request, the white addresses must not count: the peer's address is the broker's. A
    forwarded request without a signature was allowed at the other broker by the client's address.
    """
    return FORWARDED in ext and SIGNATURE in ext


def _check_producers(call: Call[Any]) -> None:
    """Raise ServerError if a heartbeat has producer groups, but its account may send to no topic:
    the broker asks members of producer groups how transactions ended.

    The group of the inner producer, which every Java consumer contains, is ignored.
    """
    for producer in _decoded(Heartbeat, call).producer_data_set:
        if producer.group_name != INNER_PRODUCER_GROUP:
            resource = f"producer group:{producer.group_name}"
            raise errors.no_permission(resource, is_default=True)
