# SPDX-License-Identifier: Apache-2.0
"""gRPC credentials from RocketMQ's TLS settings, with the same error messages.

On one port, gRPC serves either TLS or plain connections, and its clients always verify the server.
"""

from pathlib import Path

import grpc
import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.transport.tls_contexts import (
    as_given,
    client_context,
    name_of,
    server_context,
)


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials | None:
    """Return the credentials of a control server, None for plain connections; raise SettingsError.

    Replaced files take effect with the next handshake.
    """
    if settings.mode is TlsMode.DISABLED:
        return None
    if settings.cert_path is None:
        if settings.mode is TlsMode.ENFORCING or settings.need_client_auth == "require":
            raise SettingsError(
                "the control port cannot use a test certificate, because its callers verify it:"
                f" set {name_of(settings, 'tls.server.certPath')} and"
                f" {name_of(settings, 'tls.server.keyPath')}"
            )
        return None
    first = _server_files(settings)
    seen = _contents(settings)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        now = _contents(settings)
        if now == seen:
            return None
        seen = now
        try:
            return _server_files(settings)
        except SettingsError:  # half replaced, or unusable: the old files remain in use
            return None

    is_required = settings.need_client_auth == "require"
    return grpc.dynamic_ssl_server_credentials(first, changed, is_required)


def channel_credentials(settings: TlsSettings) -> grpc.ChannelCredentials | None:
    """Return the credentials of a caller; None means plain connections."""
    if not settings.enable:
        return None
    _refuse_password(settings, "tls.client")
    # raises SettingsError for unusable files; gRPC verifies the server whatever the setting says
    client_context(msgspec.structs.replace(settings, auth_server=True))
    trust = _read(settings.trust_cert_path)
    if settings.cert_path is None:
        return grpc.ssl_channel_credentials(trust)
    key = _read(settings.key_path or settings.cert_path)
    return grpc.ssl_channel_credentials(trust, key, _read(settings.cert_path))


def _server_files(settings: TlsSettings) -> grpc.ServerCertificateConfiguration:
    _refuse_password(settings, "tls.server")
    server_context(settings)  # raises SettingsError for unusable files
    certificate = _read(settings.cert_path)
    key = _read(settings.key_path or settings.cert_path)
    trust = _read(settings.trust_cert_path)
    if settings.need_client_auth == "require" and trust is None:
        given = as_given(settings, "tls.server.need.client.auth", "require")
        trust_name = name_of(settings, "tls.server.trustCertPath")
        raise SettingsError(
            f"{given}: the control port verifies its callers with {trust_name}, set it"
        )
    return grpc.ssl_server_certificate_configuration([(key, certificate)], trust)


def _refuse_password(settings: TlsSettings, end: str) -> None:
    if settings.key_password:
        password, key = (name_of(settings, f"{end}.{it}") for it in ("keyPassword", "keyPath"))
        raise SettingsError(
            f"{password}: the control API cannot use an encrypted key; give {key} an unencrypted"
            " one that only this user can read"
        )


def _contents(settings: TlsSettings) -> tuple[bytes | None, ...]:
    paths = (settings.cert_path, settings.key_path, settings.trust_cert_path)
    try:
        return tuple(_read(path) for path in paths)
    except OSError:
        return ()


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
