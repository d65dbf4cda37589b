# SPDX-License-Identifier: Apache-2.0
"""What push and lite pull consumers have in common: a group, and queues that come and go."""

from abc import abstractmethod
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, TypeVar

from cometmq.client.errors import ClientStateError, InvalidArgument
from cometmq.client.instance import ClientInstance
from cometmq.client.member import GroupMember, MemberParts
from cometmq.client.message import RETRY_PREFIX, check_group
from cometmq.client.offsets import LocalOffsets, OffsetStore, RemoteOffsets, local_offsets_path
from cometmq.client.ownership import OwnershipCallbacks, QueuesCallback
from cometmq.client.rebalance import AllocateAveragely, AllocateStrategy
from cometmq.client.settings import ConsumerOptions, MessageModel, checked
from cometmq.client.state import Client, ClientState
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log

DEFAULT_GROUP: Final = "DEFAULT_CONSUMER"

OptionsT = TypeVar("OptionsT", bound=ConsumerOptions)
MemberT = TypeVar("MemberT", bound=GroupMember[Any])
CallbackT = TypeVar("CallbackT", bound=QueuesCallback)


class GroupConsumer(Client, Generic[OptionsT, MemberT]):
    """A consumer that is a member of a group."""

    KIND = "consumer"

    def __init__(
        self,
        group: str,
        namesrv: str,
        *,
        options: OptionsT,
        strategy: AllocateStrategy | None,
        offsets: OffsetStore | None,
        log: Log,
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__()
        check_group(group)
        if group == DEFAULT_GROUP:
            raise InvalidArgument(
                f"consumerGroup can not equal {DEFAULT_GROUP}, please specify another one."
            )
        self.group = group
        self.options = checked(options, namesrv)
        self._strategy = strategy or AllocateAveragely()
        self._offsets = offsets
        self._log = log
        self._callbacks = OwnershipCallbacks()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._member: MemberT | None = None

    # -- who wants to know --------------------------------------------------------------------

    def on_assigned(self, callback: CallbackT) -> CallbackT:
        """Call a function with queues that are ours now, before their first message comes.

        A coroutine function, or a plain one, which is called on a thread; also as a decorator.
        """
        self._check_unstarted()
        self._callbacks.assigned = callback
        return callback

    def on_revoked(self, callback: CallbackT) -> CallbackT:
        """Call a function with queues that are ours no longer.

        No message of them is in work then, and what was consumed is committed. Called at the end
        too, with all queues.
        """
        self._check_unstarted()
        self._callbacks.revoked = callback
        return callback

    def _check_unstarted(self) -> None:
        if self.state is not ClientState.CREATE_JUST:
            raise ClientStateError("callbacks are registered before the start")

    # -- life ---------------------------------------------------------------------------------

    async def _enter_group(
        self, stack: AsyncExitStack, *, suffix: str = ""
    ) -> tuple[ClientInstance, MemberT]:
        """Announce the group to every broker; the member is not started yet."""
        is_broadcasting = self.options.message_model is MessageModel.BROADCASTING
        instance = await ClientInstance.acquire(
            self.options, suffix=suffix, is_named=is_broadcasting, log=self._log
        )
        stack.push_async_callback(instance.release)
        member = self._make_member(
            MemberParts(
                instance=instance,
                group=self.group,
                options=self.options,
                subscriptions=self._subscriptions,
                offsets=self._offsets or self._default_offsets(instance),
                strategy=self._strategy,
                callbacks=self._callbacks,
            )
        )
        instance.register_consumer(self.group, member)
        stack.push_async_callback(instance.unregister, consumer_group=self.group)
        await instance.routes.meet_brokers(self._subscriptions.keys())
        return instance, member

    def _default_offsets(self, instance: ClientInstance) -> OffsetStore:
        options = self.options
        if options.message_model is MessageModel.CLUSTERING:
            return RemoteOffsets(instance, self.group)
        path = local_offsets_path(options.offsets_dir, instance.client_id, self.group)
        return LocalOffsets(path, log=self._log)

    @abstractmethod
    def _make_member(self, parts: MemberParts[OptionsT]) -> MemberT:
        """Return what does the work."""

    # -- subscriptions and queues -------------------------------------------------------------

    async def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        if self._subscriptions.pop(topic, None) is not None and self._member is not None:
            await self._member.unsubscribed(topic)
            self._changed()

    def _changed(self) -> None:
        instance = self._running()
        assert self._member is not None
        self._member.wake()
        instance.heartbeat_soon()
        instance.routes.find_missing_soon()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member has at the moment, without those of the retry topic."""
        if self._member is None:
            return []
        retry = RETRY_PREFIX + self.group
        return sorted(queue for queue in self._member.queues if queue.topic != retry)
