# SPDX-License-Identifier: Apache-2.0
"""Names of version ordinals."""

import pytest

from cometmq.remoting.versions import (
    CLIENT_CALLS_MIN,
    HIGHER_VERSION,
    RESET_OFFSET_MIN,
    V3_0_11,
    V3_4_9,
    V4_9_4,
    V5_0_0,
    V5_3_3,
    version_name,
)


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (RESET_OFFSET_MIN, "V3_0_7_SNAPSHOT"),
        (V3_0_11, "V3_0_11"),
        (CLIENT_CALLS_MIN, "V3_1_8_SNAPSHOT"),
        (V3_4_9, "V3_4_9"),
        (213, "V4_0_0"),
        (V4_9_4, "V4_9_4"),
        (V5_0_0, "V5_0_0"),
        (V5_3_3, "V5_3_3"),
        (HIGHER_VERSION, "HIGHER_VERSION"),
        (HIGHER_VERSION + 1, "HIGHER_VERSION"),
        (-1, "V3_0_0_SNAPSHOT"),
    ],
)
def test_names_of_ordinals(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
