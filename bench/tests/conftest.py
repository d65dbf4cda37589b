# SPDX-License-Identifier: Apache-2.0
"""Makes the benchmark's modules importable, behind the stdlib, which has a `profile` as well."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
