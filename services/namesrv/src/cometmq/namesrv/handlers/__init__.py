# SPDX-License-Identifier: Apache-2.0
"""The handlers by request code. Requests with other codes are answered with code 3."""

from collections.abc import Mapping
from typing import Any, Final

from cometmq.namesrv.handlers.admin import (
    add_write_perm_of_broker,
    delete_topic_in_namesrv,
    get_all_topic_list_from_nameserver,
    get_has_unit_sub_topic_list,
    get_has_unit_sub_ununit_topic_list,
    get_namesrv_config,
    get_system_topic_list_from_ns,
    get_topics_by_cluster,
    get_unit_topic_list,
    update_namesrv_config,
    wipe_write_perm_of_broker,
)
from cometmq.namesrv.handlers.brokers import (
    query_data_version,
    register_broker,
    unregister_broker,
)
from cometmq.namesrv.handlers.kv import (
    delete_kv_config,
    get_kv_config,
    get_kvlist_by_namespace,
    put_kv_config,
)
from cometmq.namesrv.handlers.routes import get_broker_cluster_info, get_routeinfo_by_topic
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.transport.bodies import bounded_bodies

_HANDLERS: Final[Mapping[int, Any]] = {
    RequestCode.PUT_KV_CONFIG: put_kv_config,
    RequestCode.GET_KV_CONFIG: get_kv_config,
    RequestCode.DELETE_KV_CONFIG: delete_kv_config,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_routeinfo_by_topic,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_broker_cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_perm_of_broker,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topic_list_from_nameserver,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic_in_namesrv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kvlist_by_namespace,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topic_list_from_ns,
    RequestCode.GET_UNIT_TOPIC_LIST: get_unit_topic_list,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: get_has_unit_sub_topic_list,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: get_has_unit_sub_ununit_topic_list,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_namesrv_config,
    RequestCode.GET_NAMESRV_CONFIG: get_namesrv_config,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_perm_of_broker,
}

HANDLERS: Final[Mapping[int, Any]] = bounded_bodies(_HANDLERS)
