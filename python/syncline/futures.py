"""Results of operations in flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any


class Future(concurrent.futures.Future[Any]):
    """A result to come: Work.get_future() gives one, as torch.distributed does.

    It is also a concurrent.futures.Future (result(timeout), exception(timeout), as_completed...)
    and can be awaited under asyncio. Cannot be cancelled: abort the group instead. Callbacks run on
    the thread that finishes the operation, or at once if it has finished; they must not wait for
    other operations of the group.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()

    def wait(self) -> Any:
        """Waits until it is done and returns its value, or raises its error."""
        return self.result()

    def value(self) -> Any:
        """Its value, if it is done; raises its error, or a RuntimeError if it is not done."""
        if not self.done():
            raise RuntimeError("the future is not done: wait() for it first")
        return self.result()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of what `callback`, called with this one once it is done, returns or raises."""
        following = Future()

        def call(_: concurrent.futures.Future[Any]) -> None:
            try:
                result = callback(self)
            except BaseException as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        self.add_done_callback(call)
        return following

    def __await__(self) -> Generator[Any, None, Any]:
        """Waits under asyncio without blocking the event loop."""
        return asyncio.wrap_future(self).__await__()
