# SPDX-License-Identifier: Apache-2.0
"""Asks the pages of a program's HTTP port without a connection."""

from collections.abc import Sequence

import httpx2
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette

from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.http.admin_pages import app_of
from cometmq.runtime.metrics.exposition import Dropping, encoder_of


async def get(admin: AdminHttp | Starlette, path: str, **headers: str) -> httpx2.Response:
    """Return a page."""
    app = app_of(admin) if isinstance(admin, AdminHttp) else admin
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:
        return await web.get(path, headers=headers)


def render(families: Sequence[Metric], accept: str = "") -> str:
    """Return families in the format for a header `Accept`; they lose their samples."""
    encoder, _ = encoder_of(accept)
    return encoder(Dropping(list(families))).decode()
