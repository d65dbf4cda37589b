# SPDX-License-Identifier: Apache-2.0
"""How errors are printed: one line each, with a remedy."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from cometmq.cli.access import ACCESS
from cometmq.cli.outcome import MISSING
from cometmq.cli.say import say
from cometmq.remoting.errors import CometError, RequestTimeout, SettingsError
from cometmq.remoting.refusals import is_access_text

HINTS: Final[Mapping[str, str]] = {
    "NoNamesrv": "; start one (cometmq standalone), or give its address with -n or NAMESRV_ADDR"
}
"""The remedy for each error by class name, because the help page does not import the client."""

HUNG_HINT: Final = "; look at its log, or give another one with -n or NAMESRV_ADDR"
"""Remedy if a name server accepts connections but does not answer."""


NO_ACCOUNT_HINT: Final = (
    "; this command has given no account: use --credentials FILE, or --access-key and --secret-key"
    " (also as COMETMQ_CREDENTIALS, COMETMQ_ACCESS_KEY, COMETMQ_SECRET_KEY)"
)
"""Remedy if access control refuses a command without an account."""


def _access_hint(text: str) -> str:
    """Return a hint if access control refused: how to give an account, or the account given."""
    access = ACCESS.get()
    if not is_access_text(text):
        return ""
    if access.account_from:
        account = f"that of the context {access.account_from}"
    elif access.credentials is not None:
        account = f"that of {access.credentials}"
    elif access.access_key:
        account = access.access_key
    else:
        return NO_ACCOUNT_HINT
    answer = import_module("cometmq.runtime.meanings.answers").remark(text)
    advice = f"; {answer.advice[0].lower()}{answer.advice[1:].rstrip('.')}" if answer else ""
    return f"; the account is {account}{advice.replace('`', '')}"


def _hint(error: CometError) -> str:
    if hint := _access_hint(str(error)):
        return hint
    if type(error).__name__ == "NoNamesrv":
        cause = error.__cause__
        if isinstance(cause, RequestTimeout | TimeoutError):
            return HUNG_HINT
        if cause is not None and isinstance(cause.__cause__, import_module("ssl").SSLError):
            return ""  # it answers, and the text names the correction
    return HINTS.get(type(error).__name__, "")


def with_remedy(error: CometError) -> str:
    """Return an error's text on one line, with what to do about it."""
    return f"{_on_one_line(str(error))}{_hint(error)}"


def _on_one_line(text: str) -> str:
    return " ".join(text.splitlines())


def print_error(error: CometError) -> None:
    """Print an error that ends a command or one of its attempts, one line per wrong setting."""
    lines = str(error).splitlines() if isinstance(error, SettingsError) else [with_remedy(error)]
    for text in lines:
        say(f"cometmq: {text}", err=True)


def print_wrong_usage(error: Any) -> None:
    """Print click's error about options or arguments, with the command that prints the help page.

    A group that is called without a command prints its help.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    text = " ".join(error.format_message().split()).rstrip(".")
    command = "cometmq" if error.ctx is None else error.ctx.command_path
    say(f"cometmq: {text}; see {command} --help", err=True)


def print_missing() -> None:
    """Print the problems that did not end the command."""
    for line in MISSING.values():
        say(f"cometmq: {_on_one_line(line)}{_access_hint(line)}", err=True)
