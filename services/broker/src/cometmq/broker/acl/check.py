# SPDX-License-Identifier: Apache-2.0
"""The rights that each request needs, all in one place.

The order is RocketMQ's: a global white address, a known access key, a white address of the account,
the signature, sending traces, the administrator role, the right to each topic and group that the
request names.

Compatibility: these checks are stricter than in RocketMQ 4.9.4:

- a batch (320) is checked like a single message, and a lite pull (361) like a pull;
- a message to a group's retry topic needs SUB on that group, not on a group that the sender names;
- a reply (324, 325) to a topic other than a cluster's reply topic needs PUB, because it is stored;
- an account's default rights cover neither the topics that hold messages of all topics
  (``SHARED_TOPICS``) nor the group that checks transactions;
- the codes in ``ADMIN_CODES`` beyond RocketMQ's five need an administrator, for example requests
  that show or change accounts.

Hot path: with access control, ``AccessControl.check`` runs once per request. The budget for a
signed send is 10 us, half of which is spent on decoding the header again as text
(bench/micro/bench_acl.py). Without access control, `check` is not called.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cometmq.broker.acl import errors
from cometmq.broker.acl.accounts import Account, Accounts
from cometmq.broker.acl.permissions import Right, resource_text
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands.clients import GetConsumerListByGroup, UnregisterClient
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.queries import QueryMessage
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessage, SendMessageV2
from cometmq.remoting.errors import RemoteProtocolError, ServerError
from cometmq.remoting.names import REPLY_SUFFIX, RETRY_PREFIX, TRACE_TOPIC, retry_topic
from cometmq.remoting.signature import ACCESS_KEY

Need = tuple[str, Right]
"""A topic, or a group given by its retry topic, and the right that the request needs."""


def _sending(call: Call[SendMessage | SendMessageV2]) -> Iterator[Need]:
    topic = call.header.topic
    yield topic, Right.SUB if topic.startswith(RETRY_PREFIX) else Right.PUB


def _replying(call: Call[SendMessage | SendMessageV2]) -> Iterator[Need]:
    if not call.header.topic.endswith(REPLY_SUFFIX):
        yield from _sending(call)


def _sending_back(call: Call[ConsumerSendMsgBack]) -> Iterator[Need]:
    yield retry_topic(call.header.group), Right.SUB


def _pulling(call: Call[PullMessage]) -> Iterator[Need]:
    yield call.header.topic, Right.SUB
    yield retry_topic(call.header.consumer_group), Right.SUB


def _querying(call: Call[QueryMessage]) -> Iterator[Need]:
    yield call.header.topic, Right.SUB


def _heartbeat(call: Call[Any]) -> Iterator[Need]:
    try:
        beat = decode_json(Heartbeat, call.body)
    except RemoteProtocolError as error:
        raise ServerError(str(error)) from error
    for consumer in beat.consumer_data_set:
        yield retry_topic(consumer.group_name), Right.SUB
        for subscription in consumer.subscription_data_set:
            yield subscription.topic, Right.SUB


def _unregistering(call: Call[UnregisterClient]) -> Iterator[Need]:
    if call.header.consumer_group is not None:
        yield retry_topic(call.header.consumer_group), Right.SUB


def _listing_members(call: Call[GetConsumerListByGroup]) -> Iterator[Need]:
    yield retry_topic(call.header.consumer_group), Right.SUB


def _committing(call: Call[UpdateConsumerOffset]) -> Iterator[Need]:
    yield retry_topic(call.header.consumer_group), Right.SUB
    yield call.header.topic, Right.SUB


NEEDS: Final[Mapping[int, Callable[[Call[Any]], Iterator[Need]]]] = {
    Code.SEND_MESSAGE: _sending,
    Code.SEND_MESSAGE_V2: _sending,
    Code.SEND_BATCH_MESSAGE: _sending,
    Code.SEND_REPLY_MESSAGE: _replying,
    Code.SEND_REPLY_MESSAGE_V2: _replying,
    Code.CONSUMER_SEND_MSG_BACK: _sending_back,
    Code.PULL_MESSAGE: _pulling,
    Code.LITE_PULL_MESSAGE: _pulling,
    Code.QUERY_MESSAGE: _querying,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregistering,
    Code.GET_CONSUMER_LIST_BY_GROUP: _listing_members,
    Code.UPDATE_CONSUMER_OFFSET: _committing,
}
"""The rights needed by each request code; all other requests need only a signature.

