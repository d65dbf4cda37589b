# SPDX-License-Identifier: Apache-2.0
"""The files of a release are reproducible, and a user installs and runs CometMQ from them alone."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from operator import truediv
from pathlib import Path
from shutil import which

import archives
import debian
import native_wheels
import notes
import pytest
import release as releasing
import wheels
import yaml
from contents import document, locked_crates, locked_packages
from tests.packages import pace
from tests.packages.releases import PLATFORM, make_release

from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

ROOT = Path(__file__).resolve().parents[2]
VERSION = wheels.workspace_version()
IS_NATIVE = ROOT / "libs/accel" in wheels.buildable()
START_TIMEOUT_S = 180
SIZE_MAX = 70_000_000  # with compiled files
INSTALL_S_MAX = 15.0
FIRST_ANSWER_S_MAX = 0.3
STARTS = 5


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_two_runs_give_the_same_bytes(files, tmp_path):
    old = os.umask(0o077)
    try:
        second = digests(make_release(tmp_path / "2", PLATFORM))
    finally:
        os.umask(old)
    first = digests(files)
    assert len(first) > 35
    assert first == second


def test_the_release_is_complete(files):
    names = {path.name for path in files.iterdir()}
    members = {path.name for path in wheels.members()}
    assert {"cometmq", "operator", "spark", "txn-checker"} <= members
    pure = {name for name in names if name.endswith("-py3-none-any.whl")}
    assert len(pure) == len(members) - 1
    for name in pure:
        assert name.replace("-py3-none-any.whl", ".tar.gz") in names
    assert {
        f"cometmq-{VERSION}.tgz", f"cometmq-operator-{VERSION}.tgz", "RELEASE_NOTES.md",
        f"cometmq-systemd-{VERSION}.tar.gz", f"cometmq-{VERSION}.cdx.json", "SHA256SUMS",
        "requirements.txt", "requirements-ha.txt",
    } <= names  # fmt: skip
    if debian.fault() == "":
        assert f"cometmq_{VERSION}_amd64.deb" in names
    if IS_NATIVE:
        (native,) = files.glob("cometmq_accel-*.whl")
        assert "-abi3-manylinux" in native.name
        assert "2_17_x86_64" in native.name
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=files, check=True)


def test_a_release_ends_with_the_wheels_that_are_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(releasing, "is_native", lambda _: True)
    monkeypatch.setattr(native_wheels, "available", lambda _: [])
    targets, missing = releasing.native_targets([PLATFORM, "musllinux-aarch64"])
    assert targets == []
    assert ["x86_64-unknown-linux-gnu" in missing[0], "aarch64" in missing[1]] == [True, True]
    monkeypatch.setattr(releasing, "make", lambda *_, **__: missing)
    command = ["release.py", "make", VERSION, "--changed", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    (tmp_path / "a.whl").touch()
    releasing.main()
    printed = capsys.readouterr()
    assert [line for line in printed.err.splitlines() if line.endswith(tuple(missing))]
    assert printed.err.splitlines()[-1].endswith(missing[-1])


def metadata(files):
    with zipfile.ZipFile(files / f"cometmq-{VERSION}-py3-none-any.whl") as wheel:
        return wheel.read(f"cometmq-{VERSION}.dist-info/METADATA").decode()


def test_the_meta_package_brings_the_native_path_where_it_has_a_wheel(files, tmp_path):
    line = next(
        (
            it
            for it in metadata(files).splitlines()
            if it.startswith("Requires-Dist: cometmq-accel")
        ),
        None,
    )
    if not IS_NATIVE:
        assert line is None
        return
    assert line is not None
    assert f"=={VERSION}" in line
    assert "platform_machine == 'x86_64'" in line.replace('"', "'")
    assert "aarch64" not in line
    both = wheels.with_native((ROOT / "libs/cometmq/pyproject.toml").read_text(), ["b", "a"])
    assert "(platform_machine == 'a' or platform_machine == 'b')" in both


def test_the_bill_of_materials_names_everything_with_its_version(files):
    bill = json.loads((files / f"cometmq-{VERSION}.cdx.json").read_text())
    urls = {one["purl"] for one in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {f"pkg:pypi/cometmq-broker@{VERSION}", f"pkg:pypi/cometmq@{VERSION}"} <= urls
    assert any(url.startswith("pkg:pypi/msgspec@") for url in urls)
    assert any(url.startswith("pkg:cargo/pyo3@") for url in urls) == IS_NATIVE
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(references) == len(set(references))
    assert bill["dependencies"][0]["dependsOn"] == references


def test_a_bill_lists_what_the_locks_list():
    lock = "alpha==1.0 \\\n    --hash=sha256:aa\nbeta==2.0 ; os_name == 'nt' \\\n    # via alpha\n"
    crates = """
        package = [
            {name = "c", version = "3", checksum = "ff"}, {name = "own", version = "0"},
        ]
    """.replace("\n", "")
    found = [*locked_packages(lock), *locked_crates(crates)]
    assert [one["purl"] for one in found] == [
        "pkg:pypi/alpha@1.0", "pkg:pypi/beta@2.0", "pkg:cargo/c@3",
    ]  # fmt: skip
    assert document("1", found, epoch=5) == document("1", found[::-1], epoch=5)


CHANGES = "# Changelog\n\n## Unreleased\n\n### Added\n- New.\n\n## 0.1.0 - 2026-01-02\n- Old.\n"


def test_the_notes_are_the_section_of_the_version():
    assert notes.release_notes(CHANGES, "0.1.0", epoch=0) == (
        "# CometMQ 0.1.0 - 2026-01-02\n\n- Old.\n", True,
    )  # fmt: skip
    text, is_dated = notes.release_notes(CHANGES, "0.2.0", epoch=0)
    assert (text, is_dated) == ("# CometMQ 0.2.0 - 1970-01-01\n\n### Added\n- New.\n", False)
    changed = notes.dated(CHANGES, "0.2.0", "2026-11-26")
    assert notes.section(changed, "0.2.0") == ("2026-11-26", "### Added\n- New.")
    assert notes.unreleased(changed) == ""
    with pytest.raises(SystemExit, match="already has"):
        notes.dated(changed, "0.2.0", "2026-11-27")
    with pytest.raises(SystemExit, match="is empty"):
        notes.dated(changed, "0.3.0", "2026-11-27")


def test_another_version_or_a_changed_checkout_is_refused(monkeypatch):
    with pytest.raises(SystemExit, match=r"not 7\.8\.9: run make release-ready VERSION=7\.8\.9"):
        releasing.check("7.8.9", is_final=False)
    monkeypatch.setattr(releasing, "git", lambda *_: " M README.md")
    with pytest.raises(SystemExit, match=r"not committed(.|\n)* M README.md"):
        releasing.check(VERSION, is_final=False)
    monkeypatch.setattr(releasing, "git", lambda *_: "")
    monkeypatch.setattr(releasing, "_changelog", lambda: "# Changelog\n")
    releasing.check(VERSION, is_final=False)
    with pytest.raises(SystemExit, match=f"no section '## {VERSION} - DATE'"):
        releasing.check(VERSION, is_final=True)


def test_charts_have_the_version_of_the_members_and_their_name_first(files):
    for name in ("cometmq", "cometmq-operator"):
        with tarfile.open(files / f"{name}-{VERSION}.tgz") as archive:
            names = archive.getnames()
            member = archive.extractfile(names[0])
            assert member is not None
            chart = yaml.safe_load(member)
        assert names[0] == f"{name}/Chart.yaml"
        assert f"{name}/values.yaml" in names
        assert f"{name}/.helmignore" not in names
        assert chart["version"] == chart["appVersion"] == VERSION
    assert wheels.semantic("0.2.0rc1") == "0.2.0-rc.1"


def test_every_image_is_named_with_the_version_of_the_members():
    named = wheels.naming_images()
    assert len(named) > 3
    for path in named:
        for found in wheels.IMAGE.finditer(path.read_text(encoding="utf-8")):
            assert found[0] == f"{found[1]}:{VERSION}", path


def test_archives_are_independent_of_the_files_modes_and_times(tmp_path):
    made = []
    for mode, mtime in ((0o600, 1), (0o664, 2)):
        file = tmp_path / "a"
        file.write_text("text")
        file.chmod(mode)
        os.utime(file, (mtime, mtime))
        made.append(archives.pack(tmp_path / f"{mode}.tar.gz", [("a", file)], epoch=5).read_bytes())
    assert made[0] == made[1]


@pytest.mark.skipif(which("systemd-analyze") is None, reason="needs systemd")
def test_the_units_are_valid_and_hardened(files, tmp_path):
    with tarfile.open(files / f"cometmq-systemd-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert (folder / "VERSION").read_text() == f"{VERSION}\n"
    assert os.access(folder / "install.sh", os.X_OK)
    units = sorted(folder.glob("*.service"))
    assert [it.name for it in units] == [
        "cometmq-broker.service", "cometmq-broker@.service", "cometmq-namesrv.service",
    ]  # fmt: skip
    for unit in units:
        text = unit.read_text()
        unit.write_text(re.sub(r"/opt/cometmq/bin/cometmq", "/bin/true", text))
        analyze = ["systemd-analyze", "security", "--offline=true", "--threshold=25"]
        done = subprocess.run([*analyze, unit], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for key in ("ProtectSystem=strict", "NoNewPrivileges=yes", "LimitNOFILE=", "User=cometmq"):
            assert f"\n{key}" in text


def test_the_compose_file_derives_each_broker_and_runs_it_read_only():
    text = (ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]
    brokers = {name: it for name, it in services.items() if name != "namesrv"}
    assert len(brokers) == 4
    for number, (name, one) in enumerate(brokers.items(), start=1):
        assert name == f"broker-{number}"
        assert one["command"] == ["broker", "--instance", str(number)]
    for one in services.values():
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]


# -- as a user --------------------------------------------------------------------------------


def documented():
    """Return the lines of the README that install from the files of a release."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^\$ ((?:python3 -m venv|cometmq/bin/pip install) .*)$", text, re.MULTILINE)


