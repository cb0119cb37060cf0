"""concurrent.futures.ProcessPoolExecutor, whose calls and results travel as shared memory."""

# What the standard module has inside has no types.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import concurrent.futures
from typing import Any

from syncline.multiprocessing import queues


class _CallQueue(queues.Queue):
    """The executor's queue of calls. A call that cannot be pickled is the error of its future."""

    def __init__(self, maxsize: int, ctx: Any, on_error: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._on_error = on_error

    def _on_queue_feeder_error(self, e: Exception, obj: Any) -> None:
        self._on_error(e, obj)


class ProcessPoolExecutor(concurrent.futures.ProcessPoolExecutor):
    """The executor of concurrent.futures, with processes and queues of this package."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Any = None,
        initargs: Any = (),
        **kwargs: Any,
    ) -> None:
        if mp_context is None:
            from syncline.multiprocessing.context import _default_context

            # The standard executor forks only when it starts, if its tasks per child are limited.
            limited = kwargs.get("max_tasks_per_child") is not None
            mp_context = _default_context.get_context("spawn" if limited else None)
        super().__init__(max_workers, mp_context, initializer, initargs, **kwargs)
        calls: Any = self._call_queue  # type: ignore[has-type]
        self._call_queue = _CallQueue(calls._maxsize, mp_context, calls._on_queue_feeder_error)
        self._call_queue._ignore_epipe = True
        calls._reader.close()
        calls._writer.close()


__all__ = ["ProcessPoolExecutor"]
