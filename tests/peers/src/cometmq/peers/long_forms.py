# SPDX-License-Identifier: Apache-2.0
"""Tests of generated cases: some of them in `make test`, many in `make fuzz`.

The marker `long` selects the tests that have a long form, the Hypothesis profile `long` its counts.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

IS_LONG: Final = settings.get_current_profile_name() == "long"

Test = TypeVar("Test", bound=Callable[..., Any])


def seeds(count: int, *, long: int) -> Callable[[Test], Test]:
    """Give a test so many values of its parameter `seed`, or `long` in its long form."""
    assert count < long
    parametrized = pytest.mark.parametrize("seed", range(long if IS_LONG else count))
    return lambda test: pytest.mark.long(parametrized(test))


def examples(count: int, *, long: int) -> Callable[[Test], Test]:
    """Give a test so many examples of Hypothesis, or `long` in its long form."""
    assert count < long
    limited = settings(max_examples=long if IS_LONG else count, deadline=None)
    return lambda test: pytest.mark.long(limited(test))
