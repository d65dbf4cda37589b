# SPDX-License-Identifier: Apache-2.0
"""Runs `cometmq-lag snapshot` against brokers with access control and TLS."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cometmq.peers.comet import CometCluster
from cometmq.spark.lag.cli import Exit
from cometmq.testing.spark import run_lag

ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: collectorKey1
  secretKey: collectorSecret1
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CometCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    with CometCluster(folder, {"aclEnable": True}) as cluster:
        yield cluster


def account(folder: Path, secret: str = "collectorSecret1") -> Path:
    path = folder / "account.yml"
    path.write_text(f"accessKey: collectorKey1\nsecretKey: {secret}\n")
    return path


def make_certificate(path: Path) -> None:
    """Write a CA certificate that has signed no server's certificate."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=others"]
    subprocess.run(
        [*words, "-keyout", path.with_suffix(".key"), "-out", path], check=True, capture_output=True
    )


def snapshot(cluster: CometCluster, history: Path, *words: object) -> tuple[int, list[str]]:
    status, _, lines = run_lag("snapshot", history, "--namesrv", cluster.namesrv_addr, *words)
    return status, lines


@pytest.mark.parametrize("words", [(), ("--tls",)], ids=["plain", "tls"])
def test_account_without_admin_rights_suffices(
    guarded: CometCluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    history = tmp_path / "history"
    status, lines = snapshot(guarded, history, "--credentials", account(tmp_path), *words)
    assert status == Exit.OK, lines
    (path,) = history.glob("raw/brokers/*/*/*.parquet")
    assert pq.read_table(path, partitioning=None)["reachable"].to_pylist() == [True]


@pytest.mark.parametrize(
    ("secret", "reason"),
    [("x", "Check signature failed"), (None, "No accessKey is configured")],
    ids=["wrong", "none"],
)
def test_unknown_account_fails_with_one_line_and_writes_nothing(
    guarded: CometCluster, tmp_path: Path, secret: str | None, reason: str
) -> None:
    history = tmp_path / "history"
    words = () if secret is None else ("--credentials", account(tmp_path, secret))
    status, lines = snapshot(guarded, history, *words)
    assert (status, len(lines)) == (Exit.FAILED, 1)
    assert reason in lines[0]
    assert secret is None or "collectorSecret1" not in lines[0]
    assert not history.exists()


def test_unverifiable_server_is_not_queried(guarded: CometCluster, tmp_path: Path) -> None:
    history, others = tmp_path / "history", tmp_path / "ca.pem"
    make_certificate(others)
    status, lines = snapshot(guarded, history, "--tls-ca", others)
    assert (status, len(lines)) == (Exit.FAILED, 1)
    assert "CERTIFICATE_VERIFY_FAILED" in lines[0]
    assert not history.exists()


def test_missing_certificate_file_is_named(guarded: CometCluster, tmp_path: Path) -> None:
    status, lines = snapshot(guarded, tmp_path / "history", "--tls-ca", tmp_path / "none.pem")
    assert (status, len(lines)) == (Exit.FAILED, 1)
    assert "none.pem" in lines[0]
