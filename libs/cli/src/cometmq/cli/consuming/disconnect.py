# SPDX-License-Identifier: Apache-2.0
"""`cometmq group disconnect`: close the connections of one client."""

from typing import Annotated, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, DryRunOption, Namesrv, Yes, ask, confirm
from cometmq.cli.output import AsJson, Cell, print_rows
from cometmq.client.errors import ClientError
from cometmq.remoting.errors import RequestCodeNotSupported

COLUMNS: Final = ("Broker", "Closed")


def disconnect(
    client_id: Annotated[str, typer.Argument(help="Client id, as group describe shows it.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Close the connections of a consumer or a producer; asks for confirmation.

    Its library connects again within seconds; messages that it has not acknowledged are delivered
    again. RocketMQ's own brokers cannot do this.

    \b
    EXAMPLE
      cometmq group disconnect 10.0.0.9@4711#1
    """

    async def question(admin: CommandAdmin) -> list[list[Cell]]:
        masters = (await admin.masters_to_change()).values()
        await confirm(f"Close the connections of {client_id}?", is_confirmed=yes)
        try:
            counts = await admin.change_each(
                masters, lambda it: it.disconnect(client_id), f"disconnect {client_id}"
            )
        except RequestCodeNotSupported as error:
            raise ClientError(
                "RocketMQ's brokers cannot close the connections of a client: stop its program"
            ) from error
        if not any(counts):
            raise ClientError(f"no client {client_id} is connected")
        return [[it.name, count] for it, count in zip(masters, counts, strict=True)]

    print_rows(COLUMNS, ask(namesrv, question), as_json=as_json)
