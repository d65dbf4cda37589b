# SPDX-License-Identifier: Apache-2.0
"""Certificates that expire, of a suite and of the console itself."""

import asyncio
import ssl
import subprocess
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cometmq.cli.operation.checks import Status
from cometmq.client.settings import ClientOptions
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.certificate import expiry_of_der
from cometmq.remoting.transport.settings import TlsSettings

from .desks import JSON
from .suites import START_TIMEOUT_S, Suite, console

DEADLINE_S = 60


def pem(folder, name, days):
    """Return a file with a certificate that expires after `days`, and its key."""
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


async def test_all_certificates_that_expire(tls_suite, tmp_path, monkeypatch):
    monkeypatch.setattr("cometmq.console.app.CERTIFICATES_MS", 200)
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


def client_config(folder, name, days, text=""):
    """Write the settings file of a program that connects with a certificate."""
    own = pem(folder, f"{name}-own", days)
    path = folder / f"{name}.conf"
    path.write_text(f"tls.enable=true\ntls.client.certPath={own}\n{text}", encoding="utf-8")
    return path


async def test_certificates_of_electors_and_other_clients_are_named(tls_suite, tmp_path):
    elector = client_config(
        tmp_path, "elector", 2,
        "brokerName=orders\ngroupRecord=/srv/record\ncontrolMembers=0=a:1;1=b:1\n",
    )  # fmt: skip
    checker = client_config(tmp_path, "txn-checker", 10, "storePathRootDir=/srv\n")
    exporter = client_config(tmp_path, "exporter", 90)
    programs = f"txn-checker={checker};exporter={exporter}"
    given: dict[str, Any] = {
        "tls.enable": "true", "accessKey": "", "secretKey": "", "electorConfig": str(elector),
        "programConfigs": programs, "anonymousRole": "viewer",
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        desk = await console(tls_suite, tmp_path / "console", stack, **given)
        home = (await desk.web.get("/", headers=JSON)).json()["data"]
        found = {
            it["subject"]: it["severity"]
            for it in home["findings"]
            if it["rule"] == "certificate-expires" and "broker" not in it["subject"]
        }
        assert found == {
            "elector of orders tls.client.certPath": "critical",
            "txn-checker tls.client.certPath": "warning",
            f"name server {tls_suite.namesrv}": "warning",
        }


@pytest.mark.parametrize(
    ("programs", "text"),
    [("exporter", "must have the form NAME=FILE"), ("exporter=/no/such.conf", "/no/such.conf")],
)
async def test_a_wrong_program_keeps_the_console_from_starting(tls_suite, tmp_path, programs, text):
    async with AsyncExitStack() as stack:
        with pytest.raises(SettingsError, match=text):
            await console(tls_suite, tmp_path / "console", stack, programConfigs=programs)


def test_the_check_reads_the_files_of_other_programs(tls_suite, tmp_path):
    config = client_config(tmp_path, "exporter", 1)
    words = [str(PROGRAM), "--tls", "check", "certificate", "-n", tls_suite.namesrv]
    words += ["--config", str(config), "-C", "0", "-w", "1.5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Status.WARNING, done.stdout + done.stderr
    assert f"{config} tls.client.certPath: expires in" in done.stdout


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


async def test_a_condition_begins_with_the_snapshot_that_has_it(tls_suite, tmp_path):
    """Also if no page is open then."""
    async with AsyncExitStack() as stack:
        given: dict[str, Any] = {"tls.enable": "true", "accessKey": "", "secretKey": ""}
        desk = await console(tls_suite, tmp_path / "console", stack, **given)
        first = last = await desk.app.look()
        assert first is not None
        while last is None or last.taken_ms == first.taken_ms:
            last = await desk.app.look()
        found = (await desk.web.get("/", headers=JSON)).json()["data"]["findings"]
        begun_ms = [it["since"]["ms"] for it in found if it["page"] == "brokers"]
        assert begun_ms
        assert max(begun_ms) <= first.taken_ms
