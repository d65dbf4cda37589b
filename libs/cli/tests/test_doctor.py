# SPDX-License-Identifier: Apache-2.0
"""The doctor's verdicts, and archives without secrets."""

import gzip
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from cometmq.cli.operation import evidence as evidence_module
from cometmq.cli.operation.diagnosis import OK, diagnose
from cometmq.cli.operation.doctor import PIPED_CHARS
from cometmq.cli.operation.evidence import Evidence, Server, read_bundle, write_bundle
from cometmq.client.admin.figures import BrokerFigures
from cometmq.insight.finding import Finding, Severity
from cometmq.insight.model import Broker, BrokerState, Disk, Since, Snapshot, Unknown
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.redaction import HIDDEN, redacted_setting, redacted_text

NOW_MS = 1_800_000_000_000


def broker(name, version="V4_9_4", **settings):
    state = BrokerState(BrokerFigures(version=version), Disk(0.5), settings=settings)
    return Broker("c", name, 0, f"{name}:1", state)


def of(*brokers, servers=(), **changes):
    unknown = Unknown("-")
    snapshot = Snapshot(
        "n:1", NOW_MS, 1, brokers, (), (), unknown, unknown, unknown, unknown
    )  # fmt: skip
    facts = {"taken_ms": NOW_MS, "host": "h", "program": "p", "servers": servers}
    return Evidence(**{**facts, "snapshot": snapshot, **changes})


def wrong(evidence):
    return [(it.area, str(it.level)) for it in diagnose(evidence) if it.level != OK]


def test_a_cluster_without_faults_gets_a_verdict_for_each_area():
    verdicts = diagnose(of(broker("a"), broker("b")))
    assert [it.level for it in verdicts] == [OK] * 7
    assert len({it.area for it in verdicts}) == 7


@pytest.mark.parametrize(
    ("since", "told"),
    [
        (Since(NOW_MS - 60_000), ", since 2027-01-15 07:59:00Z (1 min)"),
        (Since(NOW_MS - 60_000, is_bound=True), ", at least since 2027-01-15 07:59:00Z (1 min)"),
        (Since(NOW_MS, is_bound=True), ""),
    ],
)
def test_a_problem_says_since_when_unless_only_the_look_is_known(since, told):
    problem = Finding(
        rule="r", severity=Severity.WARNING, subject="G", since=since, text="G is behind",
        remedy="x", runbook="slow.md", command="cometmq lag G", page="groups",
    )  # fmt: skip
    (verdict,) = [it for it in diagnose(of(found=[problem])) if it.level != OK]
    assert verdict.text == f"G is behind{told}"


@pytest.mark.parametrize(
    ("found", "area", "level"),
    [
        (of(servers=[Server("x:1", "broker x:0", error="refused")]), "connections", "critical"),
        (
            of(servers=[Server("x:1", "name server", error=f"{evidence_module.UNRESOLVED}: no")]),
            "names",
            "critical",
        ),
        (of(servers=[Server("x:1", "broker", connect_ms=900)]), "connections", "warning"),
        (
            of(servers=[
                Server("n1:1", "name server", connect_ms=1, brokers=["a:0=x", "b:0=y"]),
                Server("n2:1", "name server", connect_ms=1, brokers=["a:0=x"]),
            ]),
            "name servers",
            "warning",
        ),
        (of(broker("a"), clocks_s={"a:0": -9.0}), "clocks", "warning"),
        (of(broker("a"), broker("b", "V5_0_0")), "versions", "warning"),
        (
            of(broker("a", x="1"), broker("b", x="1"), broker("c", x="2")),
            "settings",
            "info",
        ),
        (of(snapshot=None, failure="no name server"), "connections", "critical"),
    ],
)  # fmt: skip
def test_each_fault_is_found_in_its_area(found, area, level):
    assert (area, level) in wrong(found)
    assert all(it.advice for it in diagnose(found) if it.level != OK)


@pytest.mark.parametrize(
    ("since", "text"),
    [
        (Since(NOW_MS - 90_000), "a refused sends, since 2027-01-15 07:58:30Z (1 min 30 s)"),
        (Since(NOW_MS, is_bound=True), "a refused sends"),
    ],
)
def test_a_verdict_says_since_when_if_that_is_known(since, text):
    finding = Finding(
        rule="r", severity=Severity.WARNING, subject="a", since=since, text="a refused sends",
        remedy="Wait. Send less.", runbook="slow.md", command="cometmq top refused", page="",
    )  # fmt: skip
    (verdict,) = [it for it in diagnose(of(broker("a"), found=[finding])) if it.level != OK]
    assert (verdict.text, verdict.advice) == (text, "Wait. Send less (see cometmq top refused)")


def test_settings_that_belong_to_one_broker_may_differ():
    assert wrong(of(broker("a", listenPort="1", brokerName="a"), broker("b", listenPort="2"))) == []


def test_the_clock_of_a_broker_is_found_from_its_start_and_its_uptime():
    runtime = {
        "bootTimestamp": str(NOW_MS - 3_600_000),
        "runtime": "[ 0 days, 1 hours, 0 minutes, 8 seconds ]",
    }
    state = BrokerState(BrokerFigures(), Disk(0.5), runtime=runtime)
    snapshot = of(Broker("c", "a", 0, "a:1", state)).snapshot
    assert evidence_module._clocks(snapshot) == {"a:0": 8.0}


async def test_a_malformed_address_is_named():
    server = await evidence_module._reached("a:99999", "broker a:0")
    assert server.error.startswith("not an address: 'a:99999'; give host:port")


