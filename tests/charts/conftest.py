# SPDX-License-Identifier: Apache-2.0
"""Fixtures that render the charts with the helm program given by `make charts-test`."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/cometmq"
KUBERNETES = "1.34"

Rendered = list[dict[str, Any]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--helm", default="helm", help="the command helm")


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Helm:
    command = request.config.getoption("--helm")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *words], capture_output=True, text=True, check=False, timeout=100
        )

    return run


@pytest.fixture(scope="session")
def template(helm: Helm) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `helm template` with files of values and settings such as `tls.enabled=true`."""

    def run(
        files: Sequence[Path] = (),
        settings: Sequence[str] = (),
        chart: Path = CHART,
        release: str = "mq",
    ):
        words = [word for file in files for word in ("--values", str(file))]
        words += [f"--set-json={one}" for one in settings]
        return helm(
            "template", release, str(chart), "--namespace=prod",
            f"--kube-version={KUBERNETES}", *words,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def render(template) -> Callable[..., Rendered]:
    """Return the objects that `helm template` renders."""

    def run(
        files: Sequence[Path] = (), settings: Sequence[str] = (), chart: Path = CHART
    ) -> Rendered:
        done = template(files, settings, chart)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return run
