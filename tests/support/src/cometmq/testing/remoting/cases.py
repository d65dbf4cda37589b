# SPDX-License-Identifier: Apache-2.0
"""Check hundreds of recorded cases in one test."""

from collections.abc import Callable, Mapping
from typing import TypeVar

Case = TypeVar("Case")


def check_each(check: Callable[[Case], object], cases: Mapping[str, Case]) -> None:
    """Call `check` with every case, and raise one ExceptionGroup with all failures.

    Each failure has a note with the name of its case. Tests with a parameter per case would show
    the same, but take pytest longer than these checks. Raises AssertionError if there are no cases,
    because the test would check nothing.
    """
    assert cases, "no cases"
    failures: list[Exception] = []
    for name, case in cases.items():
        try:
            check(case)
        except BaseException as error:
            error.add_note(f"the case: {name}")
            if not isinstance(error, Exception):  # pytest.fail, and so a missing pytest.raises
                raise
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases fail", failures)
