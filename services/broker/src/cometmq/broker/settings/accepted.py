# SPDX-License-Identifier: Apache-2.0
"""Settings of RocketMQ's broker.conf that have no effect here, each with its reason.

They configure threads, buffers and components that CometMQ does not have. The broker accepts these
settings so that tools find the values they look for. At startup the broker logs each key whose
value differs from RocketMQ's default.
"""

from typing import Annotated, Final

from msgspec import Meta

from cometmq.store.settings import StoreSettings


def _because(reason: str) -> Meta:
    extra = {"mutable": True, "ineffective": True}
    return Meta(description=f"Accepted; {reason}.", extra=extra)


POOL: Final = _because("one event loop serves all requests, without thread pools")
QUEUE: Final = _because("requests do not wait for a thread, and inFlightMax limits them")
CLIENT: Final = _because("the broker's own calls need no pools or limits")
SOCKET: Final = _because(
    "the system sizes socket buffers, and writeBufferHighBytes limits the broker's own buffers"
)
NETTY: Final = _because("the setting configures RocketMQ's network library")
COMMERCIAL: Final = _because("only a commercial edition has these counters")
DLEDGER: Final = _because("brokers do not replicate with DLedger")
LIGHT: Final = _because("light message queues (LMQ) are not implemented")
BLOOM: Final = _because("filters are evaluated on the messages, without Bloom filters")
DELAY: Final = _because("delayed messages never wait for each other when they are delivered")
PLUGIN: Final = _because("there are no plug-ins and no filter servers")
FOLDERS: Final = _because("a log cannot span several folders")
UNUSED: Final = _because("RocketMQ 4.9.4 does not use the setting either")
LOGS: Final = _because("logging is configured for the process, not for the broker")
PAGES: Final = _because("files are not mapped")
DIAGNOSIS: Final = _because("the setting is for diagnosing RocketMQ's own locks")
DETAIL: Final = _because("queue statistics are kept for delayed messages only")