VIEW_MESSAGE_BY_ID and CONSUMER_SEND_MSG_BACK name a position in the log. With the setting
`aclCheckStoredTopic`, their handlers also demand SUB on the topic of the message at that position.
"""

ADMIN_CODES: Final = frozenset(
    {
        # of RocketMQ
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP,
        # ours: accounts and their secrets
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        Code.DELETE_ACL_CONFIG,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
        # ours: codes that move groups, deliver messages, or delete
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.CLONE_GROUP_OFFSET,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.RESUME_CHECK_HALF_MESSAGE,
        Code.ASK_TRANSACTION_STATE,
        Code.SET_TRANSACTION_ASIDE,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC,
        Code.DELETE_EXPIRED_COMMITLOG,
    }
)


class AccessControl:
    """Checks requests against the newest accounts."""

    def __init__(self, accounts: Accounts, own: Account | None = None) -> None:
        """`own` is the account used by programs in this process; it remains valid when the files
        change.
        """
        self.accounts = accounts
        self._own = {} if own is None else {own.access_key: own}
        self.refused_count = 0

    def check(self, _context: object, call: Call[Any]) -> None:
        """Raise ServerError if the request is not allowed."""
        try:
            self._check(call)
        except ServerError:
            self.refused_count += 1
            raise

    def reader(self, call: Call[Any]) -> Callable[[str], bool]:
        """Return a function that tells whether the sender of a checked call may consume a topic.

        This is for requests whose topic is known only once a message has been read. Refusals are
        counted.
        """
        account = None if self._is_white(call) else self._account(call, call.ext)

        def may_read(topic: str) -> bool:
            if account is None or (account.is_admin and not account.rights):
                return True
            right = account.right_to(topic)
            is_allowed = bool(right & Right.SUB) and not right & Right.DENY
            self.refused_count += not is_allowed
            return is_allowed

        return may_read

    def _check(self, call: Call[Any]) -> None:
        if self._is_white(call):
            return
        ext = call.ext  # each access decodes it again
        account = self._account(call, ext)
        if account is None:
            return
        if not account.signer.has_signed(ext, call.body):
            raise errors.wrong_signature(account.access_key)
        needs = NEEDS.get(call.code)
        _check_rights(account, call.code, list(needs(call)) if needs is not None else [])

    def _account(self, call: Call[Any], ext: Mapping[str, str]) -> Account | None:
        """Return the account whose rights apply, or None if its address alone grants all rights."""
        access_key = ext.get(ACCESS_KEY)
        if access_key is None:
            raise errors.no_access_key()
        account = self.accounts.by_key.get(access_key) or self._own.get(access_key)
        if account is None:
            raise errors.unknown_access_key(access_key)
        return None if account.white_addresses.matches(call.peer.host) else account

    def _is_white(self, call: Call[Any]) -> bool:
        host = call.peer.host
        return any(addresses.matches(host) for addresses in self.accounts.white_addresses)


def _check_rights(account: Account, code: int, needs: list[Need]) -> None:
    if (TRACE_TOPIC, Right.PUB) in needs:
        return
    if code in ADMIN_CODES and not account.is_admin:
        raise errors.not_admin(code, account.access_key)
    if account.is_admin and not account.rights:
        return
    for resource, needed in needs:
        right = account.right_to(resource)
        if right & Right.DENY or not right & needed:
            is_default = resource not in account.rights
            raise errors.no_permission(resource_text(resource), is_default=is_default)
