"""The debugger of syncline.breakpoint."""

from __future__ import annotations

import bdb
import pdb
import sys
from types import FrameType
from typing import TextIO


class RankDebugger(pdb.Pdb):
    """Begins with its prompt, before it traces anything."""

    def __init__(self, rank: int, terminal: tuple[TextIO, TextIO]):
        super().__init__(stdin=terminal[0], stdout=terminal[1], nosigint=True, readrc=False)
        self.use_rawinput = False
        self.prompt = f"(Pdb, rank {rank}) "
        self._goes_on = False

    @property
    def needs_trace(self) -> bool:
        """Whether the user wants steps, or has set breakpoints that may come."""
        return not self._goes_on or bool(self.breaks)

    def set_continue(self) -> None:
        self._goes_on = True
        super().set_continue()

    def ask(self, frame: FrameType) -> None:
        """Lets the user look at `frame`; raises BdbQuit if they want no more."""
        self.reset()
        above: FrameType | None = frame
        while above is not None:
            self.botframe = above
            above = above.f_back
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit

    def trace(self, frame: FrameType) -> None:
        """Has the steps begin that the user wants, when the caller returns."""
        above: FrameType | None = frame
        while above is not None:
            above.f_trace = self.trace_dispatch
            above = above.f_back
        sys.settrace(self.trace_dispatch)
