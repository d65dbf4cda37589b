# SPDX-License-Identifier: Apache-2.0
"""Keys of RocketMQ's broker.conf that change nothing here.

They stand for threads, buffers and parts that CometMQ does not have. They are known so that a
file with them is no reason for a warning, and so that tools find the values they look for.
"""

from typing import Annotated

from msgspec import Meta, field

from cometmq.store.settings import MUTABLE, StoreSettings

Text = Annotated[
    str, Meta(description="Accepted for RocketMQ's files; changes nothing.", extra=MUTABLE)
]
Number = Annotated[
    int, Meta(description="Accepted for RocketMQ's files; changes nothing.", extra=MUTABLE)
]
Switch = Annotated[
    bool, Meta(description="Accepted for RocketMQ's files; changes nothing.", extra=MUTABLE)
]


class AcceptedSettings(StoreSettings, frozen=True, kw_only=True, rename="camel"):
    """Settings without an effect, with RocketMQ's defaults."""

    # Threads and queues of RocketMQ's executors: one loop serves everything here.
    admin_broker_thread_pool_nums: Number = 16
    client_async_semaphore_value: Number = 65_535
    client_callback_executor_threads: Number = 2
    client_manage_thread_pool_nums: Number = 32
    client_manager_thread_pool_queue_capacity: Number = 1_000_000
    client_oneway_semaphore_value: Number = 65_535
    client_worker_threads: Number = 4
    consumer_manage_thread_pool_nums: Number = 32
    consumer_manager_thread_pool_queue_capacity: Number = 1_000_000
    end_transaction_pool_queue_capacity: Number = 100_000
    end_transaction_thread_pool_nums: Number = 12
    heartbeat_thread_pool_nums: Number = 2
    heartbeat_thread_pool_queue_capacity: Number = 50_000
    process_reply_message_thread_pool_nums: Number = 20
    pull_message_thread_pool_nums: Number = 20
    put_message_future_thread_pool_nums: Number = 2
    put_thread_pool_queue_capacity: Number = 10_000
    query_message_thread_pool_nums: Number = 10
    query_thread_pool_queue_capacity: Number = 20_000
    reply_thread_pool_queue_capacity: Number = 10_000
    send_message_thread_pool_nums: Number = 2
    server_async_semaphore_value: Number = 64
    server_callback_executor_threads: Number = 0
    server_oneway_semaphore_value: Number = 256
    server_selector_threads: Number = 3
    server_worker_threads: Number = 8
    wait_time_mills_in_heartbeat_queue: Number = 31_000
    wait_time_mills_in_pull_queue: Number = 5_000
    wait_time_mills_in_send_queue: Number = 200
    wait_time_mills_in_transaction_queue: Number = 3_000
    broker_fast_failure_enable: Switch = True

    # Buffers and sockets of RocketMQ's network library.
    channel_not_active_interval: Number = 60_000
    client_channel_max_idle_time_seconds: Number = 120
    client_close_socket_if_timeout: Switch = True
    client_pooled_byte_buf_allocator_enable: Switch = False
    client_socket_rcv_buf_size: Number = 0
    client_socket_snd_buf_size: Number = 0
    connect_timeout_millis: Number = 3_000
    server_pooled_byte_buf_allocator_enable: Switch = True
    server_socket_backlog: Number = 1_024
    server_socket_rcv_buf_size: Number = 0
    server_socket_snd_buf_size: Number = 0
    use_epoll_native_selector: Switch = False
    use_tls: Switch = field(default=False, name="useTLS")
    write_buffer_high_water_mark: Number = 0
    write_buffer_low_water_mark: Number = 0

    # Parts of RocketMQ that are not built.
    commercial_base_count: Number = 1
    commercial_big_count: Number = 1
    commercial_enable: Switch = True
    commercial_timer_count: Number = 1
    commercial_trans_count: Number = 1
    debug_lock_enable: Switch = False
    enable_calc_filter_bit_map: Switch = False
    enable_d_leger_commit_log: Switch = False
    enable_detail_stat: Switch = True
    enable_lmq: Switch = False
    enable_multi_dispatch: Switch = False
    enable_schedule_async_deliver: Switch = False
    enable_schedule_message_stats: Switch = True
    expect_consumer_num_use_filter: Number = 32
    filter_data_clean_time_span: Number = 86_400_000
    filter_server_nums: Number = 0
    flush_consumer_offset_history_interval: Number = 60_000
    flush_least_pages_when_warm_maped_file: Number = 4_096
    high_speed_mode: Switch = False
    is_enable_batch_push: Switch = False
    isolate_log_enable: Switch = False
    max_delay_time: Number = 40
    max_error_rate_of_bloom_filter: Number = 20
    max_lmq_consume_queue_num: Number = 20_000
    message_store_plug_in: Text = ""
    put_msg_index_hight_water: Number = 600_000
    schedule_async_deliver_max_pending_limit: Number = 2_000
    schedule_async_deliver_max_resend_num2_blocked: Number = 3
