# SPDX-License-Identifier: Apache-2.0
"""The version is a constant, so programs do not read the metadata of installed packages."""

import subprocess
import sys
from importlib.metadata import version

from cometmq.runtime.version import VERSION


def test_the_constant_is_the_version_of_the_distribution():
    assert version("cometmq-runtime") == VERSION


def test_a_program_does_not_load_the_metadata_of_distributions():
    code = (
        "import sys\n"
        "from cometmq.remoting.log import NO_LOG\n"
        "from cometmq.runtime.program import AdminHttp\n"
        "AdminHttp(log=NO_LOG)\n"
        "print([name for name in ('importlib.metadata', 'zipfile') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
