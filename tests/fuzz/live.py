# SPDX-License-Identifier: Apache-2.0
"""Sends hostile frames to a live broker and name server while good clients work, and then hostile
input to the members of a broker group.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.fuzz.attackers import Tally, attack, be_a_nuisance, total
from tests.fuzz.decoders import say
from tests.fuzz.good import GoodBrokerClient, GoodNamesrvClient
from tests.fuzz.members import fuzz_members
from tests.fuzz.ports import SHARE, bombard, slowest

from cometmq.broker.handlers import HANDLERS as BROKER_CODES
from cometmq.namesrv.handlers import HANDLERS as NAMESRV_CODES
from cometmq.peers.broker.child import BrokerChild, parse_log, until
from cometmq.peers.broker.store_files import judge_queues, read_log
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST
from cometmq.peers.processes import Child
from cometmq.store.inspection.verify import verify_store
from cometmq.store.settings import StoreSettings

WARM_UP_SHARE: Final = 5  # a fifth of the frames, before memory is measured
NAMESRV_SHARE: Final = 4
GROWTH_KIB_MAX: Final = 128 * 1024  # the allocator keeps the memory that slow readers used
PEAK_KIB_MAX: Final = 512 * 1024
P50_MS_MAX: Final = 5_000
LATENCY_MS_MAX: Final = 60_000
EXPECTED_ERRORS: Final = frozenset({"slave.refused"})  # its operator must act
COST_SHARE: Final = 50  # so many frames for one request that is measured alone
COST_MS_MAX: Final = 2_000
MEMBERS_SHARE: Final = 20  # so many frames for one input to the members of a group
TIMEOUT_S: Final = 60.0
SETTINGS: Final = {
    "brokerName": "fuzzed",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "writeBufferHighBytes": str(1 << 20),
}
INDEX_SHAPE: Final = StoreSettings(
    max_hash_slot_num=int(SETTINGS["maxHashSlotNum"]), max_index_num=int(SETTINGS["maxIndexNum"])
)


def fuzz_servers(*, frames: int, seed: int) -> bool:
    """Fuzz the servers and print the result; return True if nothing was found."""
    with tempfile.TemporaryDirectory(prefix="cometmq-fuzz-") as folder, ExitStack() as stack:
        problems = asyncio.run(Fuzz(Path(folder), frames, seed, stack).run())
        members = fuzz_members(Path(folder) / "group", inputs=frames // MEMBERS_SHARE, seed=seed)
        problems += asyncio.run(members)
    for problem in problems:
        say(f"FOUND: {problem}")
    return not problems


class Fuzz:
    def __init__(self, folder: Path, frames: int, seed: int, stack: ExitStack) -> None:
        self._folder = folder
        self._frames = frames
        self._seed = seed
        self._stack = stack
        self._problems: list[str] = []
        self._namesrv_log = folder / "namesrv.log"

    async def run(self) -> list[str]:
        """Run the attack; return the faults."""
        broker = BrokerChild(self._folder, **SETTINGS)
        self._stack.callback(broker.kill)
        await broker.start()
        namesrv, namesrv_address = await self._start_namesrv()
        pids = {"broker": broker.pid, "name server": namesrv.pid}
        good = GoodBrokerClient(broker.address), GoodNamesrvClient(namesrv_address)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(client.work()) for client in good]
            tally = await self._attack(broker.address, namesrv_address, good[0], pids)
            await self._attack_other_ports(broker)
            for client in good:
                client.is_over = True
            await asyncio.wait(work)
        await self._measure_costs(broker.address, namesrv_address)
        self._report(tally, time.monotonic() - started)
        for client in good:
            self._problems += client.problems(P50_MS_MAX, LATENCY_MS_MAX)
            say(client.summary())
        self._judge_log("broker", broker.log())
        self._judge_log("name server", namesrv.log())
        await self._judge_store(broker, good[0])
        if namesrv.stop(TIMEOUT_S) != 0:
            self._problems.append("the name server did not stop well")
        return self._problems

    async def _attack_other_ports(self, broker: BrokerChild) -> None:
        http = f"{HOST}:{broker.http_port}"
        replication = int(broker.address.rpartition(":")[2]) + 1  # the default haListenPort
        ports = {"ha_reports": f"{HOST}:{replication}", "http_request": http}
        ports |= {"group_stream": ports["ha_reports"], "control_request": http}
        streams = max(1, self._frames // SHARE)
        began_s = time.monotonic()
        self._problems += await bombard(ports, http, streams=streams, seed=f"{self._seed}:ports")
        elapsed_s = time.monotonic() - began_s
        say(f"ports: {streams} hostile streams to replication and HTTP in {elapsed_s:.0f} s")

    async def _measure_costs(self, broker: str, namesrv: str) -> None:
        """Print the slowest requests; the load of the attack is over."""
        targets = ("broker", broker, BROKER_CODES), ("name server", namesrv, NAMESRV_CODES)
        for name, address, codes in targets:
            count = max(10, self._frames // COST_SHARE)
            worst = await slowest(address, list(codes), count=count, seed=f"{self._seed}:cost")
            say(f"{name}: slowest requests: {worst}")
            self._problems += [
                f"{name}: a request takes too long: {cost}"
                for cost in worst.costs()
                if cost.elapsed_ms > COST_MS_MAX
            ]

    async def _start_namesrv(self) -> tuple[Child, str]:
        file = self._folder / "namesrv.conf"
        paths = {name: self._folder / f"{name}.txt" for name in ("kvConfigPath", "configStorePath")}
        text = "".join(f"{name}={path}\n" for name, path in paths.items())
        file.write_text(f"listenPort=0\nbindAddress={HOST}\n{text}")
        command = [str(PROGRAM), "namesrv", "-c", str(file)]
        child = Child("namesrv", command, log_path=self._namesrv_log)
        self._stack.callback(child.kill)

        async def is_ready() -> bool:
            assert child.exit_status is None, child.log()
            return "namesrv.ready" in child.log()

        await until(is_ready, TIMEOUT_S)
        (ready,) = [e for e in parse_log(child.log()) if e.get("event") == "namesrv.ready"]
        return child, ready["addresses"][0]

    async def _attack(
        self, broker: str, namesrv: str, good: GoodBrokerClient, pids: dict[str, int]
    ) -> Tally:
        """Attack twice: with automatic topic creation to warm up, then without it, measured."""
        context = multiprocessing.get_context("spawn")
        warm_up = self._frames // WARM_UP_SHARE
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            first = await self._round(pool, broker, namesrv, warm_up, "warm-up")
            await good.forbid_automatic_creation()
            before = {name: _memory_kib(pid, "VmRSS") for name, pid in pids.items()}
            with _nuisances(context, (broker, namesrv), self._seed):
                second = await self._round(pool, broker, namesrv, self._frames - warm_up, "main")
        await self._judge_memory(pids, before)
        return total([*first, *second])

    async def _round(
        self, pool: ProcessPoolExecutor, broker: str, namesrv: str, frames: int, name: str
    ) -> list[Tally]:
        loop = asyncio.get_running_loop()
        share = frames // NAMESRV_SHARE
        seed = f"{self._seed}:{name}"
        jobs = [
            (broker, list(BROKER_CODES), frames - share, f"{seed}:b"),
            (namesrv, list(NAMESRV_CODES), share, f"{seed}:n"),
        ]
        return [
            await future for future in [loop.run_in_executor(pool, attack, *job) for job in jobs]
        ]

    async def _judge_memory(self, pids: dict[str, int], before: dict[str, int]) -> None:
        for name, pid in pids.items():
            bound = before[name] + GROWTH_KIB_MAX

            async def is_small(pid: int = pid, bound: int = bound) -> bool:
                return _memory_kib(pid, "VmRSS") <= bound

            try:
                await until(is_small, TIMEOUT_S)  # the memory of closed connections is freed
            except TimeoutError:
                self._problems.append(f"the {name} grew by more than {GROWTH_KIB_MAX >> 10} MiB")
            now, peak = _memory_kib(pid, "VmRSS"), _memory_kib(pid, "VmHWM")
            say(
                f"{name}: {before[name] >> 10} MiB after the warm-up, {now >> 10} MiB at the end, "
                f"{peak >> 10} MiB at most"
            )
            if peak > PEAK_KIB_MAX:
                self._problems.append(f"the {name} took {peak >> 10} MiB")

    def _report(self, tally: Tally, elapsed_s: float) -> None:
        say(
            f"servers: {tally.frames} hostile frames on {tally.connections} connections, "
            f"{tally.answers} answers, {tally.frames / elapsed_s:.0f} frames/s, seed {self._seed}"
        )
        codes = ", ".join(f"{code}: {n}" for code, n in sorted(tally.codes.items()))
        say(f"servers: answers by code {codes}")
        self._problems += [f"a connection with whole frames ended: {at}" for at in tally.cut_off]
        if tally.unanswered:
            self._problems.append(f"requests without an answer, by code: {tally.unanswered}")

    def _judge_log(self, name: str, text: str) -> None:
        """Check that no input from a peer was logged as an error."""
        events = parse_log(text)
        bad = [
            event
            for event in events
            if (event.get("level") == "error" and event.get("event") not in EXPECTED_ERRORS)
            or "exception" in event
            or "output" in event
        ]
        counts = Counter(str(event.get("event")) for event in events)
        say(f"{name}: {len(events)} lines of log, {dict(counts.most_common(5))}")
        self._problems += [f"{name} logged {str(event)[:1500]}" for event in _distinct(bad)]

    async def _judge_store(self, broker: BrokerChild, good: GoodBrokerClient) -> None:
        """Stop the broker, verify its files, restart it, and read the good client's messages."""
        if not broker.is_alive:
            self._problems.append("the broker died")
            return
        deleted = {event["topic"] for event in broker.events("topic.removed")}
        if await broker.stop() != 0:
            self._problems.append("the broker did not stop well")
        records, _ = read_log(broker.store)
        records = [record for record in records if record.topic not in deleted]
        self._problems += judge_queues(broker.store, records)[:10]
        verification = verify_store(str(broker.store), settings=INDEX_SHAPE)
        self._problems += [
            f"the store is damaged: {finding}"
            for finding in verification.findings
            if not any(topic in f"{finding.place} {finding.text}" for topic in deleted)
        ][:10]
        outside = [path for path in self._folder.iterdir() if path.name in ("etc", "x", "g")]
        self._problems += [f"a name became the path {path}" for path in outside]
        await broker.start()
        self._problems += await good.judge(broker.address)
        await broker.stop()


def _distinct(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = {(event.get("event"), str(event.get("error"))[:60]): event for event in events}
    return list(kinds.values())[:10]


def _memory_kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(value)


@contextmanager
def _nuisances(context: Any, addresses: tuple[str, ...], seed: int) -> Iterator[None]:
    processes = [
        context.Process(target=be_a_nuisance, args=(address, f"{seed}:{address}"), daemon=True)
        for address in addresses
    ]
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            assert process.is_alive(), "a nuisance has given up"
    finally:
        for process in processes:
            process.kill()
            process.join()
