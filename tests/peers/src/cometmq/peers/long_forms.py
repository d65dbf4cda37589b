# SPDX-License-Identifier: Apache-2.0
"""Tests of generated cases: some of them in `make test`, many in `make fuzz`.

The marker `long` selects the tests that have a long form, and `hypothesis` those whose examples are
counted by the profile. The Hypothesis profile `long` has the counts of the long forms.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

IS_LONG: Final = settings.get_current_profile_name() == "long"

Test = TypeVar("Test", bound=Callable[..., Any])


def case_count(few: int, *, long: int) -> int:
    """Return the number of cases: few, or `long` in a long form."""
    assert few < long
    return long if IS_LONG else few


def seeds(few: int, *, long: int) -> Callable[[Test], Test]:
    """Run a test with `count` values of its parameter `seed`, in its long form with `long`."""
    parametrized = pytest.mark.parametrize("seed", range(case_count(few, long=long)))
    return lambda test: pytest.mark.long(parametrized(test))


def examples(few: int, *, long: int) -> Callable[[Test], Test]:
    """Run a test with `count` examples of Hypothesis, in its long form with `long`."""
    limited = settings(max_examples=case_count(few, long=long), deadline=None)
    return lambda test: pytest.mark.long(limited(test))


def sampled(few: int) -> Callable[[Test], Test]:
    """Run `few` cases of a parametrized test, drawn by the seed of the order (`--order-seed`), and
    all of them in its long form.
    """
    return lambda test: pytest.mark.long(pytest.mark.sampled(few)(test))
