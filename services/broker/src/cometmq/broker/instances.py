# SPDX-License-Identifier: Apache-2.0
"""Several brokers on one host from one settings file, each with its own ports, name and folders.

One broker uses one core, so a host with many cores runs several. Instance 1 has the settings as
they are; the ports of instance N are 10 * (N - 1) higher, and `-N` follows its name and folders.
"""

from typing import Final

import msgspec

from cometmq.broker.registration.addresses import PORT_MAX
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import COMMAND_LINE, DEFAULT, Loaded, Origin
from cometmq.runtime.settings.fields import fields_of

PORT_STEP: Final = 10
"""Distance between the ports of two instances; one broker has four ports within it."""
INSTANCES_MAX: Final = 64

_PORTS: Final = ("listenPort", "haListenPort", "adminHttpPort", "controlPort")
_NAMES: Final = ("brokerName", "storePathRootDir", "storePathCommitLog")
_OF_ONE: Final = ("groupRecord", "groupAddress", "haMasterAddress", "advertisedAddresses")
"""Settings that are specific to one broker, and from which those of another cannot be derived."""


def instance(loaded: Loaded[BrokerSettings], number: int) -> Loaded[BrokerSettings]:
    """Return the settings of an instance; raise SettingsError if they cannot be derived."""
    if number == 1:
        return loaded
    fields = fields_of(BrokerSettings)
    for name in _OF_ONE:
        if fields[name].read(loaded.value):
            raise SettingsError(
                f"{loaded.label(name)}: several instances cannot share it; give each broker a"
                " settings file of its own instead"
            )
    changes: dict[str, object] = {}
    for name in _PORTS:
        port = fields[name].read(loaded.value)
        assert isinstance(port, int)
        is_derived = name == "haListenPort" and loaded.origins[name] == DEFAULT
        if port > 0 and not is_derived:  # 0 is any free port, -1 none
            changes[name] = derived_port = port + PORT_STEP * (number - 1)
            if derived_port > PORT_MAX:
                raise SettingsError(
                    f"{loaded.label(name)}: instance {number} would need port {derived_port}, but"
                    f" {PORT_MAX} is the highest"
                )
    for name in _NAMES:
        if text := fields[name].read(loaded.value):
            changes[name] = f"{str(text).rstrip('/')}-{number}"
    derived = {name: Origin(COMMAND_LINE, f"{name} of instance {number}") for name in changes}
    value = msgspec.structs.replace(
        loaded.value, **{fields[name].path[0]: value for name, value in changes.items()}
    )
    return msgspec.structs.replace(loaded, value=value, origins={**loaded.origins, **derived})
