# SPDX-License-Identifier: Apache-2.0
"""The key of a group, and the safe order in which it is replaced (pure).

The Secret has the keys as lines of a file that all pods mount; brokers read it again when it
changes, at their own time. So a key is replaced in three steps, and the next step waits until every
broker has reported the keys of the step before:

1. The new key is added as the second one: all brokers accept it, and prove with the old one.
2. It becomes the first one: brokers prove with it, and still accept the old one.
3. The old one is removed.

The step is kept with the keys, in the Secret, so the operator may be killed at any point.
"""

import base64
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from cometmq.ha.group_key import Keys, parse_keys
from cometmq.ha.signed import fingerprint
from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.api_types.secret_keys import GROUP_KEY_FILE
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.render import Object, owned
from cometmq.remoting.errors import SettingsError

STEP: Final = f"{GROUP}/key-step"
"""Annotation of the Secret."""


class KeyStep(StrEnum):
    """How far the replacement of a key is."""

    SETTLED = "settled"
    ADDED = "added"
    MOVED = "moved"


class StoredKeys(msgspec.Struct, frozen=True):
    """The content of the Secret."""

    keys: Keys
    step: KeyStep = KeyStep.SETTLED


def begun(stored: StoredKeys, new_key: bytes) -> StoredKeys | None:
    """Return the content with which a replacement begins; None while another one is under way."""
    if stored.step is not KeyStep.SETTLED:
        return None
    return StoredKeys((stored.keys[0], new_key), KeyStep.ADDED)


def advanced(
    stored: StoredKeys, reported: Mapping[int, tuple[str, ...]], ordinals: Collection[int]
) -> StoredKeys | None:
    """Return the content of the next step; None if there is none, or a broker is not ready for it.

    `reported` has the fingerprints of each broker's keys; every broker of `ordinals` must report
    those of the present step.
    """
    if stored.step is KeyStep.SETTLED or behind(stored, reported, ordinals):
        return None
    first, second = stored.keys
    if stored.step is KeyStep.ADDED:
        return StoredKeys((second, first), KeyStep.MOVED)
    return StoredKeys((first,))


def behind(
    stored: StoredKeys, reported: Mapping[int, tuple[str, ...]], ordinals: Collection[int]
) -> list[int]:
    """Return the brokers that have not read the present keys, or do not answer."""
    wanted = tuple(map(fingerprint, stored.keys))
    return sorted(one for one in ordinals if reported.get(one) != wanted)


def stored_of(body: Mapping[str, Any]) -> StoredKeys:
    """Parse the Secret; raise SettingsError if it has no usable keys."""
    metadata, data = body.get("metadata", {}), body.get("data") or {}
    shown = f"the Secret {metadata.get('name', '')}, {GROUP_KEY_FILE}"
    try:
        text = base64.b64decode(data.get(GROUP_KEY_FILE, ""), validate=True)
    except ValueError as error:
        raise SettingsError(f"{shown}: not in base64") from error
    keys = parse_keys(text, shown)
    step = (metadata.get("annotations") or {}).get(STEP, "")
    is_known = step in set(KeyStep) and (step == KeyStep.SETTLED) == (len(keys) == 1)
    if is_known and len(keys) <= 2:
        return StoredKeys(keys, KeyStep(step))
    return StoredKeys(keys)  # written by a person, who replaces the key


def secret_of(group: BrokerGroup, stored: StoredKeys) -> Object:
    """Return the Secret that the operator applies."""
    text = b"".join(key + b"\n" for key in stored.keys)
    body = owned(
        group, "v1", "Secret", group.key_secret, type="Opaque",
        data={GROUP_KEY_FILE: base64.b64encode(text).decode()},
    )  # fmt: skip
    body["metadata"]["annotations"] = {STEP: stored.step.value}
    return body
