# SPDX-License-Identifier: Apache-2.0
"""The part of the native lane that connections call: it stages their requests in `cometmq.accel`.

To stage a request is to parse it and keep it for a following call. Plain pulls and renewals of
queue locks are then answered at once (`pull_lane.py`). Plain sends, including half messages and
messages that consumers send back, are accepted for the next commit (`send_runs.py`), and so are
requests that end transactions (`LaneTransactions`).

The native code serves sends to a topic once the handler has admitted one (`learn`), and builds the
records, queue entries, index keys and answers of a whole commit. Once per chunk, this module checks
whether anything has changed that a send depends on. After any change of topics, settings or
accounts, the lane forgets the topics that it has learned; after a change of consumer groups, it
forgets those that send messages back. While the broker has a reason to inspect every send, the lane
serves none.

`services/broker/tests/lanes` tests that the lane and the handlers give the same results.
"""

from typing import TYPE_CHECKING, Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.send import MULTI_TAG
from cometmq.broker.lanes.access import LaneAccess, reason_against
from cometmq.broker.lanes.pull_lane import BrokerPulls
from cometmq.broker.lanes.send_runs import LaneTransactions, SendRuns
from cometmq.broker.native import OUTDATED, Breaker, accel, reason_without
from cometmq.broker.transactions.transactions import OP_TAG_CODE, OP_TEXT
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.frame import FRAME_BYTES_MAX
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.remoting.transport.lane import Answered, Part
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.typed_encode import binary_constant, lane_pieces
from cometmq.remoting.versions import REQUEST_MAX_RECONSUME_MIN
from cometmq.store.layout import is_topic
from cometmq.store.reads import cached

if TYPE_CHECKING:
    from cometmq.accel import SendLane

DELAY_MS_MAX: Final = 1 << 53  # of any level; Python refuses the sends of longer ones


def open_lane(broker: Broker) -> "BrokerLane | None":
    """Set and return the broker's lane; None for the reason in `Process.send_path`."""
    reason = _reason_against(broker)
    lane = BrokerLane(broker) if reason is None else None
    broker.lane = lane
    broker.process.send_path = "native" if reason is None else f"python: {reason}"
    if reason == OUTDATED:
        broker.log.warning("native.outdated", error=reason)
    return lane


def _reason_against(broker: Broker) -> str | None:
    if (reason := reason_without(broker.settings)) is not None:
        return reason
    if (
        broker.admission.acl is not None
        and (reason := reason_against(broker.admission.acl.control)) is not None
    ):
        return reason
    return None


