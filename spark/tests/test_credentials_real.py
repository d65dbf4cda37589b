# SPDX-License-Identifier: Apache-2.0
"""Reads from brokers with access control and TLS, with correct and wrong credentials."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.peers.comet import CometCluster
from cometmq.spark.errors import NameServerUnreachable, OptionError, Refused, SendIncomplete
from cometmq.spark.options.definitions import parse
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.schemas import table_schema
from cometmq.spark.write.sink import MessageWriter
from cometmq.testing.spark import fill

ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: readerKey1
  secretKey: readerSecret1
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: writerKey1
  secretKey: writerSecret1
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: adminKey1
  secretKey: adminSecret1
  whiteRemoteAddress: ""
  admin: true
"""
READER = {"accessKey": "readerKey1", "secretKey": "readerSecret1"}
WRITER = {"accessKey": "writerKey1", "secretKey": "writerSecret1"}
TOPIC = "TBW102"  # always exists: creating a topic needs an account
BODY = StructType([StructField("body", BinaryType())])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CometCluster]:
    """A broker with two accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    with CometCluster(folder, {"aclEnable": True}) as cluster:
        yield cluster


def write(cluster: CometCluster, count: int, **options: str) -> None:
    given = {"nameServer": cluster.namesrv_addr, "topic": TOPIC, **options}
    batch = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(count)]})
    MessageWriter(parse(given), BODY, overwrite=False).write(iter([batch]))


def read(cluster: CometCluster, topic: str = TOPIC, **options: str) -> list[dict[str, Any]]:
    parsed = parse({"nameServer": cluster.namesrv_addr, "subscribe": topic, **options})
    reader = MessageReader(parsed, table_schema(parsed))
    return [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]


def test_accounts_read_and_write_within_their_rights(guarded: CometCluster, tmp_path: Path) -> None:
    write(guarded, 30, **WRITER)
    secrets = tmp_path / "account.yml"
    secrets.write_text("accessKey: readerKey1\nsecretKey: readerSecret1\n")

    assert len(read(guarded, **READER)) == 30
    assert len(read(guarded, secretFile=str(secrets))) == 30
    with pytest.raises(SendIncomplete, match="No default permission for topic:TBW102"):
        write(guarded, 1, **READER)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "No accessKey is configured"),
        ({"accessKey": "readerKey1", "secretKey": "x"}, "Check signature failed for .*readerKey1"),
        ({"accessKey": "nobodyKey1", "secretKey": "x"}, "No acl config for nobodyKey1"),
    ],
)
def test_wrong_credentials_are_a_one_line_error(
    guarded: CometCluster, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        read(guarded, **options)
    assert "\n" not in str(caught.value)


def test_unreadable_secret_file_is_named(guarded: CometCluster) -> None:
    with pytest.raises(OptionError, match=r"option `secretFile`: .*nowhere.yml"):
        read(guarded, secretFile="nowhere.yml")


def test_read_and_write_over_tls(cluster: CometCluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 300)

    assert len(read(cluster, topic, useTLS="true", **{"tls.verify": "false"})) == 1200


def test_unverifiable_server_is_rejected(cluster: CometCluster, topic: str) -> None:
    with pytest.raises(NameServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        read(cluster, topic, useTLS="true")
    with pytest.raises(OptionError, match=r"nothing\.pem"):
        read(cluster, topic, useTLS="true", **{"tls.caFile": "nothing.pem"})
