# SPDX-License-Identifier: Apache-2.0
"""`uncapped_broker FILE`: the broker without the cap on requests per connection and iteration."""

import sys
from typing import Final

import msgspec

from cometmq.broker import app, opening
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.main import main
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.runtime.tls_keys import Label

UNCAPPED: Final = 1_000_000


def uncapped_settings(settings: BrokerSettings, label: Label = str) -> ServerSettings:
    return msgspec.structs.replace(
        opening.server_settings(settings, label), calls_per_turn_max=UNCAPPED
    )


if __name__ == "__main__":
    vars(app)["server_settings"] = uncapped_settings
    sys.argv[1:] = ["broker", "-c", sys.argv[1]]
    main()
