"""An exception that ends this process: it is recorded for the launcher, and peers hear of it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from syncline.errors import DistError

_MAX_REASON = 500

_tell_peers: Callable[[str], None] | None = None  # None: not watching.
_reported: BaseException | None = None


class _Hook:
    """A sys.excepthook that reports an exception and passes it on to the hook it replaced.

    A library that sets its own hook later, and calls this one from it, keeps this one for ever. The
    next `watch` then adds another _Hook above that library's: each one knows only what it replaced,
    so the chain has an end, and the first one that is called reports.
    """

    def __init__(self) -> None:
        self.replaced = sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            _report(kind, error, trace)
        except Exception:  # The exception itself is what must be seen.
            pass
        finally:
            self.replaced(kind, error, trace)


def watch(tell_peers: Callable[[str], None]) -> None:
    """From now on, an uncaught exception is recorded and passed to `tell_peers` in one line."""
    global _tell_peers
    _tell_peers = tell_peers
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


def unwatch() -> None:
    """Ends that."""
    global _tell_peers
    _tell_peers = None
    if isinstance(sys.excepthook, _Hook):
        sys.excepthook = sys.excepthook.replaced


def is_peer_error(error: BaseException | None) -> bool:
    """Whether `error` is, or came from, Syncline's report of what happened elsewhere."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # DistError itself is about the use of Syncline in this process.
        if isinstance(error, DistError) and type(error) is not DistError:
            return True
        seen.add(id(error))
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return False


def record(error: BaseException) -> None:
    """Writes `error`, which has been raised, to the file that TORCHELASTIC_ERROR_FILE names.

    Not if there is no such variable, or something has been written there already.
    """
    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    _record(_describe(type(error), error), callstack, error)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _reported
    # An interactive interpreter goes on.
    if _tell_peers is None or sys.flags.inspect or hasattr(sys, "ps1") or error is _reported:
        return
    _reported = error
    text = _describe(kind, error)
    _record(text, "".join(traceback.format_exception(kind, error, trace)), error)
    _tell_peers(text.split("\n", 1)[0][:_MAX_REASON])


def _describe(kind: type[BaseException], error: BaseException) -> str:
    text = str(error)
    return f"{kind.__name__}: {text}" if text else kind.__name__


def _record(text: str, callstack: str, error: BaseException) -> None:
    """Writes what torchrun's @record does, and two fields by which the launcher finds the cause."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):  # Somebody knows more.
        return
    now = time.time()
    info = {
        "py_callstack": callstack,
        "timestamp": str(int(now)),
        "syncline_time": now,
        "syncline_peer_error": is_peer_error(error),
    }
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"message": {"message": text, "extraInfo": info}}, file)
        os.replace(f"{path}.new", path)
    except OSError:
        pass
