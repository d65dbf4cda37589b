# SPDX-License-Identifier: Apache-2.0
"""The catalogue of views."""

from typing import Final

from cometmq.insight.views import cluster, messages
from cometmq.insight.views.view import View

VIEWS: Final[tuple[type[View], ...]] = (*cluster.VIEWS, *messages.VIEWS)
