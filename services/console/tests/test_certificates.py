# SPDX-License-Identifier: Apache-2.0
"""Certificates that expire, of a suite and of the console itself."""

import asyncio
import ssl
import subprocess
from contextlib import AsyncExitStack

import pytest

from cometmq.cli.operation.checks import Status
from cometmq.client.settings import ClientOptions
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.remoting.transport.certificate import expiry_of_der
from cometmq.remoting.transport.settings import TlsSettings

from .desks import JSON
from .suites import START_TIMEOUT_S, Suite, console

DEADLINE_S = 60


def pem(folder, name, days):
    """Return a file with a certificate that expires after so many days, and its key."""
    path, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-subj", f"/CN={name}", "-days", str(days), "-keyout", str(key)]
    subprocess.run([*words, "-out", str(path)], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@pytest.fixture(scope="module")
def tls_suite(tmp_path_factory):
    """A suite whose certificate expires in ten days, and that of its authority in two."""
    folder = tmp_path_factory.mktemp("tls")
    server, trusted = pem(folder, "server", 10), pem(folder, "authority", 2)
    (folder / "data").mkdir()
    (folder / "data" / "broker.conf").write_text(
        "tls.server.mode=enforcing\ntls.test.mode.enable=false\n"
        f"tls.server.certPath={server}\ntls.server.keyPath={server}\n"
        f"tls.server.need.client.auth=optional\ntls.server.trustCertPath={trusted}\n"
    )
    namesrv, port = free_port(), free_broker_port()
    words = ["--data", str(folder / "data"), "--namesrv-port", str(namesrv), "--broker-port"]
    child = Child(
        "suite", [str(PROGRAM), "standalone", *words, str(port), "--http-port", str(free_port())],
        log_path=folder / "log", cwd=folder,
    )  # fmt: skip
    child.wait_for_log("is running", START_TIMEOUT_S)
    address = f"127.0.0.1:{namesrv}"
    options = ClientOptions(namesrv=address, tls=TlsSettings(enable=True))
    yield Suite(address, f"127.0.0.1:{port}", options)
    child.stop(60)


async def shown_expiry_s(url):
    """Return when the certificate that the console shows expires."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = int(url.rstrip("/").rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = expiry_of_der(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    writer.close()
    return found


async def test_the_home_page_names_all_certificates_that_expire(tls_suite, tmp_path):
    own = pem(tmp_path, "console", 1)
    given = {
        "tls.enable": "true", "tls.server.mode": "enforcing", "tls.server.certPath": str(own),
        "accessKey": "", "secretKey": "",
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        desk = await console(tls_suite, tmp_path / "console", stack, is_verified=False, **given)
        home = (await desk.web.get("/", headers=JSON)).json()["data"]
        found = {
            it["subject"]: it["severity"]
            for it in home["findings"]
            if it["rule"] == "certificate-expires"
        }
        (broker,) = await desk.admin.masters()
        assert found == {
            "this program tls.server.certPath": "critical",
            f"name server {tls_suite.namesrv}": "warning",
            f"broker {broker}:0 tls.server.certPath": "warning",
            f"broker {broker}:0 tls.server.trustCertPath": "critical",
        }
        before_s = await shown_expiry_s(desk.app.url)
        own.write_bytes(pem(tmp_path, "renewed", 400).read_bytes())
        async with asyncio.timeout(DEADLINE_S):
            while await shown_expiry_s(desk.app.url) == before_s:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "status"),
    [((), Status.CRITICAL), (("-C", "1"), Status.WARNING), (("-w", "1", "-C", "1"), Status.OK)],
)
def test_the_check_of_certificates(tls_suite, options, status):
    words = [str(PROGRAM), "--tls", "check", "certificate", "-n", tls_suite.namesrv, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert "tls.server.trustCertPath: expires in 1 d 23 h" in done.stdout


def test_a_warning_below_the_critical_limit_is_wrong_usage(tls_suite):
    words = [str(PROGRAM), "check", "certificate", "-w", "1", "-C", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "--warn 1 is below --critical 2" in done.stderr) == (3, True)
