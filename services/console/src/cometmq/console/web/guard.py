# SPDX-License-Identifier: Apache-2.0
"""Checks that apply to every request (prefix, host name, size, origin), and the security headers of
answers.
"""

import ipaddress
import re
from http import HTTPStatus
from ipaddress import ip_network
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.settings import ConsoleSettings
from cometmq.console.web.problems import Problem, bad
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.http.server import network_of

KNOWN_MAX: Final = 1_000
_ALL: Final = "*"
_STRANGERS: Final = "strangers"  # no network has this name


def proxies_of(text: str) -> str:
    """Return the trusted proxies as uvicorn takes them; raise SettingsError for what is neither an
    address nor a network.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        for word in words:
            if word != _ALL:
                ip_network(word)
    except ValueError as error:
        raise SettingsError(f"trustedProxies={text}: {error}") from None
    return _ALL if _ALL in words else ",".join(words)


class Known:
    """The networks from which users have logged in since the start, or had made changes before it;
    the latest ones.

    Strangers may have many addresses, so what limits all of them together leaves these out.
    """

    def __init__(self) -> None:
        self._networks: dict[str, None] = {}  # the last one to log in is the last

    def __contains__(self, address: str) -> bool:
        return network_of(address) in self._networks

    def add(self, address: str) -> None:
        """Remember an address from which a user has logged in."""
        network = network_of(address)
        self._networks.pop(network, None)
        self._networks[network] = None
        while len(self._networks) > KNOWN_MAX:
            del self._networks[next(iter(self._networks))]

    def requester(self, client: str) -> Requester:
        """Return whose turn a client takes: that of its network, or the one of all strangers."""
        network = network_of(client)
        return Requester(network) if client in self else Requester(_STRANGERS, network)


BODY_BYTES_MAX: Final = 8 << 20
"""The largest form: a message body has at most 4 MiB, and encoding enlarges it."""
FIELDS_MAX: Final = 5_000

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_TLS_HEADERS: Final = {"Strict-Transport-Security": "max-age=31536000"}
_MISDIRECTED: Final = PlainTextResponse(
    "This console does not serve that host name; the setting allowedHosts names those that it"
    " serves.\n",
    HTTPStatus.MISDIRECTED_REQUEST,
)
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]+)?")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


class Guard:
    """The outermost layer of the application, which calls the others."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = _allowed(settings)
        self._headers = HEADERS | (_TLS_HEADERS if is_secure(settings) else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; refuse host names that are not the console's."""
        prefix, path = self._settings.prefix, scope["path"]
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :] or "/"  # or the proxy has removed it
        caching = "public, max-age=86400" if path.startswith("/static/") else "no-store"

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**self._headers, "Cache-Control": caching}.items():
                    headers.setdefault(name, value)
            await send(message)

        host = Headers(scope=scope).get("host", "")
        is_allowed = path == "/healthz" or self._is_allowed(host)
        app = self._app if is_allowed else _MISDIRECTED
        await app({**scope, "path": path}, receive, guarded)

    def _is_allowed(self, host: str) -> bool:
        name = _name_of(host)
        if self._hosts is None or name in self._hosts or name in _LOOPBACK_NAMES:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_secure(settings: ConsoleSettings) -> bool:
    """Return whether browsers reach the console over TLS only."""
    if settings.public_url:
        return settings.public_url.startswith("https:")
    return settings.tls_server.mode == "enforcing"


def _allowed(settings: ConsoleSettings) -> frozenset[str] | None:
    """Return the host names that are served; None for all.

    A page of a stranger can make a browser send requests to a loopback address under the
    stranger's host name (DNS rebinding), so a console on loopback refuses other names.
    """
    given = {name.strip().lower() for name in settings.allowed_hosts.split(",") if name.strip()}
    if "*" in given:
        return None
    public = _name_of(settings.public_url.partition("://")[2])
    if not given and not _is_loopback(settings.bind_address) and not public:
        return None
    return frozenset(given | ({public} if public else set()))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() in _LOOPBACK_NAMES


def _name_of(host: str) -> str:
    """Return the name or address in a Host header; empty if it is malformed."""
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found[1] or found[2]


async def form_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> dict[str, list[str]]:
    """Return the fields of a form; raise Problem if it is too large or something else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise bad("send application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise bad(f"the form is larger than {bytes_max >> 10} KiB")
    except ClientDisconnect:
        raise bad("the form ended early") from None
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise bad("the form is malformed") from None


def check_origin(request: Request, settings: ConsoleSettings) -> None:
    """Raise Problem if another site makes a browser send this form.

    The tokens of forms already prevent that; this is a second, independent check.
    """
    site = request.headers.get("sec-fetch-site", "")
    origin = request.headers.get("origin", "")
    own = {request.headers.get("host", ""), settings.public_url.partition("://")[2]} - {""}
    is_foreign = origin not in ("", "null") and origin.partition("://")[2] not in own
    if site in {"cross-site", "same-site"} or is_foreign:
        raise Problem(HTTPStatus.FORBIDDEN, "this form comes from another site")


def client_of(request: Request) -> str:
    """Return the address of the client."""
    return "" if request.client is None else request.client.host


def local_path(text: str) -> str:
    """Return a path of this console, to open after a login; `/` for anything else."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\"))
    is_plain = all(32 < ord(character) != 127 and character != "\\" for character in text)
    return text if is_path and is_plain and len(text) <= 2_000 else "/"
