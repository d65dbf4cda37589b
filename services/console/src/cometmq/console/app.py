# SPDX-License-Identifier: Apache-2.0
"""The console as a program: takes snapshots of the cluster, keeps the history, and serves the
pages.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.console.audit import Audit
from cometmq.console.desk import Desk
from cometmq.console.history.source import History, figures_of
from cometmq.console.history.store import HistoryStore
from cometmq.console.login.accounts import patterns_of
from cometmq.console.login.tokens import GENERATED, Tokens, own_token
from cometmq.console.pages.switchover import groups_of
from cometmq.console.settings import ConsoleSettings
from cometmq.console.site import site
from cometmq.console.web.guard import KNOWN_MAX, Known, proxies_of
from cometmq.console.web.problems import Problem
from cometmq.insight.findings import Findings
from cometmq.insight.history import Progress
from cometmq.insight.model import Certificate, Snapshot
from cometmq.insight.reading import ReadingAdmin
from cometmq.insight.snapshot import OURS, Watch, certificates_at
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.signature import credentials_of
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.remoting.transport.tls import CertificateWatch
from cometmq.remoting.transport.tls_contexts import WatchedContext, renewing, server_context
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.files import at_home
from cometmq.runtime.http.server import HttpServer
from cometmq.runtime.places import check_port, listen, prepare_folder
from cometmq.runtime.process.memory import release_free_memory
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import Label, client_tls_if_on, expiries_named_in, server_tls

if TYPE_CHECKING:
    from cometmq.console.login.oidc import Oidc

FRESH_MS: Final = 5_000
"""The greatest age of the snapshot that pages use."""
PROGRAMS_MS: Final = 60_000
"""Interval between checks of the TLS files of other programs."""
CERTIFICATES_MS: Final = 5_000
"""Interval between checks of the console's own TLS files."""
TOKENS_MS: Final = 1_000
"""Interval between checks of the file of tokens."""


class Program(NamedTuple):
    """A program without a port to ask, and the settings file that names its certificates."""

    name: str
    file: Path


