# SPDX-License-Identifier: Apache-2.0
"""Prints the lines of commands, safely: other parties have chosen parts of most of them."""

import typer

from cometmq.remoting.visible import visible, visible_json, visible_line


def say(text: str | bytes = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, or a JSON document, with its control characters written out.

    On standard error, a text is one line.
    """
    if isinstance(text, bytes):
        safe = visible_json(text.decode())
    else:
        safe = visible_line(text) if err else visible(text)
    typer.echo(safe, err=err, nl=nl)  # noqa: TID251  # the one place
