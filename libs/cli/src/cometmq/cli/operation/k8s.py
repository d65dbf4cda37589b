# SPDX-License-Identifier: Apache-2.0
"""`cometmq k8s`: give orders for a BrokerGroup to the Kubernetes operator.

An order is an annotation. kubectl sets it with the user's credentials and context; the operator
removes it and writes the outcome into the group's status.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from cometmq.cli.access import ACCESS
from cometmq.cli.connecting import DryRunOption, Yes, confirm, end_dry_run
from cometmq.cli.lazy import App
from cometmq.cli.option_sets import OptionSet, arg, opt
from cometmq.cli.output import AsJson, Cell, print_facts
from cometmq.remoting.errors import UNREADABLE_JSON, CometError

PREFIX: Final = "cometmq.io"
LOOK_MS: Final = 300
WAIT_S: Final = 60

app = App("Control a Kubernetes BrokerGroup through kubectl.")

Group = Annotated[str, arg("Name of the BrokerGroup.")]
Pod = Annotated[str, arg("Name of the broker's pod.")]


class OrderOptions(OptionSet, frozen=True, kw_only=True):
    """The options of every order."""

    namespace: Annotated[
        str,
        opt(
            "--namespace", "Namespace of the group; by default the namespace of kubectl's context."
        ),
    ] = ""
    context: Annotated[str, opt("--context", "kubectl context; by default the current one.")] = ""
    wait: Annotated[int, opt("Seconds to wait for the outcome.", min=1)] = WAIT_S


class K8sFailed(CometError):
    """An order could not be given, or was refused; the text contains the remedy."""


class _Group(msgspec.Struct):
    status: dict[str, Any] = {}


class OneGroup:
    """One BrokerGroup, accessed through kubectl."""

    def __init__(self, name: str, namespace: str, context: str) -> None:
        self.name = name
        options = {"--namespace": namespace, "--context": context}
        self._options = [f"{key}={value}" for key, value in options.items() if value]

    async def status(self) -> dict[str, Any]:
        """Return the status that the operator wrote last."""
        text = await self._kubectl("get", "brokergroups.cometmq.io", self.name, "--output=json")
        try:
            return msgspec.json.decode(text, type=_Group).status
        except UNREADABLE_JSON as error:
            raise K8sFailed(f"kubectl get printed no BrokerGroup: {error}") from error

    async def order(self, verb: str, value: str, wait_s: int) -> dict[str, Any]:
        """Give an order, and wait until the operator begins it; return the status before the order.

        Raise K8sFailed if the operator refuses it, or does not begin it within `wait_s`. A dry run
        ends here, once the API server has said that the order may be given.
        """
        before = await self.status()
        if ACCESS.get().is_dry_run:
            await self._annotate(f"{PREFIX}/{verb}={value}", "--dry-run=server")
            known: dict[str, Cell] = {"master": before.get("master"), "epoch": before.get("epoch")}
            end_dry_run(f"give the order {verb}={value}", [self.name], known)
        await self._annotate(f"{PREFIX}/{verb}={value}")

        def is_new(status: dict[str, Any]) -> bool:
            found = status.get("lastOperation", {})
            is_it = (found.get("verb"), found.get("value")) == (verb, value)
            return is_it and found != before.get("lastOperation")

        after = await self.until(is_new, wait_s)
        if after is None:
            await self._annotate(f"{PREFIX}/{verb}-")
            raise K8sFailed(
                f"no operator carried out the order within {wait_s} s, so it was withdrawn: see"
                " whether the pods of cometmq-operator run, and whether they watch this namespace"
            )
        operation = after["lastOperation"]
        if operation["result"] == "Refused":
            raise K8sFailed(operation["message"])
        return before

    async def until(
        self, holds: Callable[[dict[str, Any]], bool], wait_s: float
    ) -> dict[str, Any] | None:
        """Wait for a status for which a condition holds; return it, or None after `wait_s`."""
        end = time.monotonic() + wait_s
        while not holds(status := await self.status()):
            if time.monotonic() > end:
                return None
            await asyncio.sleep(LOOK_MS / 1000)
        return status

    async def _annotate(self, change: str, *options: str) -> None:
        target = f"brokergroups.cometmq.io/{self.name}"
        await self._kubectl("annotate", "--overwrite", *options, target, change)

    async def _kubectl(self, *words: str) -> bytes:
        command = ["kubectl", *self._options, *words]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except FileNotFoundError as error:
            raise K8sFailed("kubectl is not on PATH: install it, for it has the access") from error
        output, errors = await process.communicate()
        if process.returncode:
            raise K8sFailed(f"kubectl {words[0]}: {errors.decode(errors='replace').strip()}")
        return output


# ---- orders ----------------------------------------------------------------------------------


@app.command()
async def switchover(
    group: Group,
    options: OrderOptions,
    *,
    to: Annotated[
        str, opt("Pod of the next master; by default the slave with the least lag.")
    ] = "auto",
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Make another broker the master without failing any sends, and wait until it is open.

    \b
    EXAMPLE
      cometmq k8s switchover mq
    """
    one = OneGroup(group, options.namespace, options.context)
    before = await one.order("switchover-to", to, options.wait)
    await _show_next(one, before, options.wait, as_json=as_json)


