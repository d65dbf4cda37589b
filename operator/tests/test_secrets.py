# SPDX-License-Identifier: Apache-2.0
"""Secrets become TLS settings and accounts, and a faulty one says what to do."""

import base64
import ssl
import stat

import pytest

from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.api_types.security_sections import SecretReason
from cometmq.operator.secrets import AGE_MAX_MS, SERVER_KEYS, SecretFault, Secrets
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.tls_contexts import client_context
from cometmq.testing.operator.api import MemoryApi

PEM = self_signed_pem("brokers.test")
CERT = {"tls.crt": PEM, "tls.key": PEM, "ca.crt": PEM}


def folder_of(settings):
    return settings.trust_cert_path.parent


class Rig:
    def __init__(self, folder, **secrets):
        self.api = MemoryApi()
        self.write(**secrets)
        self.now_ms, self.folder = 0, folder / "secrets"
        self.secrets = Secrets(self.api, now_ms=lambda: self.now_ms, folder=self.folder)

    def write(self, **secrets):
        for name, values in secrets.items():
            data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}
            for namespace in ("mq", "test"):
                self.api.put("Secret", name, namespace, data=data)

    def fail(self, error):
        def raised(*_):
            raise error

        self.api.before = raised

    def wait(self):
        self.now_ms += AGE_MAX_MS


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        ({}, SecretReason.MISSING, "mq/cert does not exist: create it with tls.crt, tls.key, ca"),
        ({"cert": {}}, SecretReason.INCOMPLETE, "mq/cert lacks tls.crt, tls.key, ca.crt: add"),
        ({"cert": {**CERT, "ca.crt": "\n"}}, SecretReason.INCOMPLETE, "mq/cert lacks ca.crt"),
        ({"cert": {**CERT, "ca.crt": "x"}}, SecretReason.UNUSABLE, "it: ca.crt: no certificates"),
        (
            {"cert": {**CERT, "tls.key": self_signed_pem("other")}},
            SecretReason.UNUSABLE,
            "correct it: tls.crt and tls.key do not match",
        ),
    ],
    ids=["missing", "empty", "blank", "no PEM", "another key"],
)
async def test_a_faulty_secret_says_what_to_do(tmp_path, found, reason, words):
    rig = Rig(tmp_path, **found)
    with pytest.raises(SecretFault) as caught:
        await rig.secrets.tls("mq", "cert", SERVER_KEYS)
    assert caught.value.reason is reason
    assert words in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


async def test_an_operator_without_the_right_names_it(tmp_path):
    rig = Rig(tmp_path)
    rig.fail(ApiRefused(403, "forbidden"))
    with pytest.raises(SecretFault, match="grant its account the verb get on secrets") as caught:
        await rig.secrets.account("mq", "operator")
    assert caught.value.reason is SecretReason.FORBIDDEN
    rig.fail(ApiUnreachable("timeout"))
    with pytest.raises(ApiUnreachable):
        await rig.secrets.account("mq", "operator")


async def test_an_account_may_end_with_a_newline(tmp_path):
    rig = Rig(tmp_path, operator={"accessKey": "admin-1\n", "secretKey": "secret-1\n"})
    account = await rig.secrets.account("mq", "operator")
    assert (account.access_key, account.secret_key) == ("admin-1", "secret-1")


async def test_a_certificate_of_clients_is_optional(tmp_path):
    rig = Rig(tmp_path, trust={"ca.crt": PEM}, cert=CERT)
    assert (await rig.secrets.tls("mq", "trust")).cert_path is None
    with_identity = await rig.secrets.tls("mq", "cert")
    assert with_identity.cert_path is not None
    assert client_context(with_identity).verify_mode is ssl.CERT_REQUIRED


async def test_files_are_private_and_change_their_path_with_their_content(tmp_path):
    rig = Rig(tmp_path, cert=CERT)
    first = await rig.secrets.tls("mq", "cert")
    assert first == await rig.secrets.tls("mq", "cert")
    folder = folder_of(first)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    paths = {folder}
    for number in range(5):
        other = self_signed_pem(f"renewed-{number}")
        rig.write(cert={"tls.crt": other, "tls.key": other, "ca.crt": other})
        rig.wait()
        paths.add(folder_of(await rig.secrets.tls("mq", "cert")))
    assert len(paths) == 6
    assert len([one for one in paths if one.exists()]) == 2


async def test_secrets_of_one_name_are_kept_apart_by_namespace(tmp_path):
    rig = Rig(tmp_path, cert=CERT)
    one, other = await rig.secrets.tls("mq", "cert"), await rig.secrets.tls("test", "cert")
    assert one.trust_cert_path != other.trust_cert_path
    assert len(rig.api.calls) == 2


async def test_a_secret_is_read_again_after_a_while_whether_it_existed_or_not(tmp_path):
    rig = Rig(tmp_path)
    for _ in range(3):
        with pytest.raises(SecretFault):
            await rig.secrets.account("mq", "operator")
    assert len(rig.api.calls) == 1
    rig.write(operator={"accessKey": "a", "secretKey": "b"})
    rig.wait()
    assert (await rig.secrets.account("mq", "operator")).access_key == "a"
    assert len(rig.api.calls) == 2
