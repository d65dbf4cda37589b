# SPDX-License-Identifier: Apache-2.0
"""What the passes over all objects share."""

from collections.abc import Callable

import msgspec

from cometmq.operator.access import Secrets
from cometmq.operator.api import KubeApi
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and services."""

    api: KubeApi
    secrets: Secrets
    clock: Clock
    log: Log
    wall_time: Callable[[], str]
    """Returns the time in the API's format."""
    image: str = ""
    operator_namespace: str = ""
    resync_ms: int
    """Pause between passes over an idle group."""
    quiet_ms: int
    """A place that stores no message for this long counts as abandoned by its producers."""
