# SPDX-License-Identifier: Apache-2.0
"""The folders of the load run's modules on the import path, for tests of its own judges."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.with_name("crash"))]
