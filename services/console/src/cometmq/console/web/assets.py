# SPDX-License-Identifier: Apache-2.0
"""Serves the style sheet, the scripts and the icon from memory, because they are small."""

import hashlib
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.console.web.exchange import Request, Response
from cometmq.console.web.problems import no_page

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """The content of one file, and the headers with which it is served."""

    data: bytes
    kind: str
    tag: str
    """The entity tag, with which browsers ask whether their copy is current."""


class Assets:
    """Serves the files of a folder by their names."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: _read(path) for path in folder.iterdir() if path.suffix in _KINDS}

    def serve(self, name: str, request: Request) -> Response:
        """Answer with a file; with 304 if the browser's copy is current."""
        found = self._files.get(name)
        if found is None:
            raise no_page()
        headers = {"ETag": found.tag}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(found.data, headers=headers, kind=found.kind)


def _read(path: Path) -> Asset:
    data = path.read_bytes()
    return Asset(data, _KINDS[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
