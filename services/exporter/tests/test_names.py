# SPDX-License-Identifier: Apache-2.0
"""The broker and the exporter together have all names that rocketmq-exporter fills."""

from pathlib import Path

from cometmq.broker.exposition import rocketmq_exporter_metrics as exporter
from cometmq.exporter.metrics import CLIENT_FAMILIES

LIST = Path(__file__).parents[2] / "broker/tests/exposition/exporter_names.txt"
NEVER_FILLED = {"rocketmq_group_consume_tps", "rocketmq_group_consume_total_offset"}


def test_the_names_are_those_of_rocketmq_exporter() -> None:
    wanted = {f"rocketmq_{name}" for name in LIST.read_text().split()}
    of_broker = {family.name for family in (*exporter.FAMILIES, *exporter.RUNTIME_FAMILIES)}
    of_clients = {family.name for family in CLIENT_FAMILIES}
    assert of_broker.isdisjoint(of_clients)
    assert of_broker | of_clients == wanted - NEVER_FILLED
    assert len(of_broker | of_clients) == 87
