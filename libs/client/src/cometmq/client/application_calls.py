# SPDX-License-Identifier: Apache-2.0
"""Calls application code, whose failures reach the client as an `Exception`.

Other exceptions would end a task of the client for good, so `Failures` translates them. Three kinds
pass unchanged: KeyboardInterrupt and SystemExit, which end the program, and the cancellation or
closing of the client's own task, which is not a failure of the application.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

from cometmq.client.errors import ClientStateError, InvalidArgument, shown
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe

_YIELDS: Final = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_function(
    function: object, name: str, *parameters: str, kinds: str = "plain or async"
) -> None:
    """Raise InvalidArgument, with the expected form, unless `function` accepts these parameters."""
    form = f"def {name}({', '.join(parameters)})"
    if not callable(function):
        raise InvalidArgument(
            f"{name} is {shown(function)}, which cannot be called: give a function `{form}`, "
            f"{kinds}"
        )
    if any(yields(function) for yields in _YIELDS):
        raise InvalidArgument(f"{name} is a generator, which would never run: use `return`")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise InvalidArgument(
            f"{name} cannot be called as {name}({', '.join(parameters)}): {error}. "
            f"Write it as `{form}`, {kinds}"
        ) from error


def check_plain_function(function: object, name: str, *parameters: str) -> None:
    """Like `check_function`, but refuse coroutine functions: no event loop runs here."""
    check_function(function, name, *parameters, kinds="not async")
    if is_coroutine_function(function):
        raise InvalidArgument(
            f"{name} is a coroutine function, which a blocking client cannot run: write "
            f"`def {name}({', '.join(parameters)})`, or use cometmq.client instead of "
            "cometmq.client.sync"
        )


def is_coroutine_function(function: object) -> bool:
    """Return whether a call returns a coroutine; works for objects with an async `__call__` too."""
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_methods(value: object, name: str, example: str, *methods: str) -> None:
    """Raise InvalidArgument if an object lacks one of the methods."""
    for method in methods:
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise InvalidArgument(
                f"{name} must be an object with the method {method}, such as {example}, not "
                f"{shown(value)}"
            )


def check_hook(hook: object, *methods: str) -> None:
    """Raise if an object lacks one of the methods, or if a method is a coroutine function."""
    for name in methods:
        form = f"{type(hook).__name__}.{name}"
        check_function(getattr(hook, name, None), form, "context", kinds="not async")
        if is_coroutine_function(getattr(hook, name)):
            raise InvalidArgument(
                f"{type(hook).__name__}.{name} is a coroutine function, which would never run: "
                f"write `def {name}(self, context)`"
            )


CANCEL_GRACE_MS: Final = 2_000
"""How long a client waits for application code that it has cancelled."""

ABANDONED_ADVICE: Final = (
    "it catches asyncio.CancelledError and runs on: raise it again after the clean-up"
)

_CALLS: Final[ContextVar[tuple["calling", ...]]] = ContextVar("cometmq_calls", default=())
"""The client calls that enclose the running code; the context of a task may outlive them."""


class ForeignError(Exception):
    """Application code raised an exception that must not reach the client's tasks unchanged."""


def original(error: Exception) -> BaseException:
    """Return the exception that the application raised."""
    return error.__cause__ or error if isinstance(error, ForeignError) else error


class Failures:
    """Converts failures of the enclosed code that are not an `Exception` into a ForeignError, for
    example GeneratorExit, gevent's Timeout or the outcome of `pytest.fail`.
    """

    __slots__ = ("_cancellations", "_task")

    def __init__(self) -> None:
        self._task = _current_task()
        # Not always 0: up to Python 3.11.8, an earlier failed TaskGroup leaves a cancellation.
        self._cancellations = 0 if self._task is None else self._task.cancelling()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
            return
        if not self._is_ours(error):
            raise ForeignError(f"raised {describe(error)}") from error

    def _is_ours(self, error: BaseException) -> bool:
        """Return whether the error cancels or closes this task, not just the application's code."""
        task = self._task
        if isinstance(error, asyncio.CancelledError):
            return task is not None and task.cancelling() > self._cancellations
        return isinstance(error, GeneratorExit) and not self._is_in_task()

    def _is_in_task(self) -> bool:
        """Return False while the task's coroutine is being closed, from outside the task."""
        return self._task is _current_task()


