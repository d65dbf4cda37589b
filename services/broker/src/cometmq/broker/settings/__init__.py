# SPDX-License-Identifier: Apache-2.0
"""Every setting of a broker under its RocketMQ name, including the store's settings.

The struct is flat because broker.conf is a flat file. Unknown keys are kept and returned by
GET_BROKER_CONFIG; only those of RocketMQ 5 that mean safety are fatal (`rocketmq5.py`).
"""

import socket
from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from cometmq.broker.settings.limits import LimitSettings
from cometmq.broker.settings.rocketmq5 import ROCKETMQ_5
from cometmq.remoting.names import DEFAULT_CLUSTER, DEFAULT_REGION, TRACE_TOPIC
from cometmq.remoting.setting_facts import (
    GUARD,
    INEFFECTIVE,
    MUTABLE,
    PATH,
    SECRET,
    Natural,
    Positive,
    form,
)
from cometmq.runtime import tls_keys

NAME_PATTERN: Final = r"^[A-Za-z0-9._\-|%]+$"
TOPIC_PATTERN: Final = r"^[A-Za-z0-9_\-|%]+$"
NAME_CHARS_MAX: Final = 127
NAME_FORM: Final = form(f"1 to {NAME_CHARS_MAX} letters, digits and . _ - % |")
TIME_MS_MAX: Final = 253_370_764_800_000  # the year 9999: later times have no text

_OF_CHECKER: Final = Meta(
    description="Read from the file by the txn-checker of `cometmq standalone` when it starts;"
    " other txn-checkers have settings of their own.",
    extra={"mutable": True, "ineffective": True},
)


def _host_name() -> str:
    """Return the host's name, which is Java's default for the broker name."""
    return socket.gethostname() or "DEFAULT_BROKER"


