# SPDX-License-Identifier: Apache-2.0
"""Keeps the Secret with the key of one group: creates it, and replaces the key step by step."""

import base64
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from cometmq.ha.proof import Keys, parse_keys
from cometmq.operator.api import ApiRefused, Body, KubeApi
from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.api_types.security_sections import GROUP_KEY_FILE, SecretReason
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.key_rotation import KeyStep, StoredKeys, advanced, begun
from cometmq.operator.broker_groups.render import Object, owned
from cometmq.operator.secrets import SecretFault
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log

STEP: Final = f"{GROUP}/key-step"
"""Annotation of the Secret."""


def new_key() -> bytes:
    """Return a random key, as `openssl rand -base64 32` prints it."""
    return base64.b64encode(secrets.token_bytes(32))


class KeySecret:
    """The Secret of one group, as last read or written."""

    def __init__(self, api: KubeApi, *, log: Log, make: Callable[[], bytes] = new_key) -> None:
        self._api = api
        self._log = log
        self._make = make
        self._stored: StoredKeys | None = None
        self._waiting: tuple[str | int, ...] = ()

    @property
    def keys(self) -> Keys:
        """The keys, the proving one first; none before the first successful read."""
        return () if self._stored is None else self._stored.keys

    async def read(self, group: BrokerGroup) -> None:
        """Read the Secret again; keep the last keys if it is missing or unusable."""
        body = await self._get(group)
        if body is not None:
            self._stored = _usable(body)

    async def keep(
        self,
        group: BrokerGroup,
        reported: Mapping[int, tuple[str, ...]],
        ordinals: Collection[int],
    ) -> None:
        """Read the Secret, create it if it is missing, and take the next step of a replacement.

        A Secret that was deleted is created again with the keys that the brokers still have.
        """
        body = await self._get(group)
        if body is None:
            stored = self._stored or StoredKeys((self._make(),))
            await self._write(group, stored)
            return
        self._stored = _usable(body)
        following = advanced(self._stored, reported, ordinals)
        if isinstance(following, StoredKeys):
            await self._write(group, following)
        elif following:
            self._note_waiting(group, following)

    async def rotate(self, group: BrokerGroup) -> str:
        """Begin to replace the key; return why that is not possible, or an empty text."""
        if self._stored is None:
            return "the key of the group has not been created yet"
        following = begun(self._stored, self._make())
        if following is None:
            return f"the key is being replaced already: step {self._stored.step}"
        await self._write(group, following)
        return ""

    def _note_waiting(self, group: BrokerGroup, ordinals: list[int]) -> None:
        """Log once which brokers have not read the present keys yet."""
        assert self._stored is not None
        waiting: tuple[str | int, ...] = (self._stored.step.value, *ordinals)
        if waiting != self._waiting:
            self._waiting = waiting
            pods = [group.pod(one) for one in ordinals]
            self._log.info("group_key.waiting", group=group.name, step=waiting[0], pods=pods)

    async def _get(self, group: BrokerGroup) -> Body | None:
        try:
            return await self._api.get("Secret", group.namespace, group.key_secret)
        except ApiRefused as error:
            raise _forbidden(group, error) from error

    async def _write(self, group: BrokerGroup, stored: StoredKeys) -> None:
        try:
            await self._api.apply(secret_of(group, stored))
        except ApiRefused as error:
            raise _forbidden(group, error) from error
        self._stored = stored
        self._log.info("group_key.written", group=group.name, step=str(stored.step))


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


def _usable(body: Body) -> StoredKeys:
    try:
        return stored_of(body)
    except SettingsError as error:
        raise SecretFault(SecretReason.UNUSABLE, f"{error}: correct it") from error


def _forbidden(group: BrokerGroup, error: ApiRefused) -> SecretFault:
    if error.status != 403:
        raise error
    return SecretFault(
        SecretReason.FORBIDDEN,
        f"the operator may not write the Secret {group.namespace}/{group.key_secret}: grant its"
        " account the verbs get, create and patch on secrets, as its chart does",
    )
