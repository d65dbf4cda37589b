# SPDX-License-Identifier: Apache-2.0
"""Defines the options of the image tests, which `make images-test` sets."""

import build_images
import pytest
from build_images import docker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-image", default="python:3.11-slim-bookworm")
    parser.addoption("--build-network", default="default")
    parser.addoption("--helm", default="helm", help="the command helm")
    parser.addoption("--image", help="test this image and build none")


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> str:
    """Return the image's tag, from the option or from the first build."""
    given = request.config.getoption("--image")
    return given or request.getfixturevalue("builds")[0].tag


@pytest.fixture(scope="session")
def builds(request, tmp_path_factory):
    """Two builds from the same sources; the second one reuses nothing from the first."""
    found: list[build_images.Built] = []
    for words in ((), ("--no-cache",)):
        out = tmp_path_factory.mktemp("out")
        options = build_images.parsed([
            "suite", "--tag", f"test-{len(found)}", "--out", str(out), *words,
            "--base-image", request.config.getoption("--base-image"),
            "--network", request.config.getoption("--build-network"),
        ])  # fmt: skip
        own = build_images.own_wheels(options.epoch)
        found.append(build_images.build("suite", options, own))
    yield found
    docker("image", "rm", *(one.tag for one in found))
