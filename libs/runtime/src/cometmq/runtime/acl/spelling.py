# SPDX-License-Identifier: Apache-2.0
"""Warnings about keys and words of accounts that are valid but probably misspelt.

A misspelt key has no effect, and a misspelt right means DENY. Neither is an error, so that the
files of a running cluster stay valid; the warnings go to logs and to users.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.acl.permissions import RIGHT_WORDS, resource_word

FILE_KEYS: Final = ("accounts", "globalWhiteRemoteAddresses", "dataVersion")
ACCOUNT_KEYS: Final = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
TRUE_FALSE: Final = ("true", "false")


def doubtful_keys(keys: Iterable[object], known: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each unknown key of a file or an account that resembles a known one.

    Other unknown keys are notes, which people and tools keep in their files.
    """
    names = tuple(known)
    for key in keys:
        if key not in names and (nearest := did_you_mean(str(key), names)):
            yield f"the key {key} is unknown and has no effect{nearest}"


def doubtful_words(account: AclAccount) -> Iterator[str]:
    """Yield a warning for each word of an account that should be a right but is not."""
    for key, word in (
        ("defaultTopicPerm", account.default_topic_perm),
        ("defaultGroupPerm", account.default_group_perm),
    ):
        if word and word.strip() not in RIGHT_WORDS:
            yield f"{key}: {word} means DENY{_nearest(word, RIGHT_WORDS)}"
    for key, texts in ("topicPerms", account.topic_perms), ("groupPerms", account.group_perms):
        for text in texts or ():
            word = resource_word(text)
            if word is not None and word not in RIGHT_WORDS:
                yield f"{key}: {text} means DENY{_nearest(word, RIGHT_WORDS)}"


def doubtful_admin(word: str | None) -> Iterator[str]:
    """Yield a warning if the value of an account's `admin` key is neither true nor false."""
    if word and word not in TRUE_FALSE:
        yield f"admin: {word} means false{_nearest(word, TRUE_FALSE)}"


class Number(int):
    """A number that is written differently in a file: YAML reads 0123, 1_000 and 12:30 as 83, 1000
    and 750.
    """


def doubtful_numbers(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each key of an account whose value was read as a different number.

    The text in the file is not shown, because it may be a secret.
    """
    for key, value in values.items():
        if isinstance(value, Number):
            yield (
                f"{key} is not the text in the file, which YAML reads as a number, in RocketMQ"
                " too; put it in quotes"
            )


def doubts_of_account(
    values: Mapping[str, Any], account: AclAccount, admin: str | None
) -> list[str]:
    """Return all warnings about an account in a file; `values` has its keys and values in the
    file.
    """
    found = [
        *doubtful_keys(values, ACCOUNT_KEYS),
        *doubtful_admin(admin),
        *doubtful_words(account),
        *doubtful_numbers(values),
    ]
    return [f"account {account.access_key}: {text}" for text in found]


def _nearest(word: str, words: Iterable[str]) -> str:
    return did_you_mean(word.strip(), words) or f"; the words are {', '.join(words)}"
