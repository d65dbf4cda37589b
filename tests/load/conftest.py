# SPDX-License-Identifier: Apache-2.0
"""The folder of the load run on the import path, for tests of its own judges."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
