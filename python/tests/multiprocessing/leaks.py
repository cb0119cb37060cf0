"""What a process holds: to find what is left over."""

import gc
import os
import pathlib
import time

from syncline import _syncline

# How many segments a process keeps to use them again.
MOST_KEPT = 16


def _files() -> list[str]:
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass  # That of the listing.
    return names


def held(collect: bool) -> tuple[int, int]:
    """Descriptors and mappings, after garbage has been collected or not, which takes long."""
    if collect:
        gc.collect()
    return _descriptors(), _mappings()


def descriptors() -> int:
    """How many open files this process has, apart from those of segments that it keeps."""
    gc.collect()
    return _descriptors()


def _descriptors() -> int:
    names = _files()
    segments = sum("memfd:syncline" in name for name in names)
    idle = _syncline._idle_mappings()
    return len(names) - idle - min(segments - idle, MOST_KEPT)


def mappings() -> int:
    """How many mappings of shared arrays this process has, apart from those that it keeps."""
    gc.collect()
    return _mappings()


def _mappings() -> int:
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    mapped = sum("memfd:syncline" in line or "/dev/shm/syncline-" in line for line in lines)
    return mapped - _syncline._idle_mappings()


def named_segments() -> list[str]:
    """The names of the segments of the strategy file_system, of all processes of this host."""
    return [name for name in os.listdir("/dev/shm") if name.startswith("syncline-")]


def resident() -> int:
    """Bytes of this process's own memory."""
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def eventually(condition, seconds: float = 10.0) -> bool:
    """Whether the condition holds before the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
