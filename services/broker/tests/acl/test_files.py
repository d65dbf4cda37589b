# SPDX-License-Identifier: Apache-2.0

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.acl.documents import ACCOUNTS_MAX, Document
from cometmq.runtime.acl.errors import AclError, AclFileError
from cometmq.runtime.acl.permissions import Right, check_resources, parse_resources, parse_right
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import OsFiles
from cometmq.testing.runtime.clock import FakeClock

JAVA = """\
# Licensed to the Apache Software Foundation (ASF)

globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
    note: ours
  - accessKey: rocketmq2
    secretKey: "12345678"
    whiteRemoteAddress: 192.168.1.*
    admin: true
other: kept
"""
OTHER = "accounts:\n- accessKey: otherKey1\n  secretKey: otherSecret1\n"


class Warnings:
    def __init__(self) -> None:
        self.names: list[str] = []

    def debug(self, event: str, /, **facts: object) -> None: ...

    info = debug

    def warning(self, event: str, /, **facts: object) -> None:
        self.names.append(event)

    error = warning


class FullDisk(OsFiles):
    unreadable: Path | None = None

    def read(self, path: Path) -> bytes | None:
        if path == self.unreadable:
            raise OSError(5, "Input/output error")
        return super().read(path)

    def write(self, path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")


def acl_files(folder: Path, text: str | None = JAVA, **options: Any) -> AclFiles:
    path = folder / "plain_acl.yml"
    if text is not None:
        path.write_text(text)
    clock = FakeClock()
    return AclFiles(
        path,
        clock_ms=clock.now_ms,
        log=options.get("log", NO_LOG),
        **({"files": options["files"]} if "files" in options else {}),
    )


def test_rocketmqs_file_is_loaded(tmp_path: Path) -> None:
    accounts = acl_files(tmp_path).load()

    assert list(accounts.by_key) == ["RocketMQ", "rocketmq2"]
    plain, admin = accounts.by_key.values()
    assert plain.config.secret_key == "12345678"  # a number in the file
    assert (plain.is_admin, admin.is_admin) == (False, True)
    assert plain.right_to("topicA") == Right.DENY
    assert plain.right_to("topicB") == Right.PUB | Right.SUB
    assert plain.right_to("unknown") == Right.DENY
    assert plain.right_to("%RETRY%groupA") == Right.DENY
    assert plain.right_to("%RETRY%unknown") == Right.SUB
    assert [white.text for white in accounts.white_addresses] == ["10.10.103.*", "192.168.0.*"]
    assert list(accounts.versions) == [str(tmp_path / "plain_acl.yml")]


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n"])
def test_a_file_without_accounts_is_valid(tmp_path: Path, text: str | None) -> None:
    accounts = acl_files(tmp_path, text).load()
    assert not accounts.by_key
    assert accounts.version.counter == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("accounts: [", "line [12]: "),
        ("accounts:\n\t- x", "line 2: "),
        ("- a list", "not a mapping"),
        ("accounts: many", "accounts is not a list of mappings"),
        ("accounts: [text]", "accounts is not a list of mappings"),
        ("globalWhiteRemoteAddresses: 10.0.0.1", "globalWhiteRemoteAddresses is not a list"),
        ("globalWhiteRemoteAddresses: [10.0.0]", "Netaddress examine Exception"),
        ("accounts: [{accessKey: short, secretKey: long-enough}]", "account short: .* longer than"),
        ("accounts: [{accessKey: long-enough}]", "account long-enough: .* longer than 6"),
        (
            "accounts: [{accessKey: userKey1, secretKey: secret-1, topicPerms: [A]}]",
            "account userKey1: Parse resource permission failed for topic:A",
        ),
        (
            "accounts: [{accessKey: userKey1, secretKey: secret-1, groupPerms: G=SUB}]",
            "groupPerms is not a list",
        ),
        ("accounts: [{accessKey: userKey1, secretKey: 1.5}]", "1.5 is not a text"),
        ("dataVersion: [{counter: many}]", "dataVersion needs numbers"),
        ("a: \xff", "codec"),
        ("- " * 40_000, "line 1: nested more than 32 deep"),  # PyYAML alone ends the process
        ("accounts:\n- accessKey: 2024-13-45", "line 2: looks like a number or date but is none"),
        ("accounts:\n- accessKey: !!timestamp x", "line 2: looks like a number or date"),
        ("accounts:\n- admin: !!bool x", "line 2: looks like a number or date"),
    ],
)
def test_the_error_names_an_invalid_file_and_its_fault(
    tmp_path: Path, text: str, complaint: str
) -> None:
    files = acl_files(tmp_path, None)
    files.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AclFileError, match=f"plain_acl.yml: .*{complaint}") as caught:
        files.load()
    assert "\n" not in str(caught.value)
    assert "secret-1" not in str(caught.value)


