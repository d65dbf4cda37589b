# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pytest

from cometmq.broker.acl.files import AclFiles
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.acl.permissions import Right
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock

MORE = "accounts: [{accessKey: moreKey1, secretKey: moreSecret1}]"
OTHER = "accounts: [{accessKey: otherKey1, secretKey: otherSecret1}]"

MISSPELT = """
accountz: []
owner: the shop team
accounts:
- accessKey: shop-web
  secretKey: 1234567
  admin: Trues
  note: a key without effect, not a misspelt one
  defualtTopicPerm: PUB
  defaultTopicPerm: PUBB
  defaultGroupPerm: ANY
  topicPerm:
  - Orders=PUB
  groupPerms:
  - billing=sub
  - audit=DENY
"""
FOUND = """\
the key accountz is unknown and has no effect; did you mean accounts?
account shop-web: the key defualtTopicPerm is unknown and has no effect; did you mean \
defaultTopicPerm?
account shop-web: the key topicPerm is unknown and has no effect; did you mean topicPerms?
account shop-web: admin: Trues means false; did you mean true?
account shop-web: defaultTopicPerm: PUBB means DENY; did you mean PUB?
account shop-web: defaultGroupPerm: ANY means DENY; the words are PUB, SUB, PUB|SUB, SUB|PUB, DENY
account shop-web: groupPerms: billing=sub means DENY; did you mean SUB?
""".splitlines()


def acl_files(folder: Path, text: str, log: RecordingLog) -> AclFiles:
    path = folder / "plain_acl.yml"
    path.write_text(text)
    return AclFiles(path, clock_ms=FakeClock().now_ms, log=log)


def settled(files: AclFiles) -> Accounts | None:
    """A change takes effect at the second call that finds it."""
    assert files.reload() is None
    return files.reload()


def test_misspelt_keys_and_words_are_named_once_for_each_text(tmp_path: Path) -> None:
    log = RecordingLog()
    files = acl_files(tmp_path, MISSPELT, log)
    accounts = files.load()

    assert accounts.by_key["shop-web"].right_to("Orders") == Right.DENY  # as in RocketMQ
    path = str(files.path)
    assert log.named("accounts.misspelt") == [{"file": path, "found": FOUND}]
    assert accounts.doubts == {path: FOUND}

    (files.folder).mkdir()
    (files.folder / "more.yml").write_text(MORE)
    assert settled(files) is not None  # another file: this one is unchanged
    assert files.reload() is None
    assert len(log.events) == 1

    files.path.write_text(f"{MISSPELT}\n# still wrong\n")
    assert settled(files) is not None
    assert log.named("accounts.misspelt") == [{"file": path, "found": FOUND}] * 2

    files.put_account(AclAccount(access_key="shop-web", default_topic_perm="SUBB"))
    (_, _, facts) = log.named("accounts.misspelt")
    assert "account shop-web: defaultTopicPerm: SUBB means DENY; did you mean SUB?" in str(facts)
    files.put_account(AclAccount(access_key="shop-new", secret_key="1234567"))
    assert len(log.events) == 3

    files.path.write_text(OTHER)
    repaired = settled(files)
    assert repaired is not None
    assert not repaired.doubts
    assert len(log.events) == 3


def test_a_file_full_of_mistakes_is_one_event_of_bounded_length(tmp_path: Path) -> None:
    log = RecordingLog()
    keys = "".join(f"accounts{number}: 1\n" for number in range(100))
    acl_files(tmp_path, keys, log).load()
    (facts,) = log.named("accounts.misspelt")
    found = facts["found"]
    assert isinstance(found, list)
    assert found[-1] == "and 84 more"


@pytest.mark.parametrize(
    "text", ["0123456701", "123_456_789", "12:34:56:07", "0x1234567", "+1234567"]
)
def test_a_secret_that_yaml_reads_as_another_number_is_reported(tmp_path: Path, text: str) -> None:
    """The account had another secret than its file, as in RocketMQ, and no hint of it."""
    log = RecordingLog()
    files = acl_files(tmp_path, f"accounts: [{{accessKey: shop-web, secretKey: {text}}}]", log)
    secret = files.load().by_key["shop-web"].config.secret_key
    assert secret is not None
    assert secret != text
    (facts,) = log.named("accounts.misspelt")
    found = str(facts["found"])
    assert "account shop-web: secretKey is not the text in the file" in found
    assert text not in found
    assert secret not in found

    files.put_account(AclAccount(access_key="shop-new", secret_key=text))
    accounts = files.load()
    assert accounts.by_key["shop-web"].config.secret_key == secret
    assert accounts.by_key["shop-new"].config.secret_key == text
    assert not accounts.doubts


@pytest.mark.parametrize("text", ["1234567", "'0123456701'", "0123456789", "1234567e10"])
def test_a_secret_that_is_its_text_is_not_reported(tmp_path: Path, text: str) -> None:
    log = RecordingLog()
    files = acl_files(tmp_path, f"accounts: [{{accessKey: shop-web, secretKey: {text}}}]", log)
    assert files.load().by_key["shop-web"].config.secret_key == text.strip("'")
    assert not log.events
