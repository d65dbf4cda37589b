# SPDX-License-Identifier: Apache-2.0
"""The `log` argument of clients."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ScheduledPull,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.log import LoggerLog, StandardLogger, log_of
from cometmq.client.testing import MemoryCluster

LOGGER = logging.getLogger("app.messages")  # noqa: TID251  # the logger of a program


def commit(_message: object) -> TransactionState:
    return TransactionState.COMMIT


CLIENTS: list[Callable[[Any], object]] = [
    lambda log: AdminClient("a:1", log=log),
    lambda log: LitePullConsumer("g", "a:1", log=log),
    lambda log: Producer("g", "a:1", log=log),
    lambda log: PullConsumer("g", "a:1", log=log),
    lambda log: PushConsumer("g", "a:1", listener=print, log=log),
    lambda log: ScheduledPull("g", "a:1", log=log),
    lambda log: TransactionProducer("g", "a:1", check=commit, log=log),
]


@pytest.mark.parametrize("log", [LOGGER, logging.LoggerAdapter(LOGGER, {})])
async def test_events_go_to_the_logger_of_the_program(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, log: StandardLogger
) -> None:
    caplog.set_level(logging.INFO)
    async with Producer("pg", cluster.namesrv, log=log) as producer:
        await producer.send(Message("T", b"x"), timeout_ms=60_000)
    found = [record for record in caplog.records if record.name == LOGGER.name]
    assert "route.changed topic=T brokers=['broker-a']" in [one.getMessage() for one in found]
    assert "cometmq" not in {record.name for record in caplog.records}


def test_a_failure_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    LoggerLog(LOGGER).error("listener.failed", group="g", exc_info=ValueError("x"))
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "listener.failed group=g")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_a_level_that_is_off_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger=LOGGER.name)
    log = log_of(LOGGER)
    log.debug("a.b")
    log.info("a.b")
    log.warning("a.b")
    assert caplog.records == []
