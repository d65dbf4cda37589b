# SPDX-License-Identifier: Apache-2.0
"""kopf's admission webhooks: checks that need other objects, which a schema cannot see.

They are off by default: the program imports this module only with `webhookAddress`, and `kopf run`
only if it is named. Only the active operator serves them: it registers its own address, and kopf
removes the registration when it stops. While nobody serves, the API server skips the checks, and
conditions of the objects tell the same.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import kopf
import msgspec

from cometmq.operator.api_types.broker_group import GROUP, PLURAL, VERSION
from cometmq.operator.handlers import DECLARED
from cometmq.operator.settings import OperatorSettings
from cometmq.operator.topics_and_groups.item import Claim, declared_of, owner
from cometmq.remoting.transport.certificate import self_signed_pem

REGISTRY: Final = kopf.get_default_registry()
Group = tuple[str, str, frozenset[str]]
"""Namespace and name of a BrokerGroup, and its name servers."""


@kopf.on.startup()
def serve(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Serve on the operator's own address, with a certificate of its own."""
    own: OperatorSettings = memo.acting.settings
    pem = self_signed_pem(own.webhook_address)
    path: Path = memo.acting.folder / "webhooks.pem"
    path.touch(mode=0o600)
    path.write_text(pem, encoding="ascii")
    certificate = pem[pem.index("-----BEGIN CERTIFICATE") :].encode()
    settings.admission.managed = f"{own.lease_name}.{GROUP}"
    settings.admission.server = kopf.WebhookServer(
        port=own.webhook_port,
        host=own.webhook_address,
        certfile=path,
        pkeyfile=path,
        cadata=certificate,
    )


@kopf.index(GROUP, VERSION, PLURAL)
def broker_names(namespace: str | None, name: str, spec: kopf.Spec, **_: Any) -> dict[str, Group]:
    """Index the groups by the name that their brokers register."""
    servers = frozenset(spec.get("nameServers", ()))
    return {spec.get("brokerName", name): (namespace or "", name, servers)}


@kopf.on.validate(GROUP, VERSION, PLURAL, operations=["CREATE"], ignore_failures=True)
def broker_name_is_free(spec: kopf.Spec, namespace: str | None, name: str, **given: Any) -> None:
    """Refuse a group whose brokers would register under the name of another group."""
    wanted = spec.get("brokerName", name)
    groups: Collection[Group] = given["broker_names"].get(wanted, ())
    for place, other, servers in groups:
        if (place, other) != (namespace, name) and not servers.isdisjoint(spec["nameServers"]):
            raise kopf.AdmissionError(
                f"brokerName {wanted} is that of the BrokerGroup {place}/{other}, which registers"
                " with the same name server: choose another one"
            )


def entry_is_free(body: kopf.Body, **given: Any) -> None:
    """Refuse an object that declares what an older one declares."""
    try:
        claim = declared_of(body["kind"], body).claim
    except msgspec.ValidationError:  # which the API server refuses with a better reason
        return
    others: Collection[Claim] = given["claims"].get(claim.entry, ())
    oldest = owner(claim, others)
    if oldest.key != claim.key:
        _, place, other = oldest.key
        raise kopf.AdmissionError(
            f"{claim.name} is declared by the {body['kind']} {place}/{other}: change or delete it"
        )


for _resource in DECLARED:
    kopf.on.validate(
        *_resource, id=f"{_resource[-1]}_are_free", operations=["CREATE"], ignore_failures=True
    )(entry_is_free)
