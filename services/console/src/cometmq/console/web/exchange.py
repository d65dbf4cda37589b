# SPDX-License-Identifier: Apache-2.0
"""One request and its answer, as pages and actions see them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote

_UNQUOTED: Final = frozenset("/:?&=#%+,;@!$'()*-._~[]")
"""The characters that stay as they are in a `Location`, besides ASCII letters and digits."""


class Disconnected(Exception):
    """The connection ended before its request was complete or answered."""


class Request:
    """A request; `path` is decoded, and `body` can be read once."""

    def __init__(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterator[bytes],
        *,
        client: str,
    ) -> None:
        """`headers` have lower-case names; `client` is the address of the client."""
        path, _, self.query = target.partition("?")
        self.method = method
        self.path = unquote(path)
        self.headers = dict(reversed(headers))  # the first one of a name counts
        self.body = body
        self.client = client

    @property
    def args(self) -> dict[str, list[str]]:
        """The arguments of the URL, each with all its values."""
        return parse_qs(self.query, keep_blank_values=True)

    def arg(self, name: str, default: str = "") -> str:
        """Return the last value of an argument of the URL."""
        return self.args.get(name, [default])[-1]

    def cookie(self, name: str) -> str:
        """Return the value of a cookie; empty if there is none."""
        for part in self.headers.get("cookie", "").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
        return ""


class Response:
    """An answer; a text body is sent as UTF-8."""

    def __init__(
        self,
        body: bytes | str = b"",
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
        *,
        kind: str = "",
    ) -> None:
        self.body = body.encode() if isinstance(body, str) else body
        self.status = HTTPStatus(status)
        self.headers = dict(headers or {})
        self.cookies: list[str] = []
        if kind:
            charset = "; charset=utf-8" if kind.startswith("text/") else ""
            self.headers["Content-Type"] = kind + charset

    def set_cookie(
        self, name: str, value: str, *, life_s: int, path: str, is_secure: bool = False
    ) -> None:
        """Set a cookie that scripts cannot read, of letters, digits and `-._~`; 0 s deletes it."""
        # `lax`, not `strict`: a login at an OpenID provider leads back from another site.
        secure = "; Secure" if is_secure else ""
        self.cookies.append(
            f"{name}={value}; HttpOnly; Max-Age={life_s}; Path={path}; SameSite=lax{secure}"
        )


Handler = Callable[[Request], Awaitable[Response]]


def plain(text: str, status: int = HTTPStatus.OK) -> Response:
    return Response(text, status, kind="text/plain")


def redirect(url: str) -> Response:
    """Redirect the browser to another page, which it requests with GET (303)."""
    parts = (
        character
        if character in _UNQUOTED or (character.isascii() and character.isalnum())
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in url
    )
    return Response(b"", HTTPStatus.SEE_OTHER, {"Location": "".join(parts)})
