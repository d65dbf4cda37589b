# SPDX-License-Identifier: Apache-2.0
"""`make run` installs the packages needed at run time, and no development tools."""

import json
import re
import subprocess
import tomllib

import pytest
from tests.packages.trees import MARKER, ROOT, RUNTIME_BYTES_MAX, copy_of_repository, make

LIST_PACKAGES = """
import importlib.metadata, json
sizes = {}
for one in importlib.metadata.distributions():
    paths = [file.locate() for file in one.files]
    name = one.name.lower().replace("_", "-").replace(".", "-")
    sizes[name] = sum(path.stat().st_size for path in paths if path.exists())
print(json.dumps(sizes))
"""


def locked(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", "\n" + text)
    pins = [block.strip() for block in blocks if "==" in block]
    return {
        block.partition("==")[0]: (
            block.split()[0],
            frozenset(re.findall(r"sha256:\w+", block)),
        )
        for block in pins
    }


def packages(tree):
    command = [tree / ".venv/bin/python", "-c", LIST_PACKAGES]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the repository in which `make run` has installed the run-time packages."""
    folder = copy_of_repository(tmp_path_factory.mktemp("tree"))
    make(folder, MARKER)
    return folder


def test_the_runtime_lock_is_a_part_of_the_developers_lock():
    runtime, everything = locked("requirements-runtime.lock"), locked("requirements.lock")
    assert len(runtime) > 10
    assert all(len(hashes) > 0 for _, hashes in runtime.values())
    assert {name: everything.get(name) for name in runtime} == runtime


def test_make_run_installs_no_tools_of_developers(tree):
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tools = {
        re.split(r"[^\w.-]", one)[0]
        for one in groups["dependency-groups"]["dev"]
        if isinstance(one, str)
    }
    assert {"mypy", "matplotlib", "pytest", "uv"} <= tools
    installed = packages(tree)
    assert "cometmq" in installed
    assert tools & set(installed) == set()
    third_party = {name for name in installed if not name.startswith("cometmq")}
    own_copies = {"pip", "setuptools"}  # what `venv` puts there
    assert third_party - own_copies == set(locked("requirements-runtime.lock")) - {"colorama"}


def test_the_runtime_set_is_small(tree):
    sizes = packages(tree)
    ours = {name: size for name, size in sizes.items() if name not in {"pip", "setuptools"}}
    largest_first = sorted(ours.items(), key=lambda one: -one[1])
    assert 10_000_000 < sum(ours.values()) < RUNTIME_BYTES_MAX, largest_first


def test_the_command_runs(tree):
    command = [tree / ".venv/bin/cometmq", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cometmq ")


def test_make_run_keeps_the_developers_tools(tree):
    """After a change to the lock, `make run` installs again but keeps the tools of `make test`."""
    tool = ["install", "--quiet", "--no-deps", "--requirement", "tool.lock", "--require-hashes"]
    block = re.search(
        r"^iniconfig==.*?(?=^\S)",
        (ROOT / "requirements.lock").read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    assert block
    (tree / "tool.lock").write_text(block[0], encoding="utf-8")
    subprocess.run([".venv/bin/python", "-m", "pip", *tool], cwd=tree, check=True)
    lock = tree / "requirements-runtime.lock"
    assert make(tree, "--question", MARKER) == ""
    lock.touch()
    make(tree, MARKER)
    assert {"iniconfig", "cometmq"} <= set(packages(tree))


def test_make_test_fulfils_make_run():
    """The recipe that installs all packages makes both markers, so nothing is installed twice."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(
        r"^\$\(VENV\)/\.ready:.*?(?=^\S+ *:|\Z|^$)", text, flags=re.MULTILINE | re.DOTALL
    )
    assert recipe
    assert "finish_venv,$(VENV),$(VENV)/.runtime $@)" in recipe[0]
