"""A running launcher, for the tests of this folder."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid

LAUNCHER = os.path.abspath("launch/syncline_run")
SILENT_NAMES = os.path.abspath("launch/silent_names.so")
RUN = os.path.abspath("launch/run")
DEADLINE = 60  # Of any wait; far more than is needed.


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "not within %d s: %s" % (DEADLINE, what)
        time.sleep(0.01)


def processes_with(mark):
    """The living processes whose environment contains `mark`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as environ:
                if mark.encode() in environ.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Job:
    """A running launcher. All that it starts inherits a mark, by which it is found."""

    def __init__(self, tmp_path, args, program=LAUNCHER, env=None, **popen):
        self.mark = "MARK=" + uuid.uuid4().hex
        # Of this job alone: another node of it may still be at work when this one has ended.
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="tmp", dir=str(tmp_path)))
        own = {"PATH": os.environ["PATH"], "TMPDIR": str(self.tmp), "PYTHON_EXEC": sys.executable}
        own.update([self.mark.split("=")])
        sanitizers = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LD_PRELOAD")
        own.update((name, os.environ[name]) for name in sanitizers if name in os.environ)
        own.update(env or {})
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        self.out = b""
        self.process = subprocess.Popen(
            [program] + [str(arg) for arg in args],
            env=own,
            cwd=str(tmp_path),
            **popen,
        )

    def expect(self, text, times=1):
        """Waits until `text` is on stdout `times` times; returns stdout so far."""
        deadline = time.monotonic() + DEADLINE
        fd = self.process.stdout.fileno()
        while self.out.count(text.encode()) < times:
            ready, _, _ = select.select([fd], [], [], max(0, deadline - time.monotonic()))
            data = os.read(fd, 65536) if ready else b""
            assert data, "no %r in %r" % (text, self.out)
            self.out += data
        return self.out.decode()

    def finish(self):
        """Waits for the end; returns exit code, stdout, stderr. Nothing may be left behind."""
        out, err = self.process.communicate(timeout=DEADLINE)
        assert processes_with(self.mark) == []
        assert [p for p in os.listdir(str(self.tmp)) if not p.startswith("syncline-logs-")] == []
        return self.process.returncode, (self.out + out).decode(), err.decode()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for pid in processes_with(self.mark):
            with contextlib.suppress(ProcessLookupError):  # It has just ended.
                os.kill(pid, signal.SIGKILL)


def lines_of(rank, out):
    prefix = "[rank%d]: " % rank
    return [line[len(prefix) :] for line in out.splitlines() if line.startswith(prefix)]
