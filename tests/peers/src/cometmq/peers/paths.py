# SPDX-License-Identifier: Apache-2.0
"""Paths in the repository and its caches."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[5]
CACHE: Final = ROOT / ".cache" / "peers"
GOLDEN: Final = ROOT / "tests" / "golden"
FUZZ_CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"
FUZZ_FAILURES: Final = ROOT / ".cache" / "fuzz-failures"
DATA: Final = Path(__file__).resolve().parent / "data"
