# SPDX-License-Identifier: Apache-2.0
"""`cometmq broker`: run a broker in the foreground."""

from typing import Annotated, Final

import msgspec
import typer

from cometmq.broker import instances
from cometmq.broker.instances import INSTANCES_MAX
from cometmq.broker.registration.addresses import with_derived_port
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.lazy import App
from cometmq.cli.option_sets import opt
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    Namesrv,
    RunOptions,
    named,
    run_program,
)
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import Loaded, load

IMPORTANT: Final = frozenset(
    {
        *("accessMessageInMemoryMaxRatio", "aclEnable", "autoCreateSubscriptionGroup"),
        *("autoCreateTopicEnable", "brokerClusterName", "brokerIP1", "brokerId", "brokerName"),
        *("brokerRole", "cleanFileForciblyEnable", "commitIntervalCommitLog", "deleteWhen"),
        *("fetchNamesrvAddrByAddressServer", "fileReservedTime", "flushCommitLogTimed"),
        *("flushDiskType", "flushIntervalCommitLog", "haMasterAddress"),
        *("maxTransferBytesOnMessageInDisk", "maxTransferBytesOnMessageInMemory"),
        *("maxTransferCountOnMessageInDisk", "maxTransferCountOnMessageInMemory"),
        *("messageIndexEnable", "messageIndexSafe", "msgTraceTopicName", "namesrvAddr"),
        *("rejectTransactionMessage", "storePathCommitLog", "storePathRootDir"),
        *("traceTopicEnable", "transactionCheckInterval", "transactionCheckMax"),
        *("transactionTimeOut", "transientStorePoolEnable"),
    }
)
"""The settings that RocketMQ marks as important (@ImportantField)."""

Instance = Annotated[
    int,
    opt(
        "Run the N-th broker of one settings file: its ports are 10 * (N - 1) higher, -N"
        " follows its name and folders.",
        min=1,
        max=INSTANCES_MAX,
    ),
]
PrintImportant = Annotated[
    bool,
    opt(
        "-m",
        "--print-important",
        "Like -p, but only the settings that RocketMQ's mqbroker -m prints.",
    ),
]

app = App()


@app.command("broker", context_settings=OWN_OPTIONS)
def broker(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    instance: Instance = 1,
    important: PrintImportant = False,
    running: RunOptions,
) -> None:
    """Run a broker in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 10911 sets listenPort.

    \b
    EXAMPLE
      cometmq broker -c broker.conf -n 'mq1:9876;mq2:9876'
    """

    def settings() -> Loaded[BrokerSettings]:
        loaded = load(
            BrokerSettings,
            prefix=PROGRAMS["broker"].prefix,
            file=config,
            cli=named(namesrv),
            args=ctx.args,
        )
        return instances.instance(loaded, instance)

    only = None if running.print_settings or not important else IMPORTANT
    prints = running.print_settings or important
    run_program(
        "broker",
        config,
        msgspec.structs.replace(running, print_settings=prints),
        load=settings,
        table=lambda loaded: with_derived_port(loaded).as_table(only),
        more={"config_path": config},
    )
