# SPDX-License-Identifier: Apache-2.0
"""Every action of a member that changes its role has a step in the broker."""

import ast
import inspect
import textwrap
from typing import get_args

from cometmq.broker.copies.roles.role_changes import RoleChanges
from cometmq.ha.member import Duty


def test_every_duty_has_a_step() -> None:
    source = textwrap.dedent(inspect.getsource(RoleChanges.perform))
    patterns = [it.pattern for it in ast.walk(ast.parse(source)) if isinstance(it, ast.match_case)]
    handled = {
        ast.unparse(it.cls).rpartition(".")[2] for it in patterns if isinstance(it, ast.MatchClass)
    }
    assert handled == {it.__name__ for it in get_args(Duty)}