class ConsoleApp:
    """Starts and stops the parts of a console.

    `listener` is a socket that another program has bound; without it, the console binds its own.
    """

    def __init__(
        self,
        settings: Loaded[ConsoleSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self._loaded = settings
        self._settings = settings.value
        self._log = log
        self._clock = clock
        self._http = admin
        self._listener = listener
        self._started = AsyncExitStack()
        self._watch: Watch
        self._findings: Findings
        self._others: list[Program] = []
        self._expiring: list[Certificate] = []
        self._tls: WatchedContext[ssl.SSLContext] | None = None
        self.url = ""
        """The address of the pages, once the console has started."""

    def check(self) -> None:
        """Raise SettingsError if settings are missing, contradict each other or cannot be used."""
        settings, faults = self._settings, Faults()
        if not settings.namesrv_addr:
            faults.add(
                "namesrvAddr must be set (-n HOST:PORT): the console finds brokers through name"
                " servers"
            )
        faults.attempt(self.check_settings)
        faults.raise_all()
        if self._listener is None:
            label = self._loaded.label("listenPort")
            check_port(settings.bind_address, settings.listen_port, setting=label)

    def check_settings(self) -> None:
        """Raise SettingsError if settings, or files that they name, contradict each other or are
        unusable.
        """
        settings, faults = self._settings, Faults()
        faults.attempt(lambda: _options(settings, self._loaded.label))
        faults.attempt(self._server_tls)
        faults.attempt(lambda: patterns_of(settings.readable_topics))
        faults.attempt(lambda: proxies_of(settings.trusted_proxies))
        faults.attempt(lambda: groups_of(settings.elector_config))
        faults.attempt(lambda: check_programs(programs_in(settings.program_configs)))
        if settings.oidc_issuer and not settings.public_url:
            faults.add("oidcIssuer needs publicUrl: the provider leads users back to it")
        if settings.oidc_issuer and not settings.oidc_roles:
            faults.add("oidcIssuer needs oidcRoles: without it, nobody may log in")
        faults.raise_all()

    async def start(self) -> None:
        """Serve the pages; name servers and brokers need not be reachable yet."""
        self.check()
        self._others = self._programs()
        settings, folder = self._settings, Path(self._settings.store_path_root_dir)
        prepare_folder(folder, setting=self._loaded.label("storePathRootDir"), is_private=True)
        async with AsyncExitStack() as stack:
            options = _options(settings, self._loaded.label)
            client = AdminClient(options=options, log=self._log)
            reader = ReadingAdmin(options=options, log=self._log)
            await stack.enter_async_context(client)
            await stack.enter_async_context(reader)
            background = TaskSet(self._log)
            stack.push_async_callback(background.close)
            self._watch = Watch(
                client,
                further=self._further,
                seen=lambda it: self._findings.of(it),  # noqa: PLW0108  # it is made below
                now_ms=self._clock.monotonic_ms,
            )
            self._findings = Findings(self._watch.history)
            await self._read_certificates()
            look = every(
                PROGRAMS_MS, self._read_certificates, name="console-programs", log=self._log
            )
            background.spawn(look, name="console-programs", is_endless=True)
            audit = Audit(folder, mib_max=settings.audit_mib_max, clock=self._clock, log=self._log)
            stack.callback(audit.close)
            history = await self._history(folder, stack, background)
            desk = Desk(
                settings,
                admin=client,
                reader=reader,
                snapshot=self._snapshot,
                renew=self._watch.renew,
                findings=self._findings,
                history=history,
                audit=audit,
                clock=self._clock,
                log=self._log,
            )
            stack.push_async_callback(desk.jobs.close)
            await self._serve(desk, folder, stack)
            self._started = stack.pop_all()
        release_free_memory()  # which the imports have left: 0.9 MB; it takes 4 ms
        if self._http is not None:
            self._http.add_ready_check("console", self.fault)
            self._http.add_settings("console", self._loaded.as_table)
        self._log.info("console.ready", url=self.url, namesrv=settings.namesrv_addr)

    async def stop(self) -> None:
        """Stop serving and close the files."""
        await self._started.aclose()
        self._log.info("console.stopped")

    def fault(self) -> str | None:
        """Return why the last snapshot failed; None if it succeeded."""
        return self._watch.failure or None

    # -- parts --------------------------------------------------------------------------------

    async def _history(self, folder: Path, stack: AsyncExitStack, background: TaskSet) -> History:
        settings = self._settings
        if settings.prometheus_url:
            from cometmq.console.history.prometheus import Prometheus  # noqa: PLC0415

            source = Prometheus(settings.prometheus_url, timeout_ms=settings.request_timeout)
            stack.push_async_callback(source.close)
            return source
        store = HistoryStore(
            folder,
            days=settings.history_days,
            mib_max=settings.history_mib_max,
            interval_ms=settings.history_interval,
            clock=self._clock,
            log=self._log,
        )
        await store.open()
        stack.push_async_callback(store.close)
        if settings.history_days:
            self._watch.history.progress |= await store.pauses()
            look = _Collector(self, store).look
            background.spawn(
                every(
                    settings.history_interval,
                    look,
                    name="console-history",
                    log=self._log,
                    first_ms=0,
                ),
                name="console-history",
                is_endless=True,
            )
        return store

    async def _serve(self, desk: Desk, folder: Path, stack: AsyncExitStack) -> None:
        settings = self._settings
        tokens, is_generated = self._tokens(folder)
        tls = self._server_tls()
        # Before anything else runs: the first snapshot of the history names these certificates.
        self._tls = watched = None if tls is None else WatchedContext(tls, server_context)
        known, oidc = await known_from(desk.audit), await self._oidc(stack)
        handler = site(desk, tokens, known=known, oidc=oidc, has_generated_token=is_generated)
        context = None if watched is None else renewing(watched)
        tasks = TaskSet(self._log)
        if watched is not None:
            look = partial(CertificateWatch(tasks, self._log).look, watched)
            watch = every(CERTIFICATES_MS, look, name="console-certificates", log=self._log)
            tasks.spawn(watch, name="console-certificates", is_endless=True)
        refresh = every(
            TOKENS_MS, partial(self._refresh, tokens), name="console-tokens", log=self._log
        )
        tasks.spawn(refresh, name="console-tokens", is_endless=True)
        server = HttpServer(
            handler,
            log=self._log,
            trusted_proxies=proxies_of(settings.trusted_proxies),
            requester=known.requester,
        )
        label = self._loaded.label("listenPort")
        listener = self._listener or listen(
            settings.bind_address, settings.listen_port, setting=label
        )
        stack.push_async_callback(tasks.close)
        await server.start(listener, context)
        stack.push_async_callback(server.stop)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if context is None else "https"
        self.url = f"{settings.public_url or f'{scheme}://{shown}:{port}'}{settings.prefix}/"

    def _tokens(self, folder: Path) -> tuple[Tokens, bool]:
        """Return the tokens, and whether there is a generated one, whose path is logged."""
        settings = self._settings
        if settings.token_file:
            path = Path(settings.token_file).expanduser()
            return Tokens(path, self._loaded.label("tokenFile")), False
        try:
            path = own_token(folder)
        except OSError as error:  # pages are needed most while the disk is full
            self._log.warning("token.missing", path=str(folder / GENERATED), error=str(error))
            return Tokens(None), False
        self._log.info("token.ready", path=str(path))
        return Tokens(path, "token"), True

    async def _refresh(self, tokens: Tokens) -> None:
        """Read a changed file of tokens; a session of a removed token ends with its next
        request.
        """
        try:
            if await asyncio.to_thread(tokens.refresh):
                self._log.info("tokens.reloaded")
        except SettingsError as error:
            self._log.warning("tokens.unusable", error=str(error))

    async def _oidc(self, stack: AsyncExitStack) -> "Oidc | None":
        if not self._settings.oidc_issuer:
            return None
        from cometmq.console.login.oidc import Oidc  # noqa: PLC0415  # an optional package

        oidc = Oidc(self._settings, clock=self._clock)
        stack.push_async_callback(oidc.close)
        return oidc

    def _server_tls(self) -> TlsSettings | None:
        if self._settings.tls_server.mode == TlsMode.DISABLED:
            return None
        return server_tls(self._settings, self._loaded.label)

    def _programs(self) -> list[Program]:
        settings = self._settings
        electors = [
            Program(f"elector of {name}", Path(path).expanduser())
            for name, (path, _) in groups_of(settings.elector_config).items()
        ]
        return electors + programs_in(settings.program_configs)

    async def _read_certificates(self) -> None:
        if self._others:
            self._expiring = await asyncio.to_thread(certificates_in, self._others)

    def _further(self) -> list[Certificate]:
        """Return the certificates of this server, and those of other programs."""
        found = {} if self._tls is None else self._tls.expiries_s
        own = {f"tls.server.{name}": expiry_s for name, expiry_s in found.items()}
        return [*certificates_at(OURS, own), *self._expiring]

    # -- the cluster --------------------------------------------------------------------------

    async def look(self) -> Snapshot | None:
        """Take a snapshot now, and return the newest; None if no name server has ever answered."""
        return await self._watch.refresh()

    @property
    def pauses(self) -> Mapping[str, Progress]:
        """The groups that read nothing, though they have unread messages."""
        return self._watch.history.pauses

    async def _snapshot(self) -> Snapshot:
        """Return a snapshot that is fresh, or the last one if a new one takes too long."""
        try:
            return await self._watch.fresh(FRESH_MS)
        except CometError as error:
            text = (
                f"{self._settings.namesrv_addr}: {error}; start a name server there, or start the"
                " console with the right address (-n or namesrvAddr); this page shows the cluster"
                " when one answers (runbook namesrv-unreachable.md)"
            )
            problem = Problem(HTTPStatus.SERVICE_UNAVAILABLE, text, title="No name server answers")
            raise problem from error


class _Collector:
    """Records each snapshot in the history."""

    def __init__(self, app: ConsoleApp, store: HistoryStore) -> None:
        self._app = app
        self._store = store
        self._noted_ms = 0

    async def look(self) -> None:
        """Take a snapshot and record it; a failed one leaves a gap in the history."""
        snapshot = await self._app.look()
        if snapshot is not None and snapshot.taken_ms != self._noted_ms:
            self._noted_ms = snapshot.taken_ms
            await self._store.record(figures_of(snapshot), self._app.pauses)


def _options(settings: ConsoleSettings, label: Label) -> ClientOptions:
    return ClientOptions(
        namesrv=settings.namesrv_addr,
        api_timeout_ms=settings.request_timeout,
        credentials=credentials_of(settings.access_key, settings.secret_key),
        tls=client_tls_if_on(settings, label),
    )


async def known_from(audit: Audit) -> Known:
    """Return the networks from which users have made the newest changes.

    With none, a flood of wrong logins during a restart would lock all users out until it ends.
    """
    known = Known()
    with suppress(OSError):  # the console starts, and the page of the log tells why
        for entry in reversed(await audit.newest(KNOWN_MAX)):
            if entry.user:  # visitors may make changes, too, if anonymousRole allows it
                known.add(entry.address)
    return known


def programs_in(text: str) -> list[Program]:
    """Parse `NAME=FILE;NAME=FILE`; raise SettingsError for another form."""
    found = []
    for word in (it.strip() for it in text.split(";") if it.strip()):
        name, separator, path = word.partition("=")
        if not (name.strip() and separator and path.strip()):
            raise SettingsError(f"programConfigs={word}: it must have the form NAME=FILE")
        found.append(Program(name.strip(), Path(at_home(path.strip(), f"programConfigs={word}"))))
    return found


def check_programs(programs: Sequence[Program]) -> None:
    """Raise SettingsError if a settings file cannot be used."""
    for it in programs:
        expiries_named_in(it.file)


def certificates_in(programs: Sequence[Program]) -> list[Certificate]:
    """Return the certificates that the files name, without those of unusable files; blocks."""
    return [one for it in programs for one in _certificates(it)]


def _certificates(program: Program) -> Iterator[Certificate]:
    try:
        yield from certificates_at(program.name, expiries_named_in(program.file))
    except SettingsError:
        return