class BrokerSettings(LimitSettings, frozen=True, kw_only=True, rename="camel"):
    """All settings of a broker's properties file."""

    FOREIGN: ClassVar = ROCKETMQ_5

    # Identity and addresses
    broker_name: Annotated[
        str,
        Meta(pattern=NAME_PATTERN, max_length=NAME_CHARS_MAX),
        NAME_FORM,
        "Name of the broker group; brokers of one group hold the same messages.",
    ] = field(default_factory=_host_name)
    broker_cluster_name: Annotated[
        str,
        Meta(pattern=NAME_PATTERN, max_length=NAME_CHARS_MAX),
        NAME_FORM,
        "Cluster of the broker.",
    ] = DEFAULT_CLUSTER
    broker_id: Annotated[
        int,
        Meta(ge=-1),
        "The number of a slave, 1 or higher. A master always registers as 0, as in RocketMQ.",
    ] = 0
    broker_ip1: Annotated[
        str,
        "Address advertised to clients. By default this is bindAddress, if it is a single "
        "address, and otherwise the outgoing address of this machine. 0.0.0.0 and :: are refused.",
    ] = field(default="", name="brokerIP1")
    broker_ip2: Annotated[
        str, "Address advertised to slaves, by default brokerIP1. 0.0.0.0 and :: are refused."
    ] = field(default="", name="brokerIP2")
    advertised_addresses: Annotated[
        str,
        "Addresses at which clients reach brokers whose ports are mapped, as by a container "
        "engine, a node port or a load balancer: brokerId=HOST:PORT, separated by semicolons; "
        "without HOST, brokerIP1. It names every broker of a group, so that all of them can have "
        "the same file. If empty, brokerIP1 and listenPort.",
    ] = ""
    bind_address: Annotated[str, "Local address to listen on; if empty, all addresses."] = ""
    listen_port: Annotated[int, Meta(ge=0, le=65535), "Port for clients."] = 10911
    namesrv_addr: Annotated[str, MUTABLE, "Name servers as host:port, separated by semicolons."] = (
        ""
    )
    region_id: Annotated[str, MUTABLE, "Value of MSG_REGION in answers to sends."] = DEFAULT_REGION
    broker_permission: Annotated[
        int, Meta(ge=0, le=7), MUTABLE, "Permissions of the broker for all topics: 4 read, 2 write."
    ] = 6

    # Registration with the name servers
    register_name_server_period: Annotated[
        int,
        Meta(ge=1000),
        MUTABLE,
        "Milliseconds between registrations; values are clamped to the range from 10 to 60 s.",
    ] = 30_000
    register_broker_timeout_mills: Annotated[
        Positive, MUTABLE, "Timeout of a registration, in milliseconds."
    ] = 6_000
    force_register: Annotated[
        bool, MUTABLE, "Register periodically even when no topic has changed."
    ] = True
    compressed_register: Annotated[bool, MUTABLE, "Compress registrations."] = False
    take_over_name: Annotated[
        bool,
        MUTABLE,
        "Register even if another running broker has this brokerName and brokerId, as RocketMQ "
        "does. If false, the broker does not start in that case.",
    ] = False
    fetch_namesrv_addr_by_address_server: Annotated[
        bool, INEFFECTIVE, "Accepted; name servers come from namesrvAddr."
    ] = False

    # Topics and groups
    default_topic_queue_nums: Annotated[
        int, Meta(ge=1, le=16384), MUTABLE, "Queue count of the default topic TBW102."
    ] = 8
    auto_create_topic_enable: Annotated[
        bool, MUTABLE, "Create an unknown topic on the first send."
    ] = True
    auto_create_subscription_group: Annotated[
        bool, MUTABLE, "Create an unknown group on its first heartbeat."
    ] = True
    cluster_topic_enable: Annotated[bool, "Create the topic named after the cluster."] = True
    broker_topic_enable: Annotated[bool, "Create the topic named after the broker."] = True
    trace_topic_enable: Annotated[bool, "Create the trace topic."] = False
    msg_trace_topic_name: Annotated[
        str,
        Meta(pattern=TOPIC_PATTERN, max_length=NAME_CHARS_MAX),
        MUTABLE,
        form(f"1 to {NAME_CHARS_MAX} letters, digits and _ - % |"),
        "Topic for message traces.",
    ] = TRACE_TOPIC
    trace_on: Annotated[
        bool,
        MUTABLE,
        "Value of TRACE_ON in answers to sends, which tells clients whether they may trace.",
    ] = True
    notify_consumer_ids_changed_enable: Annotated[
        bool, MUTABLE, "Notify a group's consumers when its members change."
    ] = True
    auto_delete_unused_stats: Annotated[
        bool, MUTABLE, "Drop the statistics of deleted topics and groups."
    ] = False

    enable_schedule_message_stats: Annotated[
        bool, MUTABLE, "Count delayed messages again when they are delivered."
    ] = True

    # Sending
    start_accept_send_request_time_stamp: Annotated[
        int,
        Meta(ge=0, le=TIME_MS_MAX),
        MUTABLE,
        "Sends are refused until this time (ms since 1970).",
    ] = 0
    reject_transaction_message: Annotated[bool, MUTABLE, "Refuse transactional messages."] = False
    timer_wheel_enable: Annotated[
        bool,
        MUTABLE,
        "Deliver messages at the time in TIMER_DELIVER_MS, TIMER_DELAY_MS or TIMER_DELAY_SEC; "
        "false ignores these properties, as RocketMQ 4.9 does.",
    ] = True
    timer_max_delay_sec: Annotated[
        int,
        Meta(ge=1, le=TIME_MS_MAX // 1_000),
        MUTABLE,
        "The latest time of such a message (s from now); at most 50 times the longest delay level.",
    ] = 259_200
    store_reply_message_enable: Annotated[
        bool, MUTABLE, "Also store replies in <cluster>_REPLY_TOPIC."
    ] = True
    native_lane_enable: Annotated[
        bool,
        "Handle plain sends and pulls on the native message path if cometmq-accel is installed; "
        "answers and files are the same.",
    ] = True
    native_tls_enable: Annotated[
        bool,
        "Encrypt and decrypt TLS connections natively (with rustls) if nativeLaneEnable is true "
        "and cometmq-accel is installed; otherwise OpenSSL does it, and also serves encrypted "
        "keys and clients that offer no cipher of rustls.",
    ] = True
    native_cache_bytes: Annotated[
        int,
        Meta(ge=0, le=1 << 30),
        MUTABLE,
        "Memory for recently read parts of the log and the consume queues, from which the native "
        "message path answers pulls. If 0, pulls take the Python path.",
    ] = 32 << 20
    send_thread_pool_queue_capacity: Annotated[
        Positive,
        MUTABLE,
        "Maximum number of sends that wait for the disk; further sends are refused with "
        "SYSTEM_BUSY.",
    ] = 10_000

    # Pulling
    long_polling_enable: Annotated[
        bool, MUTABLE, "Hold a pull that finds nothing until a message arrives."
    ] = True
    short_polling_time_mills: Annotated[
        Natural, MUTABLE, "Milliseconds to hold a pull when long polling is off."
    ] = 1_000
    pull_thread_pool_queue_capacity: Annotated[
        Positive, MUTABLE, "Maximum number of held pulls; a further one wakes others."
    ] = 100_000
    slave_sync_delay_mills: Annotated[
        Natural, "Milliseconds from a slave's start until it first copies its master's tables."
    ] = 3_000
    slave_sync_interval_mills: Annotated[
        int, Meta(ge=100), "Milliseconds between a slave's copies of its master's tables."
    ] = 10_000
    ha_connections_max: Annotated[
        Positive, MUTABLE, "Maximum number of connections of slaves and members to haListenPort."
    ] = 64
    ha_slave_addresses: Annotated[
        str,
        GUARD,
        "Hosts that may follow the log over RocketMQ's stream, which proves nothing: IP addresses "
        "and networks (10.0.0.0/24), separated by semicolons; `registered` stands for this host "
        "and the slaves that name servers list under this brokerName, `*` for any host.",
    ] = "registered"
    max_ha_transfer_byte_in_second: Annotated[
        Natural,
        MUTABLE,
        "Maximum bytes per second sent to each slave; 0 means no limit. The setting comes from "
        "RocketMQ 5.",
    ] = 0
    slave_read_enable: Annotated[
        bool, MUTABLE, "Suggest a slave to consumers that are far behind."
    ] = False
    enable_property_filter: Annotated[
        bool,
        MUTABLE,
        "Filter by SQL92 expressions over properties; if false, such subscriptions are refused.",
    ] = False
    filter_support_retry: Annotated[
        bool, MUTABLE, "Also apply a group's SQL92 expressions to its redelivered messages."
    ] = False
    filter_data_clean_time_span: Annotated[
        Natural, "Milliseconds for which the filters of a group without members are kept."
    ] = 86_400_000
    expect_consumer_num_use_filter: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        "Expected number of entries in RocketMQ's Bloom filter, whose bits are saved in "
        "consumerFilter.json; messages are filtered without it.",
    ] = 32
    max_error_rate_of_bloom_filter: Annotated[
        int, Meta(ge=1, le=99), "False-positive rate of RocketMQ's Bloom filter, in percent."
    ] = 20
    disable_consume_if_consumer_read_slowly: Annotated[
        bool, MUTABLE, "Disable groups that fall behind by more than consumerFallbehindThreshold."
    ] = False
    consumer_fallbehind_threshold: Annotated[
        Natural,
        MUTABLE,
        "Number of bytes behind the newest message above which a group counts as too slow.",
    ] = 16 * 1024**3
    transfer_msg_by_heap: Annotated[
        bool,
        INEFFECTIVE,
        "Accepted; answers always reference the bytes read, without copying them.",
    ] = True
    young_queue_starts_at_zero: Annotated[
        bool,
        MUTABLE,
        "If true, RocketMQ's rule applies: in a queue whose first message is still in memory, a "
        "group without an offset starts at 0, regardless of its consumeFromWhere. If false, a new "
        "group follows its consumeFromWhere in such a queue, too.",
    ] = True

    # Offsets, transactions, access control
    flush_consumer_offset_interval: Annotated[
        int, Meta(ge=100), "Milliseconds between saves of the committed offsets."
    ] = 5_000
    transaction_time_out: Annotated[Natural, _OF_CHECKER] = 6_000
    transaction_check_max: Annotated[Natural, _OF_CHECKER] = 15
    transaction_check_interval: Annotated[Positive, _OF_CHECKER] = 60_000
    acl_enable: Annotated[bool, GUARD, "Check the signatures and permissions of all requests."] = (
        False
    )
    acl_file: Annotated[
        str,
        PATH,
        GUARD,
        "Account file for access control; the folder acl next to it is also read. By default, "
        "this is conf/plain_acl.yml in rocketmqHome, otherwise plain_acl.yml next to the file "
        "given with -c, otherwise plain_acl.yml in the store's config folder.",
    ] = ""
    access_key: Annotated[
        str,
        GUARD,
        "Account with which the broker signs its registrations; name servers with aclEnable "
        "demand an administrator's.",
    ] = ""
    secret_key: Annotated[str, GUARD, SECRET, "Secret key of accessKey."] = ""
    acl_check_stored_topic: Annotated[
        bool,
        MUTABLE,
        GUARD,
        "Whether VIEW_MESSAGE_BY_ID (33) and CONSUMER_SEND_MSG_BACK (36), which name a message by "
        "its position, require SUB on its topic. If false, as in RocketMQ, every account can use "
        "them to read every message.",
    ] = False
    acl_rocketmq_4_rights: Annotated[
        bool,
        GUARD,
        "Whether RocketMQ 4.9's rights apply where those of RocketMQ 5 are stricter: an account "
        "then needs only a signature to end transactions, lock and unlock queues, reply, ask "
        "consumers for their state and stacks, join producer groups, and register filter servers.",
    ] = False
    acl_signed_age_max: Annotated[
        Natural,
        GUARD,
        "Maximum age in ms of the time that a send is signed with (bornTimestamp), in both "
        "directions; older sends are refused. 0 accepts any, as RocketMQ does; a captured send "
        "can then be repeated at any time. Other requests contain no time.",
    ] = 0
    rocketmq_home: Annotated[str, PATH, "Folder of a RocketMQ installation; see aclFile."] = ""

    # Operation and TLS
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65535),
        "Port for metrics and health checks on `bindAddress`; 0: any, -1: none.",
    ] = -1
    metrics_rows_max: Annotated[
        Natural,
        "Maximum number of topics, groups, or groups in topics that one metric shows; "
        "`cometmq_metrics_dropped_rows` counts the rest.",
    ] = 2_000
    metrics_exporter_names: Annotated[
        bool, "Also show metrics under the names of rocketmq-exporter."
    ] = True
    metrics_native_names: Annotated[bool, "Also show metrics under the names of RocketMQ 5."] = True
    stop_timeout_mills: Annotated[
        Natural, "Milliseconds to wait for open requests to finish at shutdown."
    ] = 5_000
    tls_server: tls_keys.ServerKeys = field(default_factory=tls_keys.ServerKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    tls_client: tls_keys.ClientKeys = field(default_factory=tls_keys.ClientKeys)
