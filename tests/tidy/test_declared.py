# SPDX-License-Identifier: Apache-2.0
"""Every package declares what its modules import; another package's dependency may go away."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.tidy.syntax import statements

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = sorted(
    path.parent
    for pattern in ("libs/*", "services/*", "operator", "spark")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "backports": "backports-zstd",
    "markdown_it": "markdown-it-py",
    "mcp_types": "mcp",
    **dict.fromkeys(("cometmq.ha", "cometmq.control", "cometmq.elector"), "cometmq-group"),
}
"""The distributions whose names differ from those of their modules."""
OPTIONAL = {
    "compression",  # the standard library of 3.14, instead of backports.zstd
    "cometmq.accel",  # used if it is installed
}


def imported_by(member: Path) -> set[str]:
    found: set[str] = set()
    for path in (member / "src").rglob("*.py"):
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    tops = {re.match(r"cometmq\.\w+|\w+", name)[0] for name in found}  # type: ignore[index]
    return tops - sys.stdlib_module_names - OPTIONAL - {"cometmq"}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda path: path.name)
def test_every_import_is_declared(member):
    project = tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project.get("dependencies", []), *(line for extra in extras for line in extra)]
    declared = {re.split(r"[^\w.-]", line)[0].lower().replace(".", "-") for line in lines}
    wanted = {
        DISTRIBUTIONS.get(name, name).replace(".", "-").replace("_", "-")
        for name in imported_by(member)
    }
    assert wanted - declared - {project["name"]} == set()
