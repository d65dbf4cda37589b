# SPDX-License-Identifier: Apache-2.0
"""The long form of a test has more cases."""

from collections.abc import Iterator
from importlib import reload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.peers import long_forms


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Iterator[None]:
    before = settings.get_current_profile_name()
    settings.load_profile(request.param)
    reload(long_forms)
    yield
    settings.load_profile(before)
    reload(long_forms)


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize(
    ("profile", "seed_count", "example_count"),
    [("cometmq", 2, 3), ("long", 5, 7)],
    indirect=["profile"],
)
def test_a_long_form_has_more_cases(seed_count: int, example_count: int) -> None:
    seen = []

    @long_forms.seeds(2, long=5)
    def test_with_seeds() -> None:
        """Do nothing; only the marks are read."""

    @long_forms.examples(3, long=7)
    @given(st.integers())
    def test_with_examples(number: int) -> None:
        seen.append(number)

    marks = {mark.name: mark.args for mark in test_with_seeds.pytestmark}  # type: ignore[attr-defined]
    assert marks == {"parametrize": ("seed", range(seed_count)), "long": ()}
    assert [mark.name for mark in test_with_examples.pytestmark] == ["long"]  # type: ignore[attr-defined]
    test_with_examples()
    assert len(seen) == example_count
