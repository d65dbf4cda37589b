# SPDX-License-Identifier: Apache-2.0
"""Why a slave cannot follow its master, and what an operator can do about it (pure)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from cometmq.remoting.errors import CometError


class Unfit(StrEnum):
    """The reasons: values of a metric label, so those of a peer must not be added."""

    AHEAD = "ahead"
    EXPIRED = "expired"
    OFFSET = "offset"
    NOT_A_RECORD = "not-a-record"
    FILE_SIZE = "file-size"
    RECORD_TOO_LARGE = "record-too-large"
    FOREIGN = "foreign"
    REFUSED = "refused"
    ACK = "ack"
    PROTOCOL = "protocol"
    VERSION = "version"
    STALE_EPOCH = "stale-epoch"
    NOT_MASTER = "not-master"
    DUPLICATE = "duplicate"
    DIVERGED = "diverged"
    DIFFERENT = "different"
    DAMAGED = "damaged"
    STOPPING = "stopping"
    UNPROVEN = "unproven"
    ADDRESS = "address"


_REBUILD: Final = (
    "stop the slave, move its store away and start it: it copies the whole log"
    " (docs/runbooks/slave-does-not-follow.md)"
)
ACTIONS: Final[Mapping[Unfit, str]] = {
    Unfit.AHEAD: f"the master may have lost messages in a power failure; to follow it, {_REBUILD}",
    Unfit.EXPIRED: f"the master has deleted the next messages already; {_REBUILD}",
    Unfit.OFFSET: f"the logs have diverged or the master is another one; {_REBUILD}",
    Unfit.NOT_A_RECORD: "restart the slave, which cuts off an incomplete record; if that does not"
    f" help, the logs have diverged: {_REBUILD}",
    Unfit.FILE_SIZE: "give both brokers the same mappedFileSizeCommitLog",
    Unfit.RECORD_TOO_LARGE: "raise maxMessageSize of the slave to the master's",
    Unfit.FOREIGN: "correct brokerName, brokerClusterName or haMasterAddress",
    Unfit.REFUSED: "the master's log says why it closed the connection",
    Unfit.ACK: f"the slave has bytes that this master never sent; {_REBUILD}",
    Unfit.PROTOCOL: "only brokers may connect to haListenPort",
    Unfit.VERSION: "run the same release of CometMQ on all brokers of the group",
    Unfit.STALE_EPOCH: "none: the broker finds the current master in the record of the group",
    Unfit.NOT_MASTER: "none: the broker finds the current master in the record of the group",
    Unfit.DUPLICATE: "give each broker of the group a brokerId of its own",
    Unfit.DIVERGED: f"each log has messages that the other lacks; {_REBUILD}",
    Unfit.DIFFERENT: "one copy has changed bytes that no checksum covers yet: compare both"
    " (docs/runbooks/slave-does-not-follow.md#which-copy-is-right), then rebuild the wrong one",
    Unfit.DAMAGED: "the master cannot read a part of its log: make another copy the master, or"
    " repair its store (cometmq store verify)",
    Unfit.UNPROVEN: "give every broker of the group the same groupKeyFile; if it is none of them,"
    " keep it away from haListenPort",
    Unfit.ADDRESS: "if it is a slave of this broker, add its address to haSlaveAddresses; if not,"
    " keep it away from haListenPort",
    Unfit.STOPPING: "none: the broker follows again once it has started",
}


PASSING: Final = frozenset({Unfit.STALE_EPOCH, Unfit.NOT_MASTER, Unfit.STOPPING})
"""Reasons that occur in every switchover or restart, and go away without an operator's help."""


class UnfitLog(CometError):
    def __init__(self, reason: Unfit, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def is_passing(self) -> bool:
        return self.reason in PASSING

    @property
    def action(self) -> str:
        return ACTIONS[self.reason]
