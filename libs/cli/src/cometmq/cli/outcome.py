# SPDX-License-Identifier: Apache-2.0
"""Servers that did not answer, or are unfit for use, while a command continued with the others.

`main` prints them after the command's output and sets exit status 1.
"""

from typing import Final

MISSING: Final[dict[str, str]] = {}
"""Address of each such server, or name of a broker without a master -> the reason and a remedy."""
