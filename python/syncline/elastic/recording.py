"""How a program's exceptions come to its launcher. Imported by every worker, so it is small."""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from syncline import failures

_P = ParamSpec("_P")
_R = TypeVar("_R")
NOT_AVAILABLE = "<N/A>"


class ErrorHandler:
    """Writes an exception where the launcher looks for it: to TORCHELASTIC_ERROR_FILE."""

    def initialize(self) -> None:
        """Has Python print all stacks if the process is killed by SIGSEGV and the like."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception:  # stderr is no file.
            pass

    def record_exception(self, e: BaseException) -> None:
        failures.record(e)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Passes on what another process has recorded."""
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path and path != rootcause_error_file:
            with open(rootcause_error_file, "rb") as theirs, open(path, "wb") as ours:
                ours.write(theirs.read())


def get_error_handler() -> ErrorHandler:
    return ErrorHandler()


def record(
    fn: Callable[_P, _R], error_handler: ErrorHandler | None = None
) -> Callable[_P, _R | None]:
    """A decorator for a program's main function: what it raises is recorded for the launcher.

    In the file that TORCHELASTIC_ERROR_FILE names, as torch's decorator of this name does; the
    exception goes on. Of a ChildFailedError, what the worker recorded that failed first. Also makes
    Python print the stacks of all threads if the process is killed by SIGSEGV and the like. After
    init_process_group exceptions are recorded without it.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                return None
            raise
        except Exception as error:
            # A ChildFailedError, of ours or of torch's.
            first = getattr(error, "get_first_failure", None)
            failure = first()[1] if first is not None else None
            if failure is None:
                handler.record_exception(error)
            elif failure.error_file != NOT_AVAILABLE:
                handler.dump_error_file(failure.error_file, failure.exitcode)
            raise

    return recorded