@app.command()
async def fence(
    group: Group,
    pod: Pod,
    options: OrderOptions,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Stop a master at once, even if sends fail, and wait for the next one.

    Use `switchover` unless the master is doing harm.

    \b
    EXAMPLE
      cometmq k8s fence mq mq-0
    """
    one = OneGroup(group, options.namespace, options.context)
    await one.status()
    text = f"Stop the master of group {group}, {pod}? Sends fail until the next is open."
    await confirm(text, is_confirmed=yes)
    before = await one.order("fence", pod, options.wait)
    await _show_next(one, before, options.wait, as_json=as_json)


@app.command()
async def rebuild(
    group: Group,
    pod: Pod,
    options: OrderOptions,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Make a slave discard its store; its container restarts and copies everything.

    The old files move to the folder discarded-TIME in its volume; delete that folder once you no
    longer need its contents. The group's condition FullyReplicated is True again once the slave is
    back in sync.

    \b
    EXAMPLE
      cometmq k8s rebuild mq mq-1
    """
    one = OneGroup(group, options.namespace, options.context)
    await one.status()
    await confirm(f"Discard the store of {pod} of group {group}?", is_confirmed=yes)
    await one.order("rebuild", pod, options.wait)
    print_facts({"group": group, "pod": pod, "rebuild": "started"}, as_json=as_json)


@app.command(name="accept-loss")
async def accept_loss(
    group: Group,
    options: OrderOptions,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Let a group without a master continue with its most complete store, and wait for the master.

    The operator elects no master if acknowledged messages might be lost, for example after a power
    failure of all nodes. This command accepts the loss that the group's condition ElectionPossible
    describes: messages that only other stores had are lost for good.

    \b
    EXAMPLE
      cometmq k8s accept-loss mq
    """
    one = OneGroup(group, options.namespace, options.context)
    status = await one.status()
    reason = _why_no_election(status)
    epoch = status.get("lossEpoch", 0)
    if not epoch:
        raise K8sFailed(f"group {group} has no loss that can be accepted now: {reason}")
    text = (
        f"{reason}. Choose the most complete store of group {group}? Messages that only other"
        " stores had are lost for good."
    )
    await confirm(text, is_confirmed=yes)
    before = await one.order("accept-loss", str(epoch), options.wait)
    after = await one.until(_has_accepted, options.wait)
    if after is not None and after["lastOperation"]["result"] == "Refused":
        raise K8sFailed(after["lastOperation"]["message"])
    await _show_next(one, before, options.wait, as_json=as_json)


def _why_no_election(status: dict[str, Any]) -> str:
    for condition in status.get("conditions", ()):
        if (condition["type"], condition["status"]) == ("ElectionPossible", "False"):
            return f"{condition['reason']}: {condition['message']}"
    return "nothing prevents the election of a master"


def _has_accepted(status: dict[str, Any]) -> bool:
    return bool(status["lastOperation"]["result"] != "Started")


async def _show_next(one: OneGroup, before: dict[str, Any], wait_s: int, *, as_json: bool) -> None:
    """Wait for a master of a later epoch, and print it."""
    epoch = before.get("epoch", 0)
    after = await one.until(
        lambda status: bool(status.get("master")) and status.get("epoch", 0) > epoch, wait_s
    )
    if after is None:
        raise K8sFailed(
            f"the operator began, but no other master was open after {wait_s} s: see kubectl"
            f" describe bg {one.name}"
        )
    facts: dict[str, Cell] = {
        "group": one.name, "master": after["master"], "epoch": after["epoch"],
    }  # fmt: skip
    print_facts(facts, as_json=as_json)
