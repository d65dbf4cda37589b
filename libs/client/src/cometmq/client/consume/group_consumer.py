# SPDX-License-Identifier: Apache-2.0
"""The base of all group consumers: options, callbacks, subscriptions, and the start."""

import asyncio
from abc import abstractmethod
from contextlib import AsyncExitStack
from typing import Final, Generic, Protocol, TypeVar

from cometmq.client.admin import ClientAdmin
from cometmq.client.application_calls import check_function, check_hook, check_methods
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.heartbeats import RETRY_SOON_MS
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.lifecycle import Client, ClientState
from cometmq.client.consume.membership import Membership
from cometmq.client.consume.queues.offsets import (
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
    local_offsets_path,
)
from cometmq.client.consume.queues.parts import ConsumerParts, OwnershipCallbacks, QueuesCallback
from cometmq.client.consume.queues.rebalance import AllocateAveragely, AllocateStrategy
from cometmq.client.errors import InvalidArgument
from cometmq.client.hooks import ConsumeHook, Hooks
from cometmq.client.listener import ConsumeWatch
from cometmq.client.log import AnyLog
from cometmq.client.message import check_group, check_topic
from cometmq.client.namespace import namespace_of
from cometmq.client.option_checks import checked
from cometmq.client.settings import ConsumerOptions, MessageModel, PushOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector, doubt, subscription
from cometmq.client.trace.hooks import consumer_trace
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CometError, TransportError
from cometmq.remoting.log import Log
from cometmq.remoting.names import ALL_TAGS, DEFAULT_CONSUMER_GROUP, retry_topic
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.remoting.versions import SQL_FILTER_MIN

CHECKS_MAX: Final = 16
"""How many conditions are checked at the same time."""

_ROUTE_CHECK_S: Final = 0.5


class ConditionChecks:
    """Asks brokers whether they accept a consumer's SQL92 conditions: before it starts, and later
    in the background.

    Only a broker knows whether it filters by properties at all, and whether the values of a
    condition can be compared.
    """

    def __init__(self, parts: ConsumerParts, log: Log) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._namespace = parts.instance.namespace
        self._subscriptions = parts.subscriptions
        self._timeout_ms = parts.options.api_timeout_ms
        self._log = log
        self._background = TaskSet(log)

    async def close(self) -> None:
        """Stop the background checks."""
        await self._background.close()

    async def check_all(self) -> None:
        """Check all conditions, those of unknown topics later; raise a broker's refusal."""
        known: list[SubscriptionData] = []
        for topic, wanted in self._subscriptions.items():
            if self._instance.routes.get(topic) is None:
                self.check_later(topic)
            elif wanted.expression_type == ExpressionType.SQL92:
                known.append(wanted)
        await for_each(known, self._check, running_max=CHECKS_MAX)

    def check_later(self, topic: str) -> None:
        """Check the condition for a topic, if there is one; a refusal is logged."""
        wanted = self._subscriptions.get(topic)
        if wanted is not None and wanted.expression_type == ExpressionType.SQL92:
            self._background.spawn(self._checked(wanted), name="condition-check")

    async def _checked(self, wanted: SubscriptionData) -> None:
        topic = wanted.topic
        while self._subscriptions.get(topic) is wanted:
            if self._instance.routes.get(topic) is None:  # the consumer looks it up, too
                await asyncio.sleep(_ROUTE_CHECK_S)
                continue
            try:
                await self._check(wanted)
            except TransportError:  # logged by others: this broker is unreachable
                await asyncio.sleep(RETRY_SOON_MS / 1000)
                continue
            except CometError as error:
                self._log.warning(
                    "subscription.refused",
                    group=self._namespace.unwrap(self._group),
                    topic=self._namespace.unwrap(topic),
                    expression=wanted.sub_string,
                    error=describe(error),
                    advice="no message of the topic arrives until the subscription is corrected",
                )
            return

    async def _check(self, wanted: SubscriptionData) -> None:
        instance = self._instance
        route = instance.routes.get(wanted.topic)
        for broker_name in sorted(route.brokers) if route is not None else ():
            _, address = instance.routes.brokers.any_of(broker_name)
            body = encode_json(
                ClientConfigCheck(
                    client_id=instance.client_id,
                    group=self._group,
                    namespace=self._namespace.name or None,
                    subscription_data=wanted,
                )
            )
            code = RequestCode.CHECK_CLIENT_CONFIG
            response = await instance.remoting.invoke(
                address, code, None, body, timeout_ms=self._timeout_ms
            )
            if response.version < SQL_FILTER_MIN:
                raise CometError(f"The broker {broker_name} is too old for SQL92 subscriptions")