class AcceptedSettings(StoreSettings, frozen=True, kw_only=True, rename="camel"):
    """Settings without effect, with RocketMQ's defaults."""

    # Threads and queues of RocketMQ's executors: one event loop serves everything here.
    admin_broker_thread_pool_nums: Annotated[int, POOL] = 16
    client_async_semaphore_value: Annotated[int, CLIENT] = 65_535
    client_callback_executor_threads: Annotated[int, CLIENT] = 2
    client_manage_thread_pool_nums: Annotated[int, POOL] = 32
    client_manager_thread_pool_queue_capacity: Annotated[int, QUEUE] = 1_000_000
    client_oneway_semaphore_value: Annotated[int, CLIENT] = 65_535
    client_worker_threads: Annotated[int, CLIENT] = 4
    consumer_manage_thread_pool_nums: Annotated[int, POOL] = 32
    consumer_manager_thread_pool_queue_capacity: Annotated[int, QUEUE] = 1_000_000
    end_transaction_pool_queue_capacity: Annotated[int, QUEUE] = 100_000
    end_transaction_thread_pool_nums: Annotated[int, POOL] = 12
    heartbeat_thread_pool_nums: Annotated[int, POOL] = 2
    heartbeat_thread_pool_queue_capacity: Annotated[int, QUEUE] = 50_000
    process_reply_message_thread_pool_nums: Annotated[int, POOL] = 20
    pull_message_thread_pool_nums: Annotated[int, POOL] = 20
    put_message_future_thread_pool_nums: Annotated[int, POOL] = 2
    put_thread_pool_queue_capacity: Annotated[int, QUEUE] = 10_000
    query_message_thread_pool_nums: Annotated[int, POOL] = 10
    query_thread_pool_queue_capacity: Annotated[int, QUEUE] = 20_000
    reply_thread_pool_queue_capacity: Annotated[int, QUEUE] = 10_000
    send_message_thread_pool_nums: Annotated[int, POOL] = 2
    server_async_semaphore_value: Annotated[int, QUEUE] = 64
    server_callback_executor_threads: Annotated[int, POOL] = 0
    server_oneway_semaphore_value: Annotated[int, QUEUE] = 256
    server_selector_threads: Annotated[int, POOL] = 3
    server_worker_threads: Annotated[int, POOL] = 8
    wait_time_mills_in_heartbeat_queue: Annotated[int, QUEUE] = 31_000
    wait_time_mills_in_pull_queue: Annotated[int, QUEUE] = 5_000
    wait_time_mills_in_send_queue: Annotated[int, QUEUE] = 200
    wait_time_mills_in_transaction_queue: Annotated[int, QUEUE] = 3_000
    broker_fast_failure_enable: Annotated[bool, QUEUE] = True

    # Buffers and sockets of RocketMQ's network library.
    channel_not_active_interval: Annotated[int, CLIENT] = 60_000
    client_channel_max_idle_time_seconds: Annotated[int, CLIENT] = 120
    client_close_socket_if_timeout: Annotated[bool, CLIENT] = True
    client_pooled_byte_buf_allocator_enable: Annotated[bool, NETTY] = False
    client_socket_rcv_buf_size: Annotated[int, SOCKET] = 0
    client_socket_snd_buf_size: Annotated[int, SOCKET] = 0
    connect_timeout_millis: Annotated[int, CLIENT] = 3_000
    server_pooled_byte_buf_allocator_enable: Annotated[bool, NETTY] = True
    server_socket_backlog: Annotated[int, SOCKET] = 1_024
    server_socket_rcv_buf_size: Annotated[int, SOCKET] = 0
    server_socket_snd_buf_size: Annotated[int, SOCKET] = 0
    use_epoll_native_selector: Annotated[bool, NETTY] = False
    write_buffer_high_water_mark: Annotated[int, SOCKET] = 0
    write_buffer_low_water_mark: Annotated[int, SOCKET] = 0

    # Parts of RocketMQ that are not implemented.
    commercial_base_count: Annotated[int, COMMERCIAL] = 1
    commercial_big_count: Annotated[int, COMMERCIAL] = 1
    commercial_enable: Annotated[bool, COMMERCIAL] = True
    commercial_timer_count: Annotated[int, COMMERCIAL] = 1
    commercial_trans_count: Annotated[int, COMMERCIAL] = 1
    debug_lock_enable: Annotated[bool, DIAGNOSIS] = False
    enable_calc_filter_bit_map: Annotated[bool, BLOOM] = False
    enable_d_leger_commit_log: Annotated[bool, DLEDGER] = False
    d_leger_group: Annotated[str | None, DLEDGER] = None
    d_leger_peers: Annotated[str | None, DLEDGER] = None
    d_leger_self_id: Annotated[str | None, DLEDGER] = None
    enable_detail_stat: Annotated[bool, DETAIL] = True
    enable_lmq: Annotated[bool, LIGHT] = False
    enable_multi_dispatch: Annotated[bool, LIGHT] = False
    enable_schedule_async_deliver: Annotated[bool, DELAY] = False
    filter_server_nums: Annotated[int, PLUGIN] = 0
    flush_consumer_offset_history_interval: Annotated[int, UNUSED] = 60_000
    flush_least_pages_when_warm_maped_file: Annotated[int, PAGES] = 4_096
    high_speed_mode: Annotated[bool, UNUSED] = False
    is_enable_batch_push: Annotated[bool, DLEDGER] = False
    isolate_log_enable: Annotated[bool, LOGS] = False
    max_delay_time: Annotated[int, UNUSED] = 40
    max_lmq_consume_queue_num: Annotated[int, LIGHT] = 20_000
    message_store_plug_in: Annotated[str, PLUGIN] = ""
    preferred_leader_id: Annotated[str | None, DLEDGER] = None
    put_msg_index_hight_water: Annotated[int, UNUSED] = 600_000
    read_only_commit_log_store_paths: Annotated[str | None, FOLDERS] = None
    schedule_async_deliver_max_pending_limit: Annotated[int, DELAY] = 2_000
    schedule_async_deliver_max_resend_num2_blocked: Annotated[int, DELAY] = 3
    store_path_d_ledger_commit_log: Annotated[str | None, DLEDGER] = None