class calling(Failures):  # noqa: N801  # used like a function: `with calling(client, "on_revoked"):`
    """Marks the enclosed code as a call by a client, so that it cannot close this client and
    deadlock; translates its exceptions.

    Threads of `on_thread` inherit the mark. Tasks that the code creates may close the client,
    because the call can end before they do.
    """

    __slots__ = ("_client", "_is_running", "_name", "_token")

    def __init__(self, client: object, name: str) -> None:
        super().__init__()
        self._client = client
        self._name = name
        self._is_running = False

    def __enter__(self) -> None:
        self._is_running = True
        self._token = _CALLS.set((*_CALLS.get(), self))

    def __exit__(self, type_: object, error: BaseException | None, traceback: object) -> None:
        self._is_running = False
        if self._is_in_task():  # otherwise the context of the task is not the current one
            _CALLS.reset(self._token)
        super().__exit__(type_, error, traceback)

    def refuse_close(self, client: object, task: asyncio.Task[Any] | None) -> None:
        """Raise ClientStateError if this call and `client.close` would wait for each other.

        `task` is the task that called `close`, or None in a thread without an event loop.
        """
        is_waited_for = self._is_running and (task is None or task is self._task)
        if self._client is client and is_waited_for:
            raise ClientStateError(
                f"`close` was called by {self._name}, and would wait for {self._name} to end: "
                "set an event instead, and close in the task or thread that waits for it"
            )


def refuse_close_inside(client: object) -> None:
    """Raise ClientStateError if called from a listener or callback: `close` would wait for it."""
    task = _current_task()
    for call in reversed(_CALLS.get()):
        call.refuse_close(client, task)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


def contained(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a plain function on a pool thread, translating exceptions that futures cannot carry.

    A future refuses StopIteration, so the awaiting task would hang; GeneratorExit would close that
    task's coroutine, and SystemExit would end the event loop.
    """
    try:
        return function(*arguments)
    except (StopIteration, GeneratorExit, SystemExit) as error:
        raise ForeignError(f"raised {describe(error)}") from error


class NoThreads(Exception):
    """A function was not called, because this process or the owner of its threads is ending."""


async def on_thread(
    pool: ThreadPoolExecutor | None, function: Callable[..., Any], *arguments: object
) -> Any:
    """Call a plain function on a pool thread, with the context variables of this task.

    A returned coroutine, as from `lambda messages: handle(messages)`, is awaited here. Raise
    NoThreads if no thread takes the call.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    try:
        running = loop.run_in_executor(pool, context.run, contained, function, *arguments)
    except RuntimeError as error:
        raise NoThreads(str(error)) from error
    result = await running
    return await result if inspect.isawaitable(result) else result


async def called(
    function: Callable[..., Any], *arguments: object, pool: ThreadPoolExecutor | None = None
) -> Any:
    """Call a coroutine function on the loop, or a plain function on a thread."""
    if is_coroutine_function(function):
        return await function(*arguments)
    return await on_thread(pool, function, *arguments)


async def tell(
    callback: Callable[..., Any],
    *arguments: object,
    client: object,
    name: str,
    group: str,
    log: Log,
    **facts: object,
) -> None:
    """Call an application's callback in a task of its own, and wait for it; log its failure.

    If this task is cancelled, so is the call. A call that suppresses the cancellation is logged and
    left running after CANCEL_GRACE_MS, because `close` would otherwise wait for it.
    """

    async def work() -> None:
        try:
            with calling(client, name):
                await called(callback, *arguments)
        except Exception as error:  # application code: the client goes on regardless
            cause = original(error)
            log.warning(
                "callback.failed",
                group=group,
                callback=name,
                **facts,
                error=describe(cause),
                exc_info=cause,
            )

    calls = TaskSet(log)
    task = calls.spawn(work(), name=name)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await leave_calls(calls, callback=name, group=group, log=log)
        raise


async def leave_calls(calls: TaskSet, *, callback: str, group: str, log: Log) -> None:
    """Cancel calls to `callback`; log if one is still running after CANCEL_GRACE_MS."""
    if running_count := await calls.close_within(CANCEL_GRACE_MS / 1000):
        log.warning(
            "callback.abandoned",
            group=group,
            callback=callback,
            running_count=running_count,
            advice=ABANDONED_ADVICE,
        )