def check_starts(cometmq, folder, env):
    """Check the processor time from the start of a suite to its first answer, at its best."""
    times, slow = [], []
    for number in range(STARTS):
        port = free_broker_port()
        command = [cometmq, "standalone", "--data", folder / str(number), "--http-port", -1]
        command += ["--namesrv-port", free_port(), "--broker-port", port]
        slow.append(pace.slowness())
        times.append(pace.first_answer_s([*map(str, command)], port, env))
    best = min(map(truediv, times, slow))  # the pace changes from start to start
    assert best < FIRST_ANSWER_S_MAX, (times, slow)


def bare_machine(tmp_path):
    """Return the environment and a function to run commands in it.

    There is no checkout, no compiler in PATH, and HOME is empty.
    """
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    network = re.compile(r"PIP_\w+|(?i:\w+_proxy)|SSL_CERT_\w+")
    bare = {
        **{name: text for name, text in os.environ.items() if network.fullmatch(name)},  # noqa: TID251
        "PATH": str(programs), "HOME": str(home), "PIP_QUIET": "1",
    }  # fmt: skip

    def run(*words):
        done = subprocess.run(
            list(map(str, words)), cwd=tmp_path, env=bare,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return bare, run


def install(lines, files, tmp_path, run):
    """Run the README's commands that install from the files of a release."""
    assert len(lines) == 3
    (tmp_path / "release").symlink_to(files)
    for line in lines:
        words = line.split()
        python = tmp_path / "bin/python3"
        run(python if words[0] == "python3" else tmp_path / words[0], *words[1:])


def test_the_files_alone_install_brokers_with_failover(files, tmp_path):
    _, run = bare_machine(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`requirements-ha.txt` and `'cometmq[ha]'`" in readme
    ha = {"requirements.txt": "requirements-ha.txt", "release cometmq$": "release cometmq[ha]"}
    lines = documented()
    for old, new in ha.items():
        lines = [re.sub(old, new, line) for line in lines]
    install(lines, files, tmp_path, run)
    run(tmp_path / "cometmq/bin/python", "-c", "import cometmq.control.server, grpc_health.v1")
    cometmq = tmp_path / "cometmq/bin/cometmq"
    assert "controlMembers" in run(cometmq, "elector", "--describe-settings")


def test_the_files_alone_install_a_suite_that_stores_and_delivers(files, tmp_path):
    bare, run = bare_machine(tmp_path)
    slowness, began_s = pace.slowness(), pace.children_s()
    install(documented(), files, tmp_path, run)
    slowness = max(slowness, pace.slowness())
    assert pace.children_s() - began_s < INSTALL_S_MAX * slowness
    cometmq = tmp_path / "cometmq/bin/cometmq"
    assert run(cometmq, "--version").startswith(f"cometmq {VERSION}, wire ")
    packages = tmp_path / "cometmq/lib"
    own = {"pip", "setuptools", "pkg_resources"}  # of the environment
    ours = [it for it in packages.rglob("*") if it.is_file() and not own & set(it.parts)]
    size = sum(it.stat().st_size for it in ours)
    assert size < SIZE_MAX
    check_starts(cometmq, tmp_path / "starts", bare)
    port, http = free_port(), free_port()
    bare["NAMESRV_ADDR"] = f"127.0.0.1:{port}"
    command = [cometmq, "standalone", "--data", tmp_path / "data", "--namesrv-port", port]
    command += ["--broker-port", free_broker_port(), "--http-port", http]
    suite = Child("suite", list(map(str, command)), log_path=tmp_path / "log", cwd=tmp_path)
    try:
        suite.wait_for_log("is running", START_TIMEOUT_S)
        run(cometmq, "produce", "hello", "from a release")
        text = run(cometmq, "consume", "hello", "--from", "first", "--max", "1")
        assert text.splitlines() == ["from a release"]
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=60) as answer:
            found = re.search(
                r"^cometmq_native_lane(?:\{.*\})? (\S+)$", answer.read().decode(), re.MULTILINE
            )
        assert found
        assert float(found[1]) == IS_NATIVE
    finally:
        assert suite.stop(60) == 0
    run(cometmq, "store", "verify", tmp_path / "data/store")