def test_the_doctor_examines_a_real_suite_and_a_dead_address(ask, call):
    done = ask("doctor", "--json")
    assert done.status in {0, 1}, done.err
    areas = {it["area"]: it["level"] for it in msgspec.json.decode(done.out)["verdicts"]}
    assert areas["connections"] == areas["names"] == areas["clocks"] == OK
    missing = ask("doctor", "--expect", "nowhere")
    assert (missing.status, "nowhere" in missing.out) == (1, True)
    dead = call("doctor", "-n", "127.0.0.1:1", "--json")
    assert (dead.status, "name server 127.0.0.1:1: Connection refused" in dead.out) == (1, True)
    assert "start a name server" in dead.out


def test_the_table_of_the_doctor_is_for_readers_also_in_a_pipe(call):
    dead = call("doctor", "-n", "127.0.0.1:1")
    assert dead.status == 1
    assert max(map(len, dead.out.splitlines())) <= PIPED_CHARS
    words = dead.out.split()
    assert all(words.count(it) for it in ("namesrv-unreachable.md", "NAMESRV_ADDR", "refused"))


def test_a_bundle_is_private_and_the_doctor_reads_it(ask, call, tmp_path):
    log = tmp_path / "broker.log"
    log.write_text("old\n" * 10 + 'error secretKey=topsecret password: "hunter2"\n')
    file = tmp_path / "b.tar.gz"
    made = ask("debug", "bundle", "-o", file, "--log", log, "--json").json
    assert file.stat().st_mode & 0o777 == 0o600
    assert made["entries"][0] == "evidence.json"
    with tarfile.open(file) as archive:
        files = {it.name: archive.extractfile(it) for it in archive.getmembers()}
        texts = {name: one.read() for name, one in files.items() if one is not None}
    assert any(name.endswith("settings.txt") for name in texts)
    assert b"error secretKey=******" in texts["logs/0-broker.log"]
    assert not [name for name, text in texts.items() if b"topsecret" in text or b"hunter2" in text]
    examined = call("doctor", "--from", file)
    assert examined.status in {0, 1}
    assert examined.out.startswith("As of 20")
    again = ask("debug", "bundle", "-o", file)
    again.assert_refused(2, f"cannot write {file}: File exists")


def test_secrets_of_settings_are_not_in_a_bundle(tmp_path):
    found = of(broker("a", rpcSecret="abc", url="http://me:pw@h/x"))
    clean = evidence_module._without_secrets(found.snapshot)
    file = tmp_path / "b.tar.gz"
    write_bundle(file, msgspec.structs.replace(found, snapshot=clean), ())
    text = msgspec.json.encode(read_bundle(file))
    assert b"abc" not in text
    assert b"me:pw" not in text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password=hunter2", "hunter2"),
        ('{"secretKey": "abc"}', "abc"),
        ("token: xyz, next", "xyz"),
        ("Authorization: Bearer abcdef", "abcdef"),
        ("http://user:pw@host/", "user:pw"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "MII"),
        ("tls.server.keyPassword = changeit", "changeit"),
    ],
)
def test_secrets_in_texts_are_hidden(text, secret):
    assert secret not in redacted_text(text)
    assert HIDDEN in redacted_text(text)
    assert redacted_setting("listenPort", "10911") == "10911"


def test_files_that_are_no_bundles_are_refused(tmp_path):
    def tar(name, data):
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        return tmp_path / "x.tar.gz"

    (tmp_path / "text").write_text("hello")
    for file in (tmp_path / "text", tmp_path / "missing", tar("../../etc/passwd", b"x")):
        with pytest.raises(SettingsError, match="is no bundle"):
            read_bundle(file)
    with pytest.raises(SettingsError, match="is no bundle"):
        read_bundle(tar("evidence.json", b"{}"))
    assert not Path("evidence.json").exists()


BLOCK = b"\0" * tarfile.BLOCKSIZE


def entry_of(kind=tarfile.REGTYPE, name="evidence.json", size=0, link=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, size, link
    return entry.tobuf()


HOSTILE = {
    "pax": lambda: entry_of(tarfile.XHDTYPE, size=1 << 30) + BLOCK * (1 << 18),  # a header of 1 GiB
    "long name": lambda: entry_of(tarfile.GNUTYPE_LONGNAME, size=1 << 30) + BLOCK * (1 << 18),
    "symlink": lambda: entry_of(tarfile.SYMTYPE, link="other") + entry_of(name="x") * (1 << 18),
    "hard link": lambda: entry_of(tarfile.LNKTYPE, link="evidence.json"),
    "fifo": lambda: entry_of(tarfile.FIFOTYPE),
    "large": lambda: entry_of(size=65 << 20),
    "zeros": lambda: entry_of(size=8) + BLOCK,
    "deep": lambda: entry_of(size=200_000) + b"[" * 200_000,
    "no text": lambda: entry_of(size=20) + b'{"host":"\xff\xfe"}' + BLOCK,
    "empty": bytes,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_costs_little_and_is_one_line(tmp_path, name):
    file = tmp_path / "x.tar.gz"
    with gzip.open(file, "wb", compresslevel=1) as archive:
        archive.write(HOSTILE[name]())
    tracemalloc.start()
    try:
        with pytest.raises(SettingsError, match="is no bundle"):
            read_bundle(file)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_with_damage_in_its_compression_is_one_line(tmp_path):
    file = tmp_path / "x.tar.gz"
    content = os.urandom(100_000)
    with gzip.open(file, "wb") as archive:
        archive.write(entry_of(size=len(content)) + content)
    data = bytearray(file.read_bytes())
    data[600:700] = bytes(100)
    data[50_000:50_100] = b"\xff" * 100
    file.write_bytes(data)
    with pytest.raises(SettingsError, match="is no bundle"):
        read_bundle(file)
