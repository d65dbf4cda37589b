# SPDX-License-Identifier: Apache-2.0
"""The mass of the repository only shrinks; `make mass` prints it and lowers the limits."""

import json

import pytest
from tests.tidy.mass import LIMITS, mass

REPAIR = 0.001
"""How much a repair may add before its commit has to say why a limit is raised."""
SLACK = 0.02
"""How far a figure may be below its limit before the limit has to follow."""


@pytest.fixture(scope="module")
def found():
    return mass()


@pytest.fixture(scope="module")
def limits():
    return json.loads(LIMITS.read_text(encoding="utf-8"))


def test_every_figure_has_a_limit(found, limits):
    assert found.keys() == limits.keys()


def test_no_figure_grows(found, limits):
    allowed = {what: round(limit * (1 + REPAIR)) for what, limit in limits.items()}
    grown = {what: (count, limits[what]) for what, count in found.items() if count > allowed[what]}
    assert grown == {}, "remove as much as you add, or say in the commit why a limit is raised"


def test_limits_follow_what_shrinks(found, limits):
    loose = [what for what, count in found.items() if count < limits[what] * (1 - SLACK)]
    assert loose == [], "run `make mass`"
