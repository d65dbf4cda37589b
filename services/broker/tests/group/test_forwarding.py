# SPDX-License-Identifier: Apache-2.0
"""Requests that a slave forwards to its master while access control is on."""

from pathlib import Path

import pytest

from cometmq.broker.testing.clients import TIMEOUT_MS
from cometmq.broker.testing.groups import running_group
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.errors import CommandError
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock

ACCOUNTS = """\
accounts:
  - accessKey: producer
    secretKey: "12345678"
    defaultTopicPerm: PUB
"""


@pytest.mark.parametrize("secret", ["12345678", "wrong-one"])
async def test_a_signed_send_to_a_slave_is_judged_by_its_signature(
    tmp_path: Path, secret: str
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    async with running_group(tmp_path, 2, aclEnable="true", aclFile=str(accounts)) as group:
        master = group.master
        assert master is not None
        client = RemotingClient(
            ClientSettings(),
            clock_ms=SystemClock().monotonic_ms,
            before=[signing(SessionCredentials("producer", secret))],
        )
        header = SendMessageV2("P", "T", AUTO_CREATE_TOPIC, 4, 0, 0, 0, 0, "")
        try:
            sending = client.invoke(
                group.address(1 - master), RequestCode.SEND_MESSAGE_V2, header, b"signed",
                timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
            if secret == "wrong-one":
                with pytest.raises(CommandError, match="signature"):
                    await sending
            else:
                assert (await sending).code == ResponseCode.SUCCESS
        finally:
            await client.close()
        forwarder = group.apps[1 - master].group
        assert forwarder is not None
        assert forwarder.gate.forwarded_count == (secret != "wrong-one")
