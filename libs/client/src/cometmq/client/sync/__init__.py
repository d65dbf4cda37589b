# SPDX-License-Identifier: Apache-2.0
"""Blocking clients for programs without an event loop.

All clients of a process run on one event loop in its own thread. Options, messages and errors are
the same as in `cometmq.client`; listeners are plain functions, called on other threads.
"""

from cometmq.client.sync.clients import (
    ClientAdmin,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    Transaction,
)
from cometmq.client.sync.loop import SyncClient, loop_thread
from cometmq.client.sync.special import (
    AdminClient,
    ScheduledPull,
    TransactionProducer,
    on_signal,
    until_signal,
)

__all__ = [
    "AdminClient",
    "ClientAdmin",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ScheduledPull",
    "SyncClient",
    "Transaction",
    "TransactionProducer",
    "loop_thread",
    "on_signal",
    "until_signal",
]