def test_the_error_about_a_value_made_of_aliases_is_short(tmp_path: Path) -> None:
    """Seven lines of aliases may mean a text of 10 MB and more."""
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 7)]
    rows += ["accounts:", "- accessKey: *a6"]
    with pytest.raises(AclFileError, match="is not a text") as caught:
        acl_files(tmp_path, "\n".join(rows)).load()
    assert len(str(caught.value)) < 5_000


def test_the_folder_is_loaded_and_the_first_duplicate_account_wins(tmp_path: Path) -> None:
    folder = tmp_path / "acl" / "team"
    folder.mkdir(parents=True)
    (folder / "one.yml").write_text(OTHER)
    (folder / "two.yaml").write_text(OTHER.replace("otherSecret1", "secret-of-two"))
    (folder / "tools.yml").write_text("accessKey: nobody\n")
    (folder / "note.txt").write_text("[")
    (folder / ".#one.yml").symlink_to("somebody@somewhere.1234")  # while Emacs edits it
    (folder / "._one.yml").write_bytes(b"\0\5\x16\7")  # of macOS
    for hidden in ("..2026_12_01", "lost+found"):
        (folder / hidden).mkdir()
        (folder / hidden / "one.yml").write_text("[")
    log = Warnings()

    accounts = acl_files(tmp_path, log=log).load()

    assert set(accounts.by_key) == {"RocketMQ", "rocketmq2", "otherKey1"}
    assert accounts.by_key["otherKey1"].config.secret_key == "otherSecret1"
    assert log.names == ["account.repeated"]
    assert len(accounts.versions) == 3


def test_the_target_of_a_symbolic_link_is_changed(tmp_path: Path) -> None:
    target = tmp_path / "kept.yml"
    target.write_text(JAVA)
    (tmp_path / "plain_acl.yml").symlink_to(target)
    acl_files(tmp_path, None).put_account(AclAccount("newKey1", secret_key="00001234"))
    assert (tmp_path / "plain_acl.yml").is_symlink()
    assert "newKey1" in target.read_text()


def test_adding_an_account_changes_nothing_else(tmp_path: Path) -> None:
    files = acl_files(tmp_path)
    files.path.chmod(0o640)
    new = AclAccount("newKey1", secret_key="00001234", topic_perms=["T=PUB"], admin=True)

    accounts = files.put_account(new)

    assert accounts.by_key["newKey1"].config == new
    text = files.path.read_text()
    assert text.startswith("# Licensed to the Apache Software Foundation (ASF)\n\n")
    values = yaml.safe_load(text)
    assert values["other"] == "kept"
    assert values["accounts"][0]["note"] == "ours"
    assert values["accounts"][2] == {
        "accessKey": "newKey1", "secretKey": "00001234", "admin": True, "topicPerms": ["T=PUB"],
    }  # fmt: skip
    assert values["dataVersion"] == [{"counter": 1, "timestamp": accounts.version.timestamp}]
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["plain_acl.yml"]


def test_omitted_fields_of_an_account_are_unchanged(tmp_path: Path) -> None:
    files = acl_files(tmp_path)

    files.put_account(AclAccount("RocketMQ", secret_key="new-secret", default_topic_perm="PUB"))
    accounts = files.put_account(AclAccount("RocketMQ", secret_key="new-secret", group_perms=[]))

    config = accounts.by_key["RocketMQ"].config
    assert (config.secret_key, config.default_topic_perm) == ("new-secret", "PUB")
    assert (config.topic_perms, config.group_perms) == (["topicA=DENY", "topicB=PUB|SUB"], [])
    assert list(accounts.by_key) == ["rocketmq2", "RocketMQ"]  # as in RocketMQ
    assert accounts.version.counter == 2


def test_an_account_is_changed_and_deleted_in_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    path = tmp_path / "acl" / "one.yml"
    path.write_text(OTHER)
    files = acl_files(tmp_path)

    changed = files.put_account(AclAccount("otherKey1", secret_key="new-secret"))
    assert yaml.safe_load(path.read_text())["accounts"][0]["secretKey"] == "new-secret"
    assert changed.versions[str(path)].counter == 1
    assert changed.version.counter == 0
    assert files.delete_account("nobody") is None
    deleted = files.delete_account("otherKey1")

    assert deleted is not None
    assert "otherKey1" not in deleted.by_key
    assert yaml.safe_load(path.read_text())["accounts"] == []
    assert files.path.read_text() == JAVA


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    files = acl_files(tmp_path / "conf", None)
    files.put_account(AclAccount("newKey1", secret_key="secret-1"))
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o600
    assert "newKey1" in files.load().by_key


