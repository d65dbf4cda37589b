# SPDX-License-Identifier: Apache-2.0
"""A pod gets only some modules of cometmq.peers: its programs must import no others."""

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.peers.e2e import load


@pytest.mark.parametrize("program", ["in_pod", "in_pod_groups", "in_pod_transactions"])
def test_a_program_needs_only_the_modules_that_the_pod_has(program: str, tmp_path: Path) -> None:
    texts = load.sources()
    assert len(texts) == len(load.MODULES)
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", f"import cometmq.peers.e2e.{program} as it; print(it.__file__)"],
        env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert Path(done.stdout.strip()) == tmp_path / f"cometmq/peers/e2e/{program}.py"
