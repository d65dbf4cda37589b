# SPDX-License-Identifier: Apache-2.0
"""The key of a group, and the safe steps in which it is replaced (pure).

The Secret has the keys as lines of a file that all pods mount; each broker reads the changed file
after a while. So a key is replaced in three steps, and each step waits until every broker has
reported the keys of the step before:

1. The new key is added as the second one: all brokers accept it, and prove themselves with the old
one. 2. The new key becomes the first one: brokers prove themselves with it, and still accept the
old one. 3. The old key is removed.

The step is stored with the keys, in the Secret, so the operator may be killed at any point.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

import msgspec

from cometmq.ha.proof import Keys, fingerprint


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
) -> StoredKeys | list[int]:
    """Return the content of the next step, or the brokers that are not ready for it; an empty list
    if there is no further step.

    `reported` has the fingerprints of each broker's keys. A broker of `ordinals` is not
    ready if it does not answer, or has not yet read the keys of the present step.
    """
    if stored.step is KeyStep.SETTLED:
        return []
    wanted = tuple(map(fingerprint, stored.keys))
    if behind := sorted(one for one in ordinals if reported.get(one) != wanted):
        return behind
    first, second = stored.keys
    if stored.step is KeyStep.ADDED:
        return StoredKeys((second, first), KeyStep.MOVED)
    return StoredKeys((first,))
