# SPDX-License-Identifier: Apache-2.0
"""The tables that compare consoles and command lines: each claim names a test that exists."""

import re

from cometmq.peers.paths import ROOT

GUIDE = ROOT / "docs" / "guides" / "console.md"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| (?:\[|no\b).* \|$")
TEST = re.compile(r'\]\(\.\./\.\./(\S+) "(\w+)"\)')


def test_each_claim_of_the_guide_is_shown_by_a_test_that_exists() -> None:
    _, _, table = GUIDE.read_text(encoding="utf-8").partition("\n## Beside other consoles\n")
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 30
    for line in rows:
        assert ROW.match(line), line
        tests = TEST.findall(line)
        assert tests or line.split(" | ")[2].startswith("no"), line
        for path, name in tests:
            text = (ROOT / path).read_text()
            assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), line


def test_each_claim_of_the_command_line_names_a_file_of_tests() -> None:
    guide = (GUIDE.parent / "cli.md").read_text(encoding="utf-8")
    _, _, table = guide.partition("\n## Beside other command lines\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert len(rows) > 22
    for _, _, claim in rows[2:]:
        name = claim.partition(":")[0]
        is_test = (ROOT / "libs" / "cli" / "tests" / f"{name}.py").is_file()
        assert is_test or name == "no", claim
