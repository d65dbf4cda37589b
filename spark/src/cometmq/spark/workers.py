# SPDX-License-Identifier: Apache-2.0
"""Makes local workers run the driver's interpreter, which has the package.

Without PYSPARK_PYTHON, Spark runs the first `python3` of PATH. That is rarely the interpreter of a
virtual environment that was not activated, and all that the JVM then reports is "Python worker
exited unexpectedly".
"""

import os
import sys
from typing import Final

from pyspark import SparkContext

_VARIABLE: Final = "PYSPARK_PYTHON"
_SETTING: Final = "spark.pyspark.python"


def use_own_python() -> None:
    """Set the interpreter of a local session's workers, unless the user has chosen one.

    Workers on other machines are left alone: the path of this interpreter may not exist there.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001  # there is no public accessor
    if context is None or os.getenv(_VARIABLE) or context.getConf().get(_SETTING):
        return
    if (context.master or "").startswith("local"):
        context.pythonExec = sys.executable
