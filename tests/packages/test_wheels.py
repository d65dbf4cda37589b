# SPDX-License-Identifier: Apache-2.0
"""The wheels of all members have the right content and metadata, and each works on its own."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from shutil import which

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename
from trove_classifiers import classifiers

from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
ADDRESS = "https://git.example:8443/team/cometmq"
START_TIMEOUT_S = 180

spec = importlib.util.spec_from_file_location("wheels", ROOT / "deploy/wheels.py")
assert spec
assert spec.loader
builder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(builder)


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [path for path in archive.namelist() if path.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()


def metadata_of(wheel):
    return Metadata.from_email(read(wheel, "METADATA"), validate=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / "deploy/wheels.py", "build", "--out", out, "--repository", ADDRESS)
    return {str(parse_wheel_filename(path.name)[0]): path for path in out.glob("*.whl")}


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    """Install the wheels and their dependencies in an environment; return its bin folder."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    install(folder, *[path for name, path in wheels.items() if name != "cometmq-spark"])
    return folder / "bin"


def install(folder, *requirements, **options):
    constraints = ("--constraint", ROOT / "requirements-runtime.lock")
    run(UV, "pip", "install", "--python", folder, *constraints, *requirements, **options)


def test_every_member_has_a_wheel(wheels):
    assert len(builder.members()) == 16
    is_native = which("cargo") and os.getenv("ACCEL") != "no" and builder.is_buildable()
    assert len(wheels) == len(builder.buildable()) == (16 if is_native else 15)
    assert {"cometmq", "cometmq-client", "cometmq-spark"} <= set(wheels)


def test_the_native_wheel_is_left_out_on_request(monkeypatch):
    monkeypatch.setenv("ACCEL", "no")
    assert len(builder.buildable()) == 15
    assert ROOT / "libs/accel" not in builder.buildable()


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("no", "wheels: ACCEL=no, so no wheel of cometmq-accel\n"),
        ("", "wheels: cargo cannot build cometmq-accel, so no wheel of it\n"),
    ],
)
def test_without_the_native_wheel_all_others_are_built_with_a_reason(
    tmp_path, monkeypatch, capsys, choice, reason
):
    built = []

    def build_package(*words, check=True):
        if words[-1].name == "accel":
            return check  # as if cargo failed
        built.append(words[-1].name)
        return True

    monkeypatch.setenv("ACCEL", choice)
    members = builder.members()
    if choice != "no":
        monkeypatch.setattr(builder, "buildable", lambda: members)
    monkeypatch.setattr(builder, "build_package", build_package)
    builder.build(tmp_path, ADDRESS)
    assert sorted(built) == sorted(one.name for one in members if one.name != "accel")
    before = "wheels: building the native message path (about a minute)\n"
    assert capsys.readouterr().err.removeprefix(before) == reason


