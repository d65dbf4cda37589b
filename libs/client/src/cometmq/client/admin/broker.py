# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker, and the text form of its settings."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cometmq.client.admin.broker_consumers import BrokerCalls
from cometmq.client.admin.broker_messages import BrokerTransactions
from cometmq.client.arguments import check_encodable
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.transfer.pulled import fields_of
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.connections import ProducerInfo, ProducerTable
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.overview import BrokerOverview
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.bodies.settings import BrokerSetting, BrokerSettingsList
from cometmq.remoting.bodies.stats import BrokerConsumeStats, BrokerStatsData, TopicStats
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig, TopicConfigTable
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import acl, admin, topics
from cometmq.remoting.commands.clients import DisconnectClient, DisconnectClientReply
from cometmq.remoting.commands.topics import TrimQueueReply
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.remoting.spelling import did_you_mean


class AclVersions(msgspec.Struct, frozen=True):
    """Versions of a broker's access control files."""

    cluster: str
    broker_name: str
    broker_address: str
    files: dict[str, DataVersion]
    """Keyed by the path of the file on the broker's machine."""


class BrokerAcl(BrokerCalls):
    """Manages access control on one broker; each method sends one request code."""

    async def acl_config(self) -> AclConfig:
        """Return all accounts and the white-listed addresses."""
        return await self._json(AclConfig, Code.GET_BROKER_CLUSTER_ACL_CONFIG)

    async def put_account(self, account: AclAccount) -> None:
        """Create or change an account."""
        header = acl.UpdateAndCreateAclConfig(
            access_key=account.access_key,
            secret_key=account.secret_key,
            white_remote_address=account.white_remote_address,
            admin=account.admin,
            default_topic_perm=account.default_topic_perm,
            default_group_perm=account.default_group_perm,
            topic_perms=_joined(account.topic_perms),
            group_perms=_joined(account.group_perms),
        )
        await self.invoke(Code.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, access_key: str) -> None:
        """Delete an account."""
        await self.invoke(Code.DELETE_ACL_CONFIG, acl.DeleteAclConfig(access_key))

    async def set_white_addresses(
        self, addresses: Iterable[str], *, file: str | None = None
    ) -> None:
        """Replace the white-listed addresses in `file`, by default the broker's default file."""
        header = acl.UpdateGlobalWhiteAddrsConfig(",".join(addresses), file)
        await self.invoke(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def acl_versions(self) -> AclVersions:
        """Return the versions of the broker's access control files."""
        response = await self.invoke(Code.GET_BROKER_CLUSTER_ACL_INFO)
        reply = fields_of(response, acl.GetBrokerClusterAclInfoReply)
        return AclVersions(
            cluster=reply.cluster_name,
            broker_name=reply.broker_name,
            broker_address=reply.broker_addr,
            files=decode_json(
                dict[str, DataVersion], (reply.all_acl_file_version or "{}").encode()
            ),
        )


def _joined(permissions: list[str] | None) -> str | None:
    return None if permissions is None else ",".join(permissions)


_KEY: Final = re.compile(r"[^\s=:#!]+")


class BrokerAdmin(BrokerTransactions, BrokerAcl):
    """Queries and changes one broker; each method sends one request code.

    If the broker refuses a request, the call raises the CommandError for the response code.
    """

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics of the broker."""
        return (await self._json(TopicConfigTable, Code.GET_ALL_TOPIC_CONFIG)).topic_config_table

    async def create_topic(self, config: TopicConfig, *, is_new: bool = False) -> None:
        """Create or change a topic; its attributes are sent only with `is_new`, and else kept."""
        attributes = config.attributes if is_new else None
        header = topics.UpdateAndCreateTopic(
            topic=config.topic_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            default_topic=AUTO_CREATE_TOPIC,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"+{key}={value}" for key, value in attributes.items())
            if attributes
            else None,
        )
        await self.invoke(Code.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages."""
        await self.invoke(Code.DELETE_TOPIC_IN_BROKER, topics.DeleteTopicInBroker(topic))

    async def trim_queue(
        self, topic: str, queue_id: int, offset: int, *, is_dry_run: bool = False
    ) -> TrimQueueReply:
        """Delete the messages of a queue before an offset, and return what was deleted; with
        `is_dry_run`, only return it. RocketMQ's own brokers do not support this request.
        """
        header = topics.TrimQueue(topic, queue_id, offset, is_dry_run)
        return fields_of(await self.invoke(Code.TRIM_QUEUE, header), TrimQueueReply)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the begin offset, end offset and last store time of each queue."""
        header = topics.GetTopicStatsInfo(topic)
        return await self._json(TopicStats, Code.GET_TOPIC_STATS_INFO, header)

    async def system_topics(self) -> list[str]:
        """Return the topics that the broker creates for its own use."""
        return (await self._json(TopicList, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).topic_list

    async def clean_unused_topics(self) -> None:
        """Delete the queues of topics that no longer exist on the broker."""
        await self.invoke(Code.CLEAN_UNUSED_TOPIC)

    # -- figures ------------------------------------------------------------------------------

    async def stats(self, name: str, key: str) -> BrokerStatsData:
        """Return a statistic over the last minute, hour and day; ServerError if there is none."""
        header = admin.ViewBrokerStatsData(name, key)
        return await self._json(BrokerStatsData, Code.VIEW_BROKER_STATS_DATA, header)

    async def all_consume_stats(
        self, *, is_order: bool = False, timeout_ms: int | None = None
    ) -> BrokerConsumeStats:
        """Return the progress of all groups of the broker; this is slow if there are many."""
        header = admin.GetBrokerConsumeStats(is_order)
        return await self._json(
            BrokerConsumeStats, Code.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms
        )

    async def producers(self) -> dict[str, list[ProducerInfo]]:
        """Return the connected members of all producer groups."""
        return (await self._json(ProducerTable, Code.GET_ALL_PRODUCER_INFO)).data

    # -- the broker itself --------------------------------------------------------------------

    async def clean_expired_queues(self) -> None:
        """Delete queue files whose messages are gone from the commit log."""
        await self.invoke(Code.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_expired_logs(self) -> None:
        """Delete the expired files of the commit log now."""
        await self.invoke(Code.DELETE_EXPIRED_COMMITLOG)

    async def runtime_info(self) -> dict[str, str]:
        """Return statistics of the running broker by name."""
        return (await self._json(KVTable, Code.GET_BROKER_RUNTIME_INFO)).table

    async def overview(self) -> BrokerOverview:
        """Return all queues, members and recent refusals; not by RocketMQ's own brokers."""
        return await self._json(BrokerOverview, Code.GET_BROKER_OVERVIEW)

    async def disconnect(self, client_id: str) -> int:
        """Close the connections of a client, and return how many there were; it connects again by
        itself. RocketMQ's own brokers do not support this request.
        """
        response = await self.invoke(Code.DISCONNECT_CLIENT, DisconnectClient(client_id))
        return fields_of(response, DisconnectClientReply).count

    async def config(self) -> dict[str, str]:
        """Return the broker's settings."""
        return parse_settings((await self.invoke(Code.GET_BROKER_CONFIG)).body)

    async def settings(self) -> list[BrokerSetting]:
        """Return the settings with defaults and sources; not by RocketMQ's own brokers."""
        return (await self._json(BrokerSettingsList, Code.GET_BROKER_SETTINGS)).settings

    async def update_config(self, changes: Mapping[str, str], *, is_forced: bool = False) -> None:
        """Change settings of the running broker.

        Unless `is_forced` is set, raise InvalidArgument for settings that the broker does not list:
        it would accept them, but they would have no effect.
        """
        body = render_settings(changes)
        if not is_forced:
            refuse_unknown(changes, await self.config(), self.address)
        await self.invoke(Code.UPDATE_BROKER_CONFIG, None, body)


def parse_settings(data: bytes) -> dict[str, str]:
    """Parse lines of the form `key=value`."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def refuse_unknown(changes: Mapping[str, str], config: Mapping[str, str], address: str) -> None:
    """Raise InvalidArgument for a setting that the server at `address` does not list."""
    for key in changes:
        if key not in config:
            raise InvalidArgument(
                f"{address} has no setting {key}: give is_forced=True to send it anyway"
                f"{did_you_mean(key, config)}"
            )


def render_settings(settings: Mapping[str, str]) -> bytes:
    """Return settings as `key=value` lines; backslashes are escaped because Java unescapes them.

    Raise InvalidArgument for settings that cannot be written in this form.
    """
    given: Any = settings
    if not isinstance(given, Mapping) or not given:
        raise InvalidArgument(
            f"the changes must be a dictionary of settings, such as {{'fileReservedTime': '72'}}, "
            f"not {shown(given)}"
        )
    for key, value in given.items():
        if not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise InvalidArgument(f"the name of a setting is one word, not {shown(key)}")
        if not isinstance(value, str) or len(value.splitlines()) > 1:
            raise InvalidArgument(
                f"the value of {key} must be a string of one line, such as '72', not {shown(value)}"
            )
        check_encodable(value, f"the value of {key}")
    lines = [f"{key}={value}" for key, value in settings.items()]
    return ("\n".join(lines) + "\n").replace("\\", "\\\\").encode()
