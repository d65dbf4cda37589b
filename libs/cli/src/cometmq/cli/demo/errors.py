# SPDX-License-Identifier: Apache-2.0
"""Why a demo ends early."""

from cometmq.remoting.errors import CometError


class DemoFailed(CometError):
    """Something that takes part did not do its part in time."""