class BrokerLane:
    """The lane that connections use; implements `cometmq.remoting.transport.lane`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._topics_version = broker.tables.topics.version
        self._groups_version = broker.tables.groups.version
        self._access = LaneAccess(broker)
        self._accounts = self._access.accounts
        self._native = _build(broker, self._access)
        self._breaker = Breaker("lane", broker.log)
        self._pulls = BrokerPulls(broker, self._access, self._breaker)
        # Called in each turn, so without a method in between: see `BrokerPulls`, `StoreDriver`.
        self.pulls, self.pulled = self._pulls.pulls, self._pulls.pulled
        self.learn_pull, self.learn_renewal = self._pulls.learn, self._pulls.learn_renewal
        self._transactions = LaneTransactions(broker)
        self._transactions.adopt(self._native)
        self._runs = SendRuns(broker, self._native, self._transactions, self._breaker)
        self.begin_turn = broker.driver.begin_turn
        self.end_turn = broker.driver.end_turn
        self.request_count = 0  # sends and ends of transactions accepted since startup

    @property
    def pull_count(self) -> int:
        return self._pulls.request_count

    @property
    def cached_bytes(self) -> int:
        return self._pulls.cached_bytes

    def learn(self, config: TopicConfig) -> bool:
        topic = config.topic_name
        if topic[0] == "%" or config.topic_filter_type == MULTI_TAG or not is_topic(topic):
            return False
        return self._native.learn(topic, max(config.write_queue_nums, config.read_queue_nums))

    def learn_back(self, group: SubscriptionGroupConfig, topic: TopicConfig) -> bool:
        """From now on, serve the messages that a group sends back; `topic` is its retry topic."""
        if self._settings.acl_check_stored_topic:
            return False
        return self._native.learn_back(
            group.group_name,
            topic.topic_name,
            min(topic.write_queue_nums, group.retry_queue_nums) or 1,
            group.retry_max_times,
            REQUEST_MAX_RECONSUME_MIN,
        )

    def _read_record(self, physical_offset: int) -> bytes | None:
        return cached(self._broker.store.reader.record_bytes(physical_offset))

    def stage(self, peer: LanePeer, data: bytes, count_max: int) -> list[Part] | None:
        """Stage the plain requests of a chunk, without sends that must be inspected."""
        sends = self.sends(count_max)
        takes_sends = sends is not None
        pulls = None if peer.is_limited else self._pulls.staging()
        if not takes_sends and pulls is None:
            return None
        try:
            now_ms = None if sends is None or peer.is_limited else sends[1]
            return self._native.stage(
                data,
                peer,
                peer.host,
                count_max,
                takes_sends=takes_sends,
                now_ms=now_ms,
                pulls=pulls,
                backs=(self._broker.stats.send_back_count, self._read_record),
            )
        except accel.PanicException as error:
            self._breaker.trip(error)
            return None

    def sends(self, count_max: int) -> "tuple[SendLane, int | None, int] | None":
        """Return the lane, the time, and `count_max`; None if each send must be inspected."""
        if self._native.staged_count > self._runs.count:
            self.drop()  # an error in the transport has left them
        if self._groups_version is not self._broker.tables.groups.version:
            self._native.forget_backs()
            self._groups_version = self._broker.tables.groups.version
        if not (self._takes_sends() or (self._follow() and self._takes_sends())):
            return None
        native, transactions = self._native, self._transactions
        return native, transactions.now_ms(native) if transactions.takes_ends else None, count_max

    def sends_failed(self, fault: BaseException) -> None:
        self._breaker.trip(fault)
        self.drop()

    def answer(self, first: int, count: int, room: int) -> Answered:
        return self._pulls.answer(first, count, room)

    def frame(self, index: int) -> tuple[int, int]:
        return self._pulls.frame(index)

    def put(self, count: int, staged_bytes: int, *, at_once: bool = False) -> int | None:
        """Accept the next staged requests for a commit; return how many of them expect an answer.

        Return None, and accept nothing, if handlers must serve them.
        """
        native, runs, driver = self._native, self._runs, self._broker.driver
        first = runs.count
        # A request between the staged sends of the same chunk may have changed topics or settings,
        # or filled the commit, which has then released all staged sends.
        is_released = not at_once and native.staged_count < first + count
        if is_released or not (at_once or self._takes_sends()):
            return None
        end_count = 0
        if self._transactions.takes_ends:
            try:
                begun = self._transactions.begin(native, first, count)
            except accel.PanicException as error:
                self._breaker.trip(error)
                return None
            if begun is None:
                return None
            end_count = begun
        runs.count += count
        self.request_count += count
        is_placing = driver.store.writer.placing is not None
        if at_once and not (first or driver.is_scheduled or is_placing):
            driver.commit(runs, count)
        else:
            driver.put_run(runs, first, count, staged_bytes)
        return count - end_count

    def drop(self) -> None:
        """Forget the staged sends that were not accepted."""
        self._native.drop_from(self._runs.count)

    def _takes_sends(self) -> bool:
        """Return whether the lane may take sends now: nothing has changed on which they depend, and
        the broker has no reason to inspect each of them.
        """
        # One function without calls: it runs in each turn.
        broker, control = self._broker, self._access.control
        return not (
            self._breaker.is_open
            or self._settings is not broker.settings
            or self._topics_version is not broker.tables.topics.version
            or (control is not None and self._accounts is not control.accounts)
            or broker.config.checks_sends
            or broker.role.is_diverting
            or broker.driver.is_full
            or broker.driver.sends.waiting_count >= self._settings.send_thread_pool_queue_capacity
        )

    def _follow(self) -> bool:
        """Forget what depends on changed topics, settings or accounts; return whether they have
        changed, and no accepted sends wait for the commit.
        """
        broker, accounts = self._broker, self._access.accounts
        is_outdated = self._settings is not broker.settings or self._accounts is not accounts
        version = broker.tables.topics.version
        if self._runs.count or not (is_outdated or self._topics_version is not version):
            return False
        if is_outdated:
            native = self._native = _build(broker, self._access)
            self._runs = SendRuns(broker, native, self._transactions, self._breaker)
            self._settings, self._accounts = broker.settings, accounts
        self._native.forget()
        self._topics_version = version
        self._transactions.adopt(self._native)
        return True


def _build(broker: Broker, access: LaneAccess) -> "SendLane":
    settings = broker.settings
    constant, names = broker.config.send_ext, ("msgId", "queueId", "queueOffset")
    delays_ms = broker.deferred.delays.levels.delays_ms
    return accel.SendLane(
        store_host=broker.process.store_host,
        cluster=broker.config.cluster_pair,
        frame_bytes_max=FRAME_BYTES_MAX,
        body_bytes_max=settings.max_message_size,
        batch_count_max=settings.batch_messages_max,
        request_bytes_max=settings.mapped_file_size_commit_log - BLANK_BYTES_MIN,
        **lane_pieces(ResponseCode.SUCCESS, names, constant),
        binary_entries=binary_constant(constant),
        delayed=(SCHEDULE_TOPIC, delays_ms if max(delays_ms) <= DELAY_MS_MAX else ()),
        transactions=(HALF_TOPIC, OP_HALF_TOPIC, OP_TEXT, OP_TAG_CODE),
        accounts=access.native(),
    )
