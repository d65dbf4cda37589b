# SPDX-License-Identifier: Apache-2.0
"""Hidden modules."""

import subprocess
import sys

import pytest

from cometmq.runtime.imports import hidden_module


def test_module_is_hidden_inside_the_block_only(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with hidden_module("this"), pytest.raises(ImportError):
        __import__("this")
    assert "this" not in sys.modules


def test_a_loaded_module_stays_visible():
    with hidden_module("json"):
        assert __import__("json") is sys.modules["json"]


def test_the_log_loads_without_rich_and_does_not_break_it():
    code = (
        "import sys, cometmq.runtime.logging as log\n"
        "print('rich' in sys.modules)\n"
        "log.configure(json=False)\n"
        "log.get('x').info('a.done', error='b')\n"
        "import rich.console\n"
        "print(rich.console.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "rich.console"]
    assert "a.done" in done.stderr
