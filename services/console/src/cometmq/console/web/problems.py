# SPDX-License-Identifier: Apache-2.0
"""Errors that end a request with a page, and their HTTP status."""

from http import HTTPStatus

from cometmq.client.errors import BrokerMissing, InvalidArgument, NoRoute
from cometmq.insight.changes.definitions import Incomplete
from cometmq.remoting.errors import AccessDenied, CometError, CommandError, Outage, TopicNotExist


class Problem(Exception):
    """A request that cannot be served; the text says what to do."""

    def __init__(self, status: HTTPStatus, text: str, *, title: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.title = title or _TITLES.get(status, status.phrase)
        self.text = text
        self.back = ""  # the form to look at again, if it was one
        self.field = ""  # the input that is wrong, with which the text then begins
        self.headers: dict[str, str] = {}


class FormExpired(Problem):
    """A form does not have the token of the session; nothing was done."""

    def __init__(self) -> None:
        text = "the form has expired: go back, reload the page and try again"
        super().__init__(HTTPStatus.FORBIDDEN, text)


def bad(text: str, *, field: str = "") -> Problem:
    """Return the problem of a request with a wrong argument.

    If the argument is an input of a form, `field` is its name, with which `text` begins.
    """
    problem = Problem(HTTPStatus.BAD_REQUEST, text)
    problem.field = field
    return problem


def missing(text: str) -> Problem:
    """Return the problem of a request for something that does not exist."""
    return Problem(HTTPStatus.NOT_FOUND, text)


def no_page() -> Problem:
    """Return the problem of a request for an address without a page."""
    return missing("there is no page at this address")


def of_cluster(error: CometError) -> Problem:
    """Return the problem for an error of the cluster."""
    text = str(error) or type(error).__name__
    if isinstance(error, AccessDenied):
        return Problem(HTTPStatus.FORBIDDEN, text, title="The cluster denies access")
    if isinstance(error, NoRoute | TopicNotExist):
        return missing(text)
    if isinstance(error, InvalidArgument):
        return bad(text)
    if isinstance(error, Incomplete):
        return Problem(HTTPStatus.BAD_GATEWAY, text, title="Only a part was done")
    if isinstance(error, BrokerMissing | Outage):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, text, title="The cluster does not answer")
    if isinstance(error, CommandError):
        return Problem(HTTPStatus.BAD_GATEWAY, text, title="A broker refused the request")
    return Problem(HTTPStatus.BAD_GATEWAY, text)


_TITLES = {
    HTTPStatus.BAD_REQUEST: "The request has a mistake",
    HTTPStatus.FORBIDDEN: "You may not do this",
    HTTPStatus.NOT_FOUND: "There is no such thing",
    HTTPStatus.CONFLICT: "Somebody else was faster",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many attempts",
    HTTPStatus.BAD_GATEWAY: "The cluster's answer is wrong",
}
