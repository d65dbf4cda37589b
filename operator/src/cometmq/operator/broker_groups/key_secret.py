# SPDX-License-Identifier: Apache-2.0
"""Keeps the Secret with the key of one group: creates it, and replaces the key step by step."""

import base64
import secrets
from collections.abc import Callable, Collection, Mapping

from cometmq.ha.group_key import Keys
from cometmq.operator.access import SecretFault
from cometmq.operator.api import ApiRefused, Body, KubeApi
from cometmq.operator.api_types.secret_keys import SecretReason
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.key_rotation import (
    KeyStep,
    StoredKeys,
    advanced,
    begun,
    behind,
    secret_of,
    stored_of,
)
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log


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
        if following is not None:
            await self._write(group, following)
        elif self._stored.step is not KeyStep.SETTLED:
            self._note_waiting(group, behind(self._stored, reported, ordinals))

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