def test_white_addresses_are_replaced_in_the_given_file(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    path = tmp_path / "acl" / "one.yml"
    path.write_text(OTHER)
    strange = tmp_path / "strange.yml"
    strange.write_text("accounts: []\n")
    files = acl_files(tmp_path)

    def white(accounts: Accounts | None) -> list[str]:
        assert accounts is not None
        return [addresses.text for addresses in accounts.white_addresses]

    assert white(files.set_white_addresses(["10.0.0.1"], None)) == ["10.0.0.1"]
    assert white(files.set_white_addresses(["10.0.0.2"], str(path))) == ["10.0.0.2", "10.0.0.1"]
    assert files.set_white_addresses(["*"], str(strange)) is None
    assert files.set_white_addresses(["*"], str(tmp_path / "acl" / "new.yml")) is None
    assert strange.read_text() == "accounts: []\n"


def test_an_invalid_change_is_not_written(tmp_path: Path) -> None:
    files = acl_files(tmp_path)
    with pytest.raises(AclFileError, match="Netaddress examine"):
        files.set_white_addresses(["10.0.0"], None)
    with pytest.raises(AclFileError, match="Netaddress examine"):
        files.put_account(
            AclAccount("newKey1", secret_key="secret-1", white_remote_address="nowhere")
        )
    assert files.path.read_text() == JAVA


def test_nothing_changes_when_the_disk_is_full(tmp_path: Path) -> None:
    files = acl_files(tmp_path, files=FullDisk())
    with pytest.raises(AclFileError, match=r"plain_acl.yml cannot be saved: No space left"):
        files.delete_account("RocketMQ")
    assert files.path.read_text() == JAVA


def test_the_number_of_accounts_is_bounded() -> None:
    accounts = [{"accessKey": f"key-{n:06}"} for n in range(ACCOUNTS_MAX)]
    document = Document(yaml.dump({"accounts": accounts}, Dumper=yaml.CSafeDumper))
    document.put_account(AclAccount("key-000001", secret_key="secret-1"))
    with pytest.raises(AclError, match="10000 accounts already"):
        document.put_account(AclAccount("one-more", secret_key="secret-1"))


def test_versions_are_written_as_rocketmq_reads_them() -> None:
    text = Document("accounts: []\n").text(DataVersion(7, 1_600_000_000_000))
    assert text == ("accounts: []\ndataVersion:\n- counter: 7\n  timestamp: 1600000000000\n")
    assert Document(text).read().version == DataVersion(7, 1_600_000_000_000)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("PUB", Right.PUB), (" SUB ", Right.SUB), ("PUB|SUB", Right.PUB | Right.SUB),
        ("SUB|PUB", Right.PUB | Right.SUB), ("DENY", Right.DENY), ("pub", Right.DENY),
        (None, Right.DENY), ("", Right.DENY),
    ],
)  # fmt: skip
def test_rights(text: str | None, right: Right) -> None:
    assert parse_right(text) == right


def test_resources_are_a_name_and_a_right() -> None:
    assert parse_resources(["A = PUB", "B==SUB"], is_group=False) == {
        "A": Right.PUB, "B": Right.SUB,
    }  # fmt: skip
    with pytest.raises(AclError, match="Parse resource permission failed for group:G"):
        parse_resources(["G"], is_group=True)
    check_resources(["A=DENY", "B=SUB|PUB"])
    with pytest.raises(AclError, match="Parse Resource format error for A="):
        check_resources(["A="])
    with pytest.raises(AclError, match="Parse resource permission error for A=ALL"):
        check_resources(["A=ALL"])


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("test-acl")
    yield worker
    worker.close()


async def poll(keeper: AclKeeper, worker: Worker) -> None:
    keeper.poll()
    await worker.submit(lambda: None)  # earlier jobs are done


def kept(files: AclFiles, worker: Worker, log: Warnings | None = None) -> AclKeeper:
    return AclKeeper(
        files, AccessControl(files.load(), clock_ms=lambda: 0), worker=worker, log=log or NO_LOG
    )