NEVER_MS: Final = 1 << 62
_DOUBTED_MAX: Final = 1_000
_STORE_METHODS: Final = (
    "read",
    "position",
    "unsaved",
    "update",
    "persist",
    "commit",
    "forget",
)

OptionsT = TypeVar("OptionsT", bound=ConsumerOptions)
CallbackT = TypeVar("CallbackT", bound=QueuesCallback)


class Work(Protocol):
    """The parts of a running consumer."""

    @property
    def member(self) -> Membership:
        """The member of the group."""

    async def start(self) -> None:
        """Rebalance, and start to work."""

    async def stop(self) -> None:
        """Finish the work, and store the offsets."""


WorkT = TypeVar("WorkT", bound=Work)


class GroupConsumer(Client, Generic[OptionsT, WorkT]):
    """A consumer that is a member of a group."""

    KIND = "consumer"
    OPTIONS: type[OptionsT]
    """The class of the consumer's options; its defaults apply if none are given."""
    _SUFFIX = ""
    """Appended to the client id, as by Java's lite pull consumers."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: OptionsT | None = None,
        strategy: AllocateStrategy | None = None,
        offsets: OffsetStore | None = None,
        log: AnyLog = None,
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the option `namesrv`.

        Offsets are stored on the brokers unless `offsets` is given.
        """
        super().__init__(log)
        check_group(group)
        if group == DEFAULT_CONSUMER_GROUP:
            raise InvalidArgument(
                f"{DEFAULT_CONSUMER_GROUP} is reserved: give the consumer group a name of its own"
            )
        self.group = group
        """The group's name, without the namespace."""
        given = self.OPTIONS() if options is None else options
        self.options = checked(given, namesrv, kind=self.OPTIONS)
        self._namespace = namespace_of(self.options)
        self._full_group = self._namespace.wrap(group)
        check_group(self._full_group)
        self._hooks: list[ConsumeHook] = []
        if strategy is not None:
            check_methods(strategy, "strategy", "AllocateAveragely()", "allocate")
        if offsets is not None:
            check_methods(offsets, "offsets", "one with those of OffsetStore", *_STORE_METHODS)
        self._strategy = AllocateAveragely() if strategy is None else strategy
        self._offsets = offsets
        self._callbacks = OwnershipCallbacks(group, client=self)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._doubted: set[tuple[str, str]] = set()
        self._checks: ConditionChecks | None = None
        self._work: WorkT | None = None

    # -- callbacks --------------------------------------------------------------------------------

    def on_assigned(self, callback: CallbackT) -> CallbackT:
        """Call a function with newly assigned queues, before their first message is delivered.

        A plain function runs on a thread. Also works as a decorator.
        """
        self._check_unstarted()
        check_function(callback, "on_assigned", "queues")
        self._callbacks.assigned = callback
        return callback

    def on_revoked(self, callback: CallbackT) -> CallbackT:
        """Call a function with queues that were revoked.

        By then, no message of these queues is being processed, and the consumed messages are
        committed. Closing revokes all queues. A callback that takes longer than a minute is
        cancelled.
        """
        self._check_unstarted()
        check_function(callback, "on_revoked", "queues")
        self._callbacks.revoked = callback
        return callback

    def add_hook(self, hook: ConsumeHook) -> None:
        """Call a hook before and after each list of messages; add it before `start`."""
        self._check_unstarted()
        check_hook(hook, "before_consume", "after_consume")
        self._hooks.append(hook)

    # -- life ---------------------------------------------------------------------------------

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        """Announce the group to every broker, then take our share of the queues.

        Brokers compile SQL conditions, so that an invalid condition raises here.
        """
        is_broadcasting = self.options.message_model is MessageModel.BROADCASTING
        instance = await ClientInstance.acquire(
            self.options, suffix=self._SUFFIX, is_named=is_broadcasting, log=self._log
        )
        stack.push_async_callback(instance.release)
        watch = await self._make_watch(instance, stack)
        parts = ConsumerParts(
            instance=instance,
            group=self._full_group,
            options=self.options,
            subscriptions=self._subscriptions,
            offsets=self._offsets or await self._default_offsets(instance, stack),
            callbacks=self._callbacks,
            background=TaskSet(instance.log),
            stack=stack,
        )
        work = self._assemble(parts, watch)
        instance.members.add_consumer(self._full_group, work.member)
        stack.push_async_callback(instance.unregister, consumer_group=self._full_group)
        await instance.routes.meet_brokers(self._subscriptions.keys())
        self._checks = ConditionChecks(parts, self._log)
        stack.push_async_callback(self._checks.close)
        await self._checks.check_all()
        await instance.heartbeats.send()
        stack.push_async_callback(work.stop)
        self._work = work
        await work.start()
        self._log.info("consumer.started", group=self.group, client_id=instance.client_id)
        return instance

    @abstractmethod
    def _assemble(self, parts: ConsumerParts, watch: ConsumeWatch | None) -> WorkT:
        """Return the parts that do this consumer's work; they are not started yet."""

    def _started(self) -> WorkT:
        """Return the parts; raise ClientStateError if the consumer is not running."""
        self._running()
        assert self._work is not None
        return self._work

    async def _make_watch(
        self, instance: ClientInstance, stack: AsyncExitStack
    ) -> ConsumeWatch | None:
        """Return the observer of listener calls, or None if nothing observes them."""
        hooks, options = self._hooks, self.options
        if options.trace:
            hooks = [*hooks, await consumer_trace(instance, self.group, options, stack)]
        if not hooks and not options.trace_context:
            return None
        return ConsumeWatch(
            self.group,
            Hooks(hooks, self._log),
            timeout_ms=options.consume_timeout_ms if isinstance(options, PushOptions) else NEVER_MS,
            continues_traces=options.trace_context,
        )

    async def _default_offsets(
        self, instance: ClientInstance, stack: AsyncExitStack
    ) -> OffsetStore:
        options = self.options
        if options.message_model is MessageModel.CLUSTERING:
            return RemoteOffsets(instance, self._full_group)
        path = local_offsets_path(options.offsets_dir, instance.client_id, self._full_group)
        offsets = LocalOffsets(path, group=self.group, log=self._log)
        await offsets.claim()
        stack.callback(offsets.release)
        await offsets.load()
        return offsets

    # -- subscriptions and queues -------------------------------------------------------------

    def _subscribe(
        self,
        topic: str,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> None:
        self._subscriptions[topic] = self._wanted(topic, expression, kind)
        if self.state is ClientState.RUNNING:
            self._changed(topic)

    def _topic(self, topic: str) -> str:
        """Return the full name of a topic; raise InvalidMessage for an invalid name."""
        topic = self._namespace.wrap(topic)
        check_topic(topic)
        return topic

    def _wanted(
        self,
        topic: str,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> SubscriptionData:
        """Return the subscription for a topic; warn once if its tags look like a mistake."""
        known = self._subscriptions.get(topic)
        version_ms = max(wall_ms(), known.sub_version + 1 if known is not None else 0)
        wanted = subscription(topic, expression, kind, version_ms=version_ms)
        if advice := doubt(wanted):
            place = (topic, wanted.sub_string)
            if place not in self._doubted and len(self._doubted) < _DOUBTED_MAX:
                self._doubted.add(place)
                self._log.warning(
                    "subscription.doubtful",
                    group=self.group,
                    topic=self._namespace.unwrap(topic),
                    expression=wanted.sub_string,
                    advice=advice,
                )
        return wanted

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages from a topic."""
        check_topic(topic)
        topic = self._namespace.wrap(topic)
        if self._subscriptions.pop(topic, None) is not None and self._work is not None:
            await self._work.member.unsubscribed(topic)
            if self.state is not ClientState.START_FAILED:  # `on_assigned` may unsubscribe
                self._changed(topic)

    def _changed(self, topic: str) -> None:
        instance = self._running()
        assert self._work is not None
        self._work.member.resubscribed(topic)
        if self._checks is not None:
            self._checks.check_later(topic)
        instance.heartbeats.soon()
        instance.refreshes.find_missing_soon()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member, excluding the retry topic's queues."""
        if self._work is None:
            return []
        retry = retry_topic(self._full_group)
        return sorted(
            self._namespace.unwrap_queue(queue)
            for queue in self._work.member.queues
            if queue.topic != retry
        )

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """Fetch all readable queues of a topic; new ones are shared in the group at once."""
        check_topic(topic)
        instance, topic = self._running(), self._namespace.wrap(topic)
        await instance.look_up(topic)
        route = await instance.routes.find(topic)
        return [self._namespace.unwrap_queue(queue) for queue in sorted(route.subscribe_queues)]

    @property
    def admin(self) -> ClientAdmin:
        """Admin calls over this consumer's connections: topics, offsets, messages by id."""
        return ClientAdmin(self._running(), self._log)
