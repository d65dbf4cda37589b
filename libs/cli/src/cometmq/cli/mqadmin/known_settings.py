# SPDX-License-Identifier: Apache-2.0
"""Refuses mistyped settings, which servers would accept without effect.

A server's answer lists its own settings, so keys of other RocketMQ versions are known, too. Keys
that the answer lacks, because they are unset in RocketMQ or have no effect in CometMQ, are in our
settings or listed here.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final, NamedTuple

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.programs import PROGRAMS

_NETTY: Final = frozenset(
    {
        *("listenPort", "serverWorkerThreads", "serverCallbackExecutorThreads"),
        *("serverSelectorThreads", "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue"),
        *("serverChannelMaxIdleTimeSeconds", "serverSocketSndBufSize", "serverSocketRcvBufSize"),
        *("writeBufferHighWaterMark", "writeBufferLowWaterMark", "serverSocketBacklog"),
        *("serverPooledByteBufAllocatorEnable", "useEpollNativeSelector"),
    }
)


class Kind(NamedTuple):
    """A kind of server: our settings for it, and RocketMQ's additional keys."""

    program: str
    more: frozenset[str]


BROKER: Final = Kind(
    "broker",
    _NETTY
    | {
        *("enableAsyncDeliver", "forwardTimeout", "maxBatchDeleteFilesNum", "putMessageTimeout"),
        *("rejectPullConsumerEnable", "storePathReadOnlyCommitLogPaths"),
    },
)
NAMESRV: Final = Kind(
    "namesrv",
    _NETTY | {"rocketmqHome", "productEnvName", "returnOrderTopicConfigToBroker"},
)


def refuse_unknown(key: str, address: str, config: Mapping[str, str], kind: Kind) -> None:
    """Raise InvalidArgument if neither the server nor RocketMQ has a setting of this name."""
    if key in config or key in kind.more:
        return
    fields_of = import_module("cometmq.runtime.settings.fields").fields_of
    ours = fields_of(PROGRAMS[kind.program].settings_type())
    if key not in ours:
        known = {*config, *ours, *kind.more}
        raise InvalidArgument(
            f"{address} has no setting {key}; to send it anyway, give --force"
            f"{did_you_mean(key, known)}"
        )