async def test_changed_files_are_reloaded(tmp_path: Path, worker: Worker) -> None:
    files = acl_files(tmp_path)
    keeper = kept(files, worker)
    before = keeper.control.accounts

    await poll(keeper, worker)
    assert keeper.control.accounts is before
    files.path.write_text(OTHER)
    await poll(keeper, worker)
    await poll(keeper, worker)

    assert list(keeper.control.accounts.by_key) == ["otherKey1"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
async def test_a_half_written_file_is_not_applied(
    tmp_path: Path, worker: Worker, share: float
) -> None:
    """An editor writes in pieces; a file that ends early may be valid and lack accounts."""
    log = Warnings()
    files = acl_files(tmp_path)
    keeper = kept(files, worker, log)
    before = keeper.control.accounts
    newcomer = "  - accessKey: newcomer1\n    secretKey: newsecret1\nother: kept\n"
    whole = files.path.read_text().replace("other: kept\n", newcomer)

    files.path.write_text(whole[: int(len(whole) * share)])
    await poll(keeper, worker)
    assert keeper.control.accounts is before
    with pytest.raises(AclFileError, match="changed by another program: try again"):
        files.delete_account("rocketmq2")
    files.path.write_text(whole)
    await poll(keeper, worker)
    assert keeper.control.accounts is before
    await poll(keeper, worker)
    assert list(keeper.control.accounts.by_key) == [*before.by_key, "newcomer1"]
    assert log.names == []


async def test_an_invalid_file_changes_nothing_and_is_logged_once(
    tmp_path: Path, worker: Worker
) -> None:
    log = Warnings()
    files = acl_files(tmp_path)
    keeper = kept(files, worker, log)
    before = keeper.control.accounts

    files.path.write_text("accounts: [")
    for _ in range(3):
        await poll(keeper, worker)

    assert keeper.control.accounts is before
    assert log.names == ["accounts.unreadable"]
    assert "plain_acl.yml: line " in (keeper.fault or "")
    files.path.write_text(OTHER)
    await poll(keeper, worker)
    await poll(keeper, worker)
    assert keeper.fault is None
    assert list(keeper.control.accounts.by_key) == ["otherKey1"]


async def test_a_file_that_has_become_empty_changes_nothing(tmp_path: Path, worker: Worker) -> None:
    """A program that rewrites a file on a full disk leaves an empty one."""
    log = Warnings()
    files = acl_files(tmp_path)
    (tmp_path / "acl").mkdir()
    other = tmp_path / "acl" / "other.yml"
    other.write_text(OTHER)
    keeper = kept(files, worker, log)
    before, whole = keeper.control.accounts, files.path.read_text()

    files.path.write_text("\n")
    for _ in range(4):
        await poll(keeper, worker)
    assert keeper.control.accounts is before
    assert log.names == ["accounts.unreadable"]
    assert keeper.broken == files.path
    with pytest.raises(AclFileError, match="has become empty"):
        files.delete_account("otherKey1")
    files.path.write_text(whole)
    await poll(keeper, worker)
    await poll(keeper, worker)
    assert keeper.warning is None
    assert set(keeper.control.accounts.by_key) == set(before.by_key)
    other.unlink()  # the way to remove the accounts of a file
    await poll(keeper, worker)
    await poll(keeper, worker)
    assert "otherKey1" not in keeper.control.accounts.by_key


async def test_an_unreadable_file_is_logged_once(tmp_path: Path, worker: Worker) -> None:
    log, disk = Warnings(), FullDisk()
    files = acl_files(tmp_path, files=disk)
    keeper = kept(files, worker, log)

    disk.unreadable = files.path
    for _ in range(3):
        await poll(keeper, worker)

    assert log.names == ["accounts.unreadable"]
    assert keeper.fault == f"{files.path}: Input/output error"
    assert keeper.broken == files.path
    disk.unreadable = None
    await poll(keeper, worker)
    await poll(keeper, worker)
    assert [keeper.fault, keeper.broken, keeper.warning] == [None, None, None]


async def test_a_change_is_in_force_before_its_answer(tmp_path: Path, worker: Worker) -> None:
    keeper = kept(acl_files(tmp_path), worker)

    assert await keeper.change(lambda files: files.delete_account("RocketMQ"))
    assert list(keeper.control.accounts.by_key) == ["rocketmq2"]
    assert not await keeper.change(lambda files: files.delete_account("RocketMQ"))
    with pytest.raises(AclFileError):
        await keeper.change(lambda files: files.set_white_addresses(["?"], None))
    assert list(keeper.control.accounts.by_key) == ["rocketmq2"]
