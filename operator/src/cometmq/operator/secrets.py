# SPDX-License-Identifier: Apache-2.0
"""Reads the Secrets that specs name, for the operator's own connections to brokers.

Secrets are read one by one, never listed or watched, so the operator needs only the right to get
them. TLS contexts and gRPC load certificates from files, so these are written to a private folder.
"""

import base64
import binascii
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cometmq.operator.api import ApiRefused, KubeApi
from cometmq.operator.api_types.security_sections import (
    ACCESS_KEY,
    ACL_FILE,
    SECRET_KEY,
    TLS_CERTIFICATE,
    TLS_KEY,
    TLS_TRUST,
    Accounts,
    SecretReason,
    Tls,
)
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tls_contexts import client_context

AGE_MAX_MS: Final = 10_000
"""How long a Secret is used before it is read again: during a change, there is a pass every
second.
"""
SERVER_KEYS: Final = (TLS_CERTIFICATE, TLS_KEY, TLS_TRUST)
"""The keys that brokers need."""
_VERSIONS_KEPT: Final = 2
"""Versions of a Secret whose files are kept: a pass may still use those of the version before."""

Content = Mapping[str, bytes]


class SecretFault(CometError):
    """A Secret is missing, lacks a key or cannot be used; the message says what to do."""

    def __init__(self, reason: SecretReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Secrets:
    """The Secrets of all namespaces, each read again after AGE_MAX_MS."""

    def __init__(self, api: KubeApi, *, now_ms: Callable[[], int], folder: Path) -> None:
        """`folder` is private to the operator, and may be deleted when the process ends."""
        self._api = api
        self._now_ms = now_ms
        self._folder = folder
        self._read: dict[tuple[str, str], tuple[int, Content | None]] = {}
        """Time of the last read and content by namespace and name; the content depends on nothing
        else, and an entry expires."""
        self._written: dict[tuple[str, str], list[Path]] = {}
        """Folders with the files of a Secret, oldest first. The name of a folder is a hash of all
        that its files depend on: namespace, name and content."""

    async def check(self, namespace: str, tls: Tls | None, accounts: Accounts | None) -> None:
        """Raise SecretFault unless all Secrets that these parts of a spec name can be used."""
        if tls is not None:
            await self.tls(namespace, tls.secret_name, SERVER_KEYS)
        if accounts is not None:
            await self.require(namespace, accounts.secret_name, (ACL_FILE,))
            await self.account(namespace, accounts.operator_secret_name)

    async def require(self, namespace: str, name: str, keys: tuple[str, ...]) -> Content:
        """Return a Secret that has all these keys; raise SecretFault if it does not.

        Raise ApiUnreachable if the API server does not answer.
        """
        found = await self._get(namespace, name)
        place = f"the Secret {namespace}/{name}"
        if found is None:
            wanted = ", ".join(keys)
            raise SecretFault(
                SecretReason.MISSING, f"{place} does not exist: create it with {wanted}"
            )
        if lacking := [key for key in keys if not found.get(key, b"").strip()]:
            text = f"{place} lacks {', '.join(lacking)}: add what is missing"
            raise SecretFault(SecretReason.INCOMPLETE, text)
        return found

    async def account(self, namespace: str, name: str) -> SessionCredentials:
        """Return the account in a Secret; raise SecretFault if there is none."""
        found = await self.require(namespace, name, (ACCESS_KEY, SECRET_KEY))
        try:
            access, secret = (str(found[key], "utf-8").strip() for key in (ACCESS_KEY, SECRET_KEY))
        except UnicodeDecodeError as error:
            text = f"the Secret {namespace}/{name} has an account that is not text: correct it"
            raise SecretFault(SecretReason.UNUSABLE, text) from error
        return SessionCredentials(access, secret)

    async def tls(
        self, namespace: str, name: str, keys: tuple[str, ...] = (TLS_TRUST,)
    ) -> TlsSettings:
        """Return the settings of a client that verifies servers by ca.crt of a Secret, and
        presents the certificate in it, if there is one.

        Raise SecretFault if the Secret lacks one of `keys`, or if its files are unusable.
        """
        found = await self.require(namespace, name, keys)
        parts = {key: found[key] for key in SERVER_KEYS if found.get(key, b"").strip()}
        has_identity = {TLS_CERTIFICATE, TLS_KEY} <= parts.keys()
        folder = self._files(namespace, name, parts)
        settings = TlsSettings(
            enable=True,
            auth_server=True,
            trust_cert_path=folder / TLS_TRUST,
            cert_path=folder / TLS_CERTIFICATE if has_identity else None,
            key_path=folder / TLS_KEY if has_identity else None,
            names=(
                ("tls.client.trustCertPath", TLS_TRUST),
                ("tls.client.certPath", TLS_CERTIFICATE),
                ("tls.client.keyPath", TLS_KEY),
            ),
        )
        try:
            client_context(settings)
        except SettingsError as error:
            fault = str(error)
            for key in SERVER_KEYS:
                fault = fault.replace(f"={folder / key}", "")
            text = f"the Secret {namespace}/{name} cannot be used, correct it: {fault}"
            raise SecretFault(SecretReason.UNUSABLE, text) from error
        return settings

    async def _get(self, namespace: str, name: str) -> Content | None:
        key, now_ms = (namespace, name), self._now_ms()
        read_ms, found = self._read.get(key, (now_ms - AGE_MAX_MS, None))
        if now_ms - read_ms < AGE_MAX_MS:
            return found
        try:
            body = await self._api.get("Secret", namespace, name)
        except ApiRefused as error:
            if error.status != 403:
                raise
            text = (
                f"the operator may not read the Secret {namespace}/{name}: grant its account the"
                " verb get on secrets, as its chart does"
            )
            raise SecretFault(SecretReason.FORBIDDEN, text) from error
        content = None if body is None else _decoded(body.get("data") or {})
        self._read = {
            other: entry for other, entry in self._read.items() if now_ms - entry[0] < AGE_MAX_MS
        }
        self._read[key] = (now_ms, content)
        return content

    def _files(self, namespace: str, name: str, parts: Content) -> Path:
        """Return the folder with these files, written if necessary."""
        mark = hashlib.sha256(msgspec.json.encode([namespace, name, sorted(parts.items())]))
        folder = self._folder / mark.hexdigest()
        if folder.is_dir():
            return folder
        folder.mkdir(mode=0o700, parents=True)
        for key, data in parts.items():
            descriptor = os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        kept = self._written.setdefault((namespace, name), [])
        kept.append(folder)
        while len(kept) > _VERSIONS_KEPT:
            shutil.rmtree(kept.pop(0), ignore_errors=True)
        return folder


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """Return the values of a Secret; the API server guarantees that they are valid base64."""
    found = {}
    for key, text in data.items():
        try:
            found[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            found[key] = b""
    return found