def test_the_metadata_is_complete_and_valid(wheels):
    version = builder.workspace_version()
    for name, wheel in wheels.items():
        metadata = metadata_of(wheel)
        assert metadata.name == name
        assert str(metadata.version) == version
        assert metadata.license_expression == "Apache-2.0"
        assert metadata.license_files == ["LICENSE"]
        assert metadata.summary
        assert metadata.description
        assert metadata.description_content_type.startswith("text/markdown")
        assert str(metadata.requires_python) == ">=3.11"
        assert metadata.classifiers
        assert set(metadata.classifiers) <= classifiers
        assert set(metadata.project_urls) == {"Repository", "Issues", "Documentation", "Changelog"}
        assert read(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_siblings_are_pinned_to_the_same_version(wheels):
    version = builder.workspace_version()
    siblings = [
        (name, requirement)
        for name, wheel in wheels.items()
        for requirement in metadata_of(wheel).requires_dist or []
        if requirement.name.startswith("cometmq")
    ]
    assert len(siblings) > 20
    assert [one for one in siblings if str(one[1].specifier) != f"=={version}"] == []


def test_links_of_readmes_lead_to_the_commit_that_was_built(wheels):
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    base = f"{ADDRESS}/blob/{commit}/"
    targets = []
    for wheel in wheels.values():
        text = HeaderParser().parsestr(read(wheel, "METADATA")).get_payload()
        targets += re.findall(r"\]\(([^)\s]+)\)", str(text))
    assert len(targets) > 10
    assert [one for one in targets if not one.startswith(base)] == []
    paths = [one.removeprefix(base).partition("#")[0] for one in targets]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_wheels_share_no_file_and_keep_the_namespace_open(wheels):
    seen: dict[str, str] = {}
    for name, wheel in wheels.items():
        for path in zipfile.ZipFile(wheel).namelist():
            if ".dist-info/" in path or path.endswith("/"):
                continue
            assert path != "cometmq/__init__.py"
            assert seen.setdefault(path, name) == name
    assert len(seen) > 300


def test_what_only_our_tests_import_is_in_no_wheel(wheels):
    rooms = {
        path.partition("/testing/")[0]
        for wheel in wheels.values()
        for path in zipfile.ZipFile(wheel).namelist()
        if "/testing/" in path
    }
    assert rooms == {"cometmq/client"}


def test_without_a_public_address_links_become_text_and_urls_are_left_out():
    assert builder.public_address("/srv/git/cometmq") is None
    assert builder.public_address("file:///srv/git/cometmq.git") is None
    text = "[The guide](../../docs/guides/client.md), [RocketMQ](https://rocketmq.apache.org)"
    folder = builder.PurePosixPath("libs/client")
    plain = builder.readme_for(text, folder, None)
    assert plain == "The guide, [RocketMQ](https://rocketmq.apache.org)"


@pytest.mark.parametrize(
    "remote",
    [
        "https://git.example/team/cometmq.git",
        "https://name:token@git.example/team/cometmq",
        "git@git.example:team/cometmq.git",
        "ssh://git@git.example/team/cometmq.git",
    ],
)
def test_the_address_of_a_clone_is_that_of_its_web_pages(remote):
    assert builder.public_address(remote) == "https://git.example/team/cometmq"


def test_a_suite_from_wheels_stores_and_delivers_a_message(environment, tmp_path):
    """The programs run outside the repository with a bare environment."""
    cometmq = environment / "cometmq"
    port = free_port()
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NAMESRV_ADDR": f"127.0.0.1:{port}"}
    command = [cometmq, "standalone", "--data", tmp_path / "data", "--namesrv-port", port]
    command += ["--broker-port", free_broker_port(), "--http-port", -1]
    suite = Child("suite", list(map(str, command)), log_path=tmp_path / "log", cwd=tmp_path)
    try:
        suite.wait_for_log("is running", START_TIMEOUT_S)
        run(cometmq, "produce", "hello", "from a wheel", cwd=tmp_path, env=bare)
        options = ("--from", "first", "--max", "1")
        text = run(cometmq, "consume", "hello", *options, cwd=tmp_path, env=bare)
        assert text.splitlines() == ["from a wheel"]
        code = "import cometmq.client; print(cometmq.client.__file__)"
        found = run(environment / "python", "-c", code, cwd=tmp_path, env=bare)
        assert Path(found.strip()).is_relative_to(environment.parent)
    finally:
        suite.stop(60)


def imports_the_client(folder, elsewhere):
    code = "from cometmq.client import CometError, Producer; print(CometError.__name__)"
    return run(folder / "bin/python", "-c", code, cwd=elsewhere) == "CometError\n"


def documented_installs():
    """Return every line of the documentation that installs packages, without its comment."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("libs/*/README.md")]
    lines = [line for path in pages for line in path.read_text(encoding="utf-8").splitlines()]
    found = (
        re.fullmatch(r"(?:\$ )?((?:\.venv/bin/|uv )?pip install [^#]*?)\s*(?:#.*)?", it)
        for it in lines
    )
    return sorted({match[1] for match in found if match})


def test_the_documentation_tells_how_to_install():
    assert len(documented_installs()) >= 4


@pytest.mark.parametrize("line", documented_installs())
def test_a_documented_install_works_as_written(line, tmp_path):
    """The commands are typed in a clone, with the environment active. Spark's own dependencies,
    400 MB, are left out here; its tests install them from their lock.
    """
    folder = tmp_path / "venv"
    run(UV, "venv", "--quiet", "--seed", "--python", sys.executable, folder)
    environment = {
        **os.environ,  # noqa: TID251  # proxies and indexes of this machine
        "VIRTUAL_ENV": str(folder), "PIP_QUIET": "1",
        **({"PIP_NO_DEPS": "1"} if "./spark" in line else {}),
    }  # fmt: skip
    environment["PATH"] = f"{folder / 'bin'}:{UV.parent}:{environment['PATH']}"
    run("bash", "-c", line.removeprefix(".venv/bin/"), cwd=ROOT, env=environment)
    assert list(folder.glob("lib/python*/site-packages/*.dist-info"))
    if "./services/*" in line:
        version = run(folder / "bin/cometmq", "--version", cwd=tmp_path)
        assert version.startswith(f"cometmq {builder.workspace_version()}, wire ")
    elif "./libs/client" in line and "./spark" not in line:
        assert imports_the_client(folder, tmp_path)
    if "./libs" in line:
        problems = pip_check(folder, environment)
        assert [it for it in problems if "cometmq" in it.partition("requires")[2]] == []


def pip_check(folder, environment):
    """Return the unmet requirements of an environment, a line each."""
    done = subprocess.run(
        [folder / "bin/python", "-m", "pip", "check"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_one_command_sets_the_version_of_all(tmp_path):
    constant = ROOT / "libs/runtime/src/cometmq/runtime/version.py"
    projects = [one / "pyproject.toml" for one in (ROOT, *builder.members())]
    for path in (constant, *projects):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    builder.set_version("7.8.9", tmp_path)
    old = builder.workspace_version()
    for member in builder.members(tmp_path):
        text = (member / "pyproject.toml").read_text(encoding="utf-8")
        assert 'version = "7.8.9"' in text
        assert f"=={old}" not in text
    assert builder.workspace_version(tmp_path) == "7.8.9"
    assert 'VERSION: Final = "7.8.9"' in (tmp_path / constant.relative_to(ROOT)).read_text()
    with pytest.raises(SystemExit, match="is not a version"):
        builder.set_version("next", tmp_path)
