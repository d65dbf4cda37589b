# SPDX-License-Identifier: Apache-2.0
"""The pipeline runs all required checks, and their long forms at night."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MINUTES_MAX = 75
"""Upper bound for the duration of `.ci/run` on two cores."""


def makes() -> dict[str, list[str]]:
    """Return the targets that `.ci/run` makes, with the variables that shorten their runs: those
    that follow the target, or a list of targets.
    """
    found: dict[str, list[str]] = {}
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    command = r"^(?!together)[^#\n]*\b(?:make|together) ([^;>'#\n]*)"
    for line in re.findall(command, text, flags=re.MULTILINE):
        targets: list[str] = []
        is_complete = False
        for word in shlex.split(line):
            if "=" not in word:
                targets = [word] if is_complete else [*targets, word]
                found[word] = []
            elif not word.startswith("WORKERS="):
                for target in targets:
                    found[target].append(word)
            is_complete = "=" in word
    return found


def workflow(name: str) -> dict[str, Any]:
    (job,) = yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))[
        "jobs"
    ].values()
    return job


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+):", text, flags=re.MULTILINE))


def test_the_pipeline_makes_targets_that_exist() -> None:
    assert {"lint", "types", "imports", "test", "crash", "compat", "e2e"} <= set(makes())
    assert {"docs", "ha-test", "console-test", "monitoring-test", "bench-test"} <= set(makes())
    assert {"spark-test", "spark-types", "operator-test", "load", "sim", "fuzz"} <= set(makes())
    assert set(makes()) - targets() == set()


def test_each_long_suite_has_a_folder_and_a_target_and_those_of_packages_run_in_the_pipeline() -> (
    None
):
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    left_out = options["tool"]["pytest"]["ini_options"]["norecursedirs"]
    folders = [name for name in left_out if name.startswith("tests/")]
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "tests/packages" in folders
    assert [name for name in folders if not re.search(rf"{name}[ /]", recipes)] == []
    assert "packages-test" in makes()


def test_every_commit_runs_every_check(tmp_path: Path) -> None:
    """`.ci/run` makes all its targets, whatever the commit and however slow the machine."""
    scripts = {
        "bin/make": "echo made $*",
        "tests/e2e/cluster/cluster.sh": "exit 0",
        ".ci/run": (ROOT / ".ci/run")
        .read_text(encoding="utf-8")
        .removeprefix("#!/usr/bin/env bash"),
    }
    for name, text in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
    output = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE, timeout=60,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
    ).stdout  # fmt: skip
    lines = re.findall(r"^made (.*)", output, re.MULTILINE)
    made = {word for line in lines for word in line.split()}
    assert set(makes()) - made == {"kubernetes"}  # whose output is shown if it fails


def test_the_pipeline_runs_the_tests_of_spark_on_a_jvm() -> None:
    """Neither the tests that start Spark nor the code blocks of its guide are deselected."""
    assert makes()["spark-test"] == []
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^spark-test:.*?\n(.*?)\n\n", text, flags=re.MULTILINE | re.DOTALL)
    assert recipe
    assert '"$(or $(MARK),not slow)"' in recipe[1]
    spark = tomllib.loads((ROOT / "spark/pyproject.toml").read_text(encoding="utf-8"))
    assert spark["tool"]["pytest"]["ini_options"]["testpaths"] == ["tests"]
    guide = ROOT / "spark/tests/guide"
    assert list(guide.glob("test_*.py"))
    assert [path for path in guide.glob("*.py") if "mark.slow" in path.read_text()] == []


def test_the_check_is_the_pipeline_and_nothing_else() -> None:
    job = workflow("check.yml")
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert job["timeout-minutes"] == MINUTES_MAX


def test_shortened_runs_of_the_pipeline_run_in_full_at_night() -> None:
    nightly = set(workflow("nightly.yml")["strategy"]["matrix"]["target"])
    assert nightly - targets() == set()
    shortened = {target for target, variables in makes().items() if variables} - {"test"}
    assert len(shortened) > 3
    assert shortened - nightly == set()
    assert "spark-test-all" in nightly


def test_the_pipeline_runs_the_tests_as_the_readme_says() -> None:
    """More generated cases are drawn at night only: no test runs twice."""
    assert "`make test`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert makes()["test"] == []
    assert "CASES=no" in makes()["fuzz"]


@pytest.mark.parametrize(
    ("given", "expected"), [("", "=6 "), ("WORKERS=5", "=5 "), ("WORKERS=1", "")]
)
def test_tests_use_all_cores_unless_told_otherwise(given: str, expected: str) -> None:
    """`make` prints the command only."""
    command = ["make", "--dry-run", "--silent", "test", "CORES=3", "SEED=7", *given.split()]
    plain = {"PATH": "/usr/bin:/bin"}  # without the variables of a `make` that runs this test
    printed = subprocess.run(
        command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True
    ).stdout
    (line,) = [it for it in printed.splitlines() if "pytest -q" in it and "collect" not in it]
    assert ("--numprocesses" in line) is bool(expected)
    assert not expected or f"--numprocesses{expected}" in line
    assert "--order-seed=7" in line


def test_workflows_use_the_oldest_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    for name in ("check.yml", "nightly.yml"):
        versions = [step["with"] for step in workflow(name)["steps"] if "with" in step]
        assert {"python-version": oldest} in versions


def test_the_release_needs_no_secret_and_publishes_only_what_was_run() -> None:
    path = ROOT / ".github/workflows/release.yml"
    text = path.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets()
    assert all("permissions" in job for job in jobs.values())
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    assert [jobs[name].get("needs") for name in ("files", "native", "pypi", "github")] == [
        None, "files", "native", "pypi",
    ]  # fmt: skip
