# SPDX-License-Identifier: Apache-2.0
"""Administration of the name servers: reads are sent to one of them, changes to all."""

from collections.abc import Mapping
from typing import Final

from cometmq.client.admin.broker import parse_settings, refuse_unknown, render_settings
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.cluster.routes import checked_cluster
from cometmq.client.transfer.pulled import fields_of
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands import namesrv as headers

_FOUND_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class NamesrvAdmin:
    """Queries and changes the name servers of a client."""

    def __init__(self, namesrv: Namesrv) -> None:
        self._namesrv = namesrv

    @property
    def addresses(self) -> list[str]:
        """The addresses of the name servers."""
        return self._namesrv.addresses

    @property
    def address(self) -> str:
        """The first address; an instance from `each` has only one."""
        return self.addresses[0]

    def each(self) -> list["NamesrvAdmin"]:
        """Return one instance per name server."""
        return [NamesrvAdmin(one) for one in self._namesrv.each()]

    # -- routes -------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return all broker groups and the clusters they belong to."""
        return checked_cluster(await self._namesrv.cluster())

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, or None if there is none."""
        return await self._namesrv.route(topic)

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return await self._topics(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    async def topics_of(self, cluster: str) -> list[str]:
        """Return the topics of one cluster."""
        response = await self._namesrv.invoke(
            Code.GET_TOPICS_BY_CLUSTER, headers.GetTopicsByCluster(cluster)
        )
        return (await self._namesrv.decode(TopicList, response.body)).topic_list

    async def system_topics(self) -> list[str]:
        """Return the names of clusters and brokers, which are topics too."""
        return await self._topics(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    async def unit_topics(self) -> list[str]:
        """Return the topics with the unit flag."""
        return await self._topics(Code.GET_UNIT_TOPIC_LIST)

    async def unit_sub_topics(self) -> list[str]:
        """Return the topics with a unit subscription."""
        return await self._topics(Code.GET_HAS_UNIT_SUB_TOPIC_LIST)

    async def unit_sub_ununit_topics(self) -> list[str]:
        """Return the topics with a unit subscription but without the unit flag."""
        return await self._topics(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the routes of a topic, in one cluster or in all."""
        header = headers.DeleteTopicInNamesrv(topic, cluster)
        await self._namesrv.invoke_all(Code.DELETE_TOPIC_IN_NAMESRV, header)

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Remove write permission from all of a broker's topics; return how many changed."""
        header = headers.WipeWritePermOfBroker(broker_name)
        answers = await self._namesrv.invoke_all(Code.WIPE_WRITE_PERM_OF_BROKER, header)
        return max(int(answer.ext.get("wipeTopicCount", "0")) for answer in answers)

    async def add_write_perm(self, broker_name: str) -> int:
        """Restore the write permission of all topics of a broker; return how many changed."""
        header = headers.AddWritePermOfBroker(broker_name)
        answers = await self._namesrv.invoke_all(Code.ADD_WRITE_PERM_OF_BROKER, header)
        return max(int(answer.ext.get("addTopicCount", "0")) for answer in answers)

    # -- key-value configuration --------------------------------------------------------------

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key in a namespace."""
        header = headers.PutKvConfig(namespace, key, value)
        await self._namesrv.invoke_all(Code.PUT_KV_CONFIG, header)

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None if the key is not set."""
        header = headers.GetKvConfig(namespace, key)
        response = await self._namesrv.invoke(Code.GET_KV_CONFIG, header, ok=_FOUND_OR_NOT)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return fields_of(response, headers.GetKvConfigReply).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key of a namespace."""
        header = headers.DeleteKvConfig(namespace, key)
        await self._namesrv.invoke_all(Code.DELETE_KV_CONFIG, header)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace."""
        header = headers.GetKvlistByNamespace(namespace)
        response = await self._namesrv.invoke(
            Code.GET_KVLIST_BY_NAMESPACE, header, ok=_FOUND_OR_NOT
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return (await self._namesrv.decode(KVTable, response.body)).table

    # -- the name servers themselves ----------------------------------------------------------

    async def config(self) -> dict[str, str]:
        """Return the settings of the name server in use."""
        return parse_settings((await self._namesrv.invoke(Code.GET_NAMESRV_CONFIG)).body)

    async def update_config(self, changes: Mapping[str, str], *, is_forced: bool = False) -> None:
        """Change settings of every name server.

        Unless `is_forced` is set, raise InvalidArgument for settings that the name server in use
        does not list: it would accept them, but they would have no effect.
        """
        body = render_settings(changes)
        if not is_forced:
            refuse_unknown(changes, await self.config(), "the name server")
        await self._namesrv.invoke_all(Code.UPDATE_NAMESRV_CONFIG, None, body)

    async def _topics(self, code: Code) -> list[str]:
        response = await self._namesrv.invoke(code)
        names = (await self._namesrv.decode(TopicList, response.body)).topic_list
        return [it for it in names if it]  # nobody can ask about a topic without a name
