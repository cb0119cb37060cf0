#!/usr/bin/env python3
"""Runs what run.sh has packed, on a machine with a CUDA device: the most valuable first.

<out> gets log.txt (all output), a summary (written after each step, so that it is there whenever
the time ends) and the tables of the benchmarks. The exit status is 0 if a step passed and none
failed.
"""

import argparse
import collections
import ctypes
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MANY_RESTARTS = 5
# A test that takes longer hangs: the longest takes half of this.
TEST_SECONDS = 30
SYS_TGKILL = 234  # Of x86-64, which the programs are for.

FILTER = "--gtest_filter="

# What a step came to; `note` says why, or counts.
Outcome = collections.namedtuple("Outcome", "result note")
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"


class Step:
    """A program: its name, arguments, environment, and the seconds it may take.

    `needs` returns why it cannot run on this machine, or nothing. A step that prints a table in
    Markdown `is_benchmark`; a GoogleTest `is_gtest`, and goes on after a test that ends it, or that
    takes longer than its `test_seconds`, if it has its own.
    """

    def __init__(
        self,
        name,
        command,
        seconds,
        env=None,
        needs=None,
        is_gtest=False,
        is_benchmark=False,
        test_seconds=None,
    ):
        self.name = name
        self.command = command
        self.seconds = seconds
        self.env = env or {}
        self.needs = needs or (lambda: None)
        self.is_gtest = is_gtest
        self.is_benchmark = is_benchmark
        self.test_seconds = test_seconds


def wait_for(process, seconds, path, test_seconds):
    """Returns its exit status, "timeout" after `seconds`, or "hung".

    It hangs when no further test of a GoogleTest, whose output is in `path`, has begun for
    `test_seconds`, if that is not 0.
    """
    now = time.monotonic()
    end = now + seconds
    test_end = now + (test_seconds or seconds)
    begun = 0
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if now >= end:
            return "timeout"
        if test_seconds:
            with open(path, "rb") as output:
                count = output.read().count(b"[ RUN      ]")
            if count != begun:
                begun = count
                test_end = now + test_seconds
        if now >= test_end:
            print_stacks(process.pid)
            return "hung"


def print_stacks(pid):
    """Has each thread of a program that is linked with real_devices print its stack."""
    libc = ctypes.CDLL(None)
    try:
        threads = sorted(os.listdir("/proc/%d/task" % pid), key=int)
    except OSError:  # It has just ended.
        return
    for thread in threads:
        if handles(pid, signal.SIGUSR1):  # Else it would end the process.
            libc.syscall(SYS_TGKILL, pid, int(thread), int(signal.SIGUSR1))
            time.sleep(0.02)


def handles(pid, number):
    """Whether a process has a handler for a signal."""
    try:
        with open("/proc/%d/status" % pid) as status:
            caught = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)", status.read())
    except OSError:
        return False
    return bool(caught) and bool(int(caught.group(1), 16) >> (number - 1) & 1)


def describe_status(status):
    """In words: how a process has ended."""
    if status in ("timeout", "hung"):
        return status
    if status < 0:
        return "signal %s" % signal.Signals(-status).name
    return "status %d" % status


def run(command, env, seconds, log, test_seconds=0):
    """Runs a command in a session of its own, which ends with it. Returns status and output.

    The status is as of wait_for.
    """
    path = log + ".part"
    with open(path, "wb") as out:
        try:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=HERE,
            )
        except OSError as error:
            out.write(("%s\n" % error).encode())
            process = None
        status = 127
        if process is not None:
            status = wait_for(process, seconds, path, test_seconds)
            try:
                os.killpg(process.pid, signal.SIGKILL)  # And what it has started.
            except ProcessLookupError:
                pass
            process.wait()
    with open(path, "rb") as out:
        output = out.read().decode(errors="replace")
    os.remove(path)
    with open(log, "a") as whole:
        whole.write(output)
        if status not in (0, 1):
            whole.write("-------- ended: %s\n" % describe_status(status))
    return status, output


class GtestResults:
    """What a GoogleTest has said about its tests, over several runs of the program."""

    def __init__(self):
        self.ended = {}  # Test: "OK", "FAILED" or "SKIPPED".
        self.begun = None

    def read(self, output):
        """Reads one run's output."""
        self.begun = None
        for line in output.splitlines():
            match = re.search(r"\[ RUN      \] (\S+)", line)
            if match:
                self.begun = match.group(1)
            match = re.match(r"\[\s+(OK|FAILED|SKIPPED)\s+\] ([^\s,]+).*\(\d+ ms\)", line)
            if match:
                self.ended[match.group(2)] = match.group(1)
                if match.group(2) == self.begun:
                    self.begun = None

    def count(self, result):
        """The number of tests with one result."""
        return sum(1 for each in self.ended.values() if each == result)


def run_gtest(step, env, seconds, log, test_seconds):
    """Runs a GoogleTest, and again behind each test that has ended the process."""
    results = GtestResults()
    died, ends = [], []
    has_explained = False
    end = time.monotonic() + seconds
    note = ""
    listed = 0
    for restart in range(MANY_RESTARTS + 1):
        command = list(step.command)
        done = sorted(results.ended) + died
        if done:
            command = add_to_filter(command, done)
        left = end - time.monotonic()
        if left <= 1:
            note = "no time for the other tests"
            break
        status, output = run(command, env, left, log, test_seconds)
        match = re.search(r"Running (\d+) tests? from", output)
        if match and not listed:
            listed = int(match.group(1))
        results.read(output)
        if status in (0, 1) and results.begun is None:
            if not results.ended:
                note = "no test has run; %s" % describe_status(status)
            break
        if results.begun is None:
            note = "%s outside of a test" % describe_status(status)
            break
        died.append(results.begun)
        ends.append("%s (%s)" % (results.begun, describe_status(status)))
        if isinstance(status, int) and not has_explained:
            # Once more, alone, for what NCCL says.
            has_explained = True
            left = min(end - time.monotonic(), test_seconds)
            if left > 1:
                alone = [each for each in step.command if not each.startswith(FILTER)]
                alone.append(FILTER + results.begun)
                run(
                    alone,
                    dict(env, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,REG,PROXY"),
                    left,
                    log,
                )
        if status == "timeout":
            note = "no time for the other tests"
            break
        if restart == MANY_RESTARTS:
            note = "gave up after %d tests that ended the process" % len(died)
    failed = sorted(name for name, result in results.ended.items() if result == "FAILED")
    skipped = results.count("SKIPPED")
    parts = ["%d passed" % results.count("OK")]
    if failed:
        parts.append("%d failed: %s" % (len(failed), ", ".join(failed[:5])))
    if died:
        parts.append("%d ended the process or hung: %s" % (len(died), ", ".join(ends)))
    if skipped:
        parts.append("%d skipped" % skipped)
    missing = listed - len(results.ended) - len(died)
    if missing > 0:
        parts.append("%d not run" % missing)
    if note:
        parts.append(note)
    is_good = results.ended and not failed and not died and not note and missing <= 0
    return Outcome(PASSED if is_good else FAILED, "; ".join(parts))


def add_to_filter(command, names):
    """The command with tests excluded from its --gtest_filter."""
    chosen = [each[len(FILTER) :] for each in command if each.startswith(FILTER)]
    rest = [each for each in command if not each.startswith(FILTER)]
    positive, _, negative = (chosen[0] if chosen else "*").partition("-")
    excluded = ([negative] if negative else []) + names
    return rest + [FILTER + (positive or "*") + "-" + ":".join(excluded)]


class Machine:
    """What there is: devices, NCCL, Python's packages. Asked in processes of their own."""

    def __init__(self):
        self.simulated = os.environ.get("SYNCLINE_CUDA_LIBRARY", "")
        self.devices = self._devices()
        self.nccl = self._find_nccl()
        self.nccl_version = self._nccl_version()
        self.torch = self._python(
            "import torch; print(torch.__version__, torch.version.cuda,"
            " torch.cuda.is_available(), torch.cuda.is_available() and"
            " torch.cuda.nccl.version())"
        )
        self.python_version = sys.version.split()[0]

    @staticmethod
    def _python(code, env=None):
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=120,
                env=env,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode().strip() if done.returncode == 0 else ""

    def _devices(self):
        code = (
            "import ctypes, os\n"
            "cuda = ctypes.CDLL(os.environ.get('SYNCLINE_CUDA_LIBRARY') or 'libcuda.so.1')\n"
            "count = ctypes.c_int()\n"
            "assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0\n"
            "print(count.value)"
        )
        return int(self._python(code) or 0)

    @staticmethod
    def _find_nccl():
        kept = os.environ.get("SYNCLINE_GPU_KEPT", "/var/tmp/syncline-gpu")
        folders = [kept] + sys.path
        named = os.environ.get("SYNCLINE_NCCL_LIBRARY")
        paths = [named] if named else []
        paths += [os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in folders]
        paths += glob.glob("/usr/lib/*/libnccl.so.2")
        for path in paths:
            if os.path.exists(path):
                return path
        return ""

    def _nccl_version(self):
        if not self.nccl:
            return 0
        code = (
            "import ctypes\nversion = ctypes.c_int()\n"
            "assert ctypes.CDLL(%r).ncclGetVersion(ctypes.byref(version)) == 0\n"
            "print(version.value)" % self.nccl
        )
        return int(self._python(code) or 0)

    def lacks_devices(self):
        """Why no test of devices can run."""
        return None if self.devices else "no CUDA device"

    def lacks_nccl(self):
        """Why no group over NCCL can be made."""
        if not self.devices:
            return "no CUDA device"
        return None if self.nccl_version else "no NCCL is found (run.sh join unpacks it)"

    def lacks_ranks(self, ranks):
        """Why so many ranks cannot have a device each, or share one."""
        if self.lacks_nccl():
            return self.lacks_nccl()
        if ranks <= self.devices or self.nccl_version >= 23000:
            return None
        return "%d ranks on %d devices need NCCL 2.30 or later; this is %d" % (
            ranks,
            self.devices,
            self.nccl_version,
        )

    def lacks_python(self):
        """Why syncline cannot be imported."""
        if not os.path.isdir(os.path.join(HERE, "site")):
            return "the archive has no Python package"
        with open(os.path.join(HERE, "python_version.txt")) as version:
            built = version.read().strip()
        if not self.python_version.startswith(built + "."):
            return "the package is built for Python %s, and this is %s" % (
                built,
                self.python_version,
            )
        return None

    def lacks_package(self, name):
        """Why `name`, a library of arrays on CUDA devices, cannot be used."""
        if self.lacks_python():
            return self.lacks_python()
        code = {
            "cupy": "import cupy; assert cupy.cuda.runtime.getDeviceCount()",
            "jax": "import jax; assert jax.devices('gpu')",
        }[name]
        if self._python(code + "; print('yes')"):
            return None
        return "Python has no %s that sees a CUDA device" % name

    def lacks_torch(self):
        """Why torch with CUDA cannot be used."""
        if self.lacks_python():
            return self.lacks_python()
        if not self.torch:
            return "Python has no torch"
        return None if " True " in self.torch + " " else "torch sees no CUDA device"


def steps(machine):
    """All steps, in order: first those that have not passed on a device yet."""

    def binary(path):
        return os.path.join(HERE, "bin", path)

    # To load a kernel at its first launch, or to free memory, may wait for the device, where
    # another rank's kernel waits for this rank's.
    many = {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "CUDA_MODULE_LOADING": "EAGER",
        "SYNCLINE_TEST_KEEP_DEVICE_MEMORY": "1",
    }
    # Ranks that share a device need room for all of their kernels at once.
    few_blocks = dict(many, NCCL_MAX_CTAS="8")
    devices, nccl = machine.lacks_devices, machine.lacks_nccl

    def groups(name, test_filter, env, needs, seconds):
        return Step(
            name,
            [binary("tests/groups/device_groups_gpu_test"), "--gtest_filter=" + test_filter],
            seconds,
            env,
            needs,
            is_gtest=True,
        )

    def conformance(ranks, env, seconds):
        test_filter = "*nccl_on_devices_%d:*nccl_on_devices_%d_*" % (ranks, ranks)
        return Step(
            "conformance, %d ranks" % ranks,
            [binary("tests/backends/nccl_conformance_gpu_test"), "--gtest_filter=" + test_filter],
            seconds,
            env,
            lambda: machine.lacks_ranks(ranks),
            is_gtest=True,
        )

    def suite(name, path, env, ranks, seconds, test_seconds=None):
        return Step(
            name,
            [binary(path)],
            seconds,
            env,
            lambda: machine.lacks_ranks(ranks),
            is_gtest=True,
            test_seconds=test_seconds,
        )

    def collectives(ranks, processes, env, seconds, share):
        name = "collectives, %d ranks%s" % (ranks, ", a process each" if processes else "")
        small = ["--max_bytes=262144"] if machine.simulated else []
        return Step(
            name,
            [binary("benchmarks/cuda/collectives"), "--ranks=%d" % ranks, "--seconds=%s" % share]
            + ["--processes"] * processes
            + small,
            seconds,
            env,
            lambda: machine.lacks_ranks(ranks),
            is_benchmark=True,
        )

    # These have not passed on a device yet.
    result = [
        suite("registered memory", "tests/backends/nccl_registered_memory_gpu_test", many, 2, 60),
        groups(
            "groups over nccl, 2 ranks",
            "*/nccl_2:*/nccl:*Nccl*:ChoiceOfBackendTest.*",
            many,
            lambda: machine.lacks_ranks(2),
            90,
        ),
        collectives(2, False, many, 120, 0.06),
        suite("reducers", "tests/ddp/reducer_ranks_gpu_test", few_blocks, 3, 90),
        # Its first test makes 60 groups, whose ends take NCCL half a second each.
        suite("hooks", "tests/ddp/device_hooks_gpu_test", many, 2, 120, test_seconds=80),
        suite(
            "backend nccl",
            "tests/backends/nccl_backend_gpu_test",
            dict(many, SYNCLINE_STALL_WARNING="0.3"),
            3,
            90,
        ),
        groups(
            "groups through memory of the host",
            "*/shm_1:*/shm_2:*/shm_3:*/shm:*/auto_2:*/gloo_2:*/local_2:StagedTensorsTest.*",
            many,
            devices,
            120,
        ),
        collectives(2, True, many, 120, 0.06),
        collectives(4, False, few_blocks, 120, 0.06),
    ]
    have_passed = [
        suite(
            "kills",
            "tests/backends/nccl_kill_gpu_test",
            # Its threads keep connections to the other processes beyond the communicators.
            dict(few_blocks, NCCL_RAS_ENABLE="0"),
            3,
            150,
        ),
        Step("device", [binary("tests/gpu/device_gpu_test")], 60, needs=devices, is_gtest=True),
        Step("kernels", [binary("tests/gpu/kernels_gpu_test")], 120, needs=devices, is_gtest=True),
        groups("groups over nccl, 1 rank", "*/nccl_1", {}, nccl, 60),
        conformance(1, {}, 60),
        conformance(2, many, 120),
        conformance(3, few_blocks, 120),
        conformance(4, few_blocks, 120),
        suite("reducers on streams", "tests/ddp/reducer_device_gpu_test", many, 2, 60),
        suite("communicators", "tests/backends/nccl_communicators_gpu_test", few_blocks, 3, 120),
        Step(
            "benchmark of kernels",
            [binary("benchmarks/cuda/cuda")] + (["1", "2"] if machine.simulated else []),
            120,
            needs=devices,
            is_benchmark=True,
        ),
        collectives(1, False, {}, 60, 0.03),
    ]
    python = {"PYTHONPATH": os.path.join(HERE, "site"), "PYTHONUNBUFFERED": "1"}
    if machine.nccl and not machine.simulated:
        # Torch then takes the same one, whatever its own is.
        python["LD_PRELOAD"] = machine.nccl
    result.append(
        Step(
            "import syncline",
            [sys.executable, "-c", "import syncline; assert syncline.is_nccl_available()"],
            60,
            python,
            lambda: machine.lacks_python() or machine.lacks_nccl(),
        )
    )
    for ranks in 1, 2:
        result.append(
            Step(
                "benchmark beside torch, %d ranks" % ranks,
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    os.path.join(HERE, "torch_calls.py"),
                    "--ranks=%d" % ranks,
                ],
                150,
                dict(python, **many),
                lambda ranks=ranks: machine.lacks_torch() or machine.lacks_ranks(ranks),
                is_benchmark=True,
            )
        )
    shared = "gpu_ranks.py", "models.py"
    for script in sorted(glob.glob(os.path.join(HERE, "torch", "*.py"))):
        if os.path.basename(script) in shared:
            continue
        result.append(
            Step(
                "torch/" + os.path.basename(script),
                [sys.executable, script],
                150,
                dict(python, **many),
                lambda: machine.lacks_torch() or machine.lacks_ranks(2),
            )
        )
    for name in "cupy", "jax":
        result.append(
            Step(
                "arrays of " + name,
                [sys.executable, os.path.join(HERE, "arrays", name + "_arrays.py")],
                120,
                dict(python, **many),
                lambda name=name: machine.lacks_package(name) or machine.lacks_ranks(2),
            )
        )
    sanitizer = shutil.which("compute-sanitizer") or ""
    # racecheck is of no use: the kernels have no shared memory.
    for path in "kernels_gpu_test", "device_gpu_test":
        result.append(
            Step(
                "memcheck of " + path,
                # Calls that fail are what some tests are about.
                [
                    sanitizer,
                    "--tool",
                    "memcheck",
                    "--report-api-errors",
                    "no",
                    "--error-exitcode",
                    "9",
                    binary("tests/gpu/" + path),
                ],
                150,
                needs=lambda: (
                    devices() or (None if sanitizer else "no compute-sanitizer on the machine")
                ),
            )
        )
    return result + have_passed


def describe(machine):
    """Lines on the machine, for the summary."""
    lines = []
    for command in (
        [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,compute_cap",
            "--format=csv,noheader",
        ],
        ["uname", "-srm"],
        ["ldd", "--version"],
        ["nproc"],
    ):
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
            )
            first = done.stdout.decode().strip().splitlines()[:1]
        except (OSError, subprocess.TimeoutExpired):
            first = []
        lines.append("%s: %s" % (" ".join(command[:1]), first[0] if first else "not there"))
    lines.append("devices: %d%s" % (machine.devices, ", SIMULATED" if machine.simulated else ""))
    lines.append("NCCL: %s %s" % (machine.nccl_version or "not found", machine.nccl))
    lines.append(
        "Python %s; torch, its CUDA, whether it sees a device, its NCCL: %s"
        % (machine.python_version, machine.torch or "not there")
    )
    commit = os.path.join(HERE, "commit.txt")
    if os.path.exists(commit):
        with open(commit) as file:
            lines.append("commit " + file.read().strip())
    return lines


def run_step(step, seconds, log, test_seconds=TEST_SECONDS):
    """Runs one step, for no longer than `seconds`, and one test of it than `test_seconds`."""
    reason = step.needs()
    if reason:
        return Outcome(NOT_RUN, reason), ""
    if not os.path.exists(step.command[0]):
        return Outcome(FAILED, "%s is not there" % step.command[0]), ""
    if seconds < min(10, step.seconds):
        return Outcome(NOT_RUN, "no time left"), ""
    env = dict(os.environ, **step.env)
    libraries = os.path.join(HERE, "lib")
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [libraries, env.get("LD_LIBRARY_PATH")]))
    limit = min(seconds, step.seconds)
    if step.is_gtest:
        return run_gtest(step, env, limit, log, step.test_seconds or test_seconds), ""
    status, output = run(step.command, env, limit, log)
    if status == 0:
        return Outcome(PASSED, ""), output
    if status == "timeout":
        return Outcome(FAILED, "not ended after %d s" % limit), output
    last = output.strip().splitlines()[-1:] or ["no output"]
    return Outcome(FAILED, "%s: %s" % (describe_status(status), last[0][:200])), output


def write_summary(path, head, rows, rest):
    """Returns the last line: how many steps came to what."""
    counts = collections.Counter(outcome.result for _, outcome, _ in rows)
    counts[NOT_RUN] += len(rest)
    last = "%d passed, %d failed, %d not run" % (counts[PASSED], counts[FAILED], counts[NOT_RUN])
    lines = ["# Run on devices", ""] + ["- " + line for line in head]
    lines += ["", "| step | result | seconds | |", "|---|---|---|---|"]
    for name, outcome, seconds in rows:
        note = outcome.note.replace("|", "\\|").replace("\n", " ")
        lines.append("| %s | %s | %.0f | %s |" % (name, outcome.result, seconds, note))
    lines += ["| %s | not run | | not reached yet |" % step.name for step in rest]
    lines += ["", last, ""]
    with open(path + ".new", "w") as file:
        file.write("\n".join(lines))
    os.replace(path + ".new", path)
    return last


def main(argv):
    """Runs the steps. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", default="out", help="the folder of the results")
    parser.add_argument("--seconds", type=float, default=560, help="for all together")
    parser.add_argument("--only", default="", help="a pattern of names of steps")
    parser.add_argument("--skip", default="", help="a pattern of names of steps")
    parser.add_argument("--step_seconds", type=float, default=150, help="for each of them")
    parser.add_argument("--test_seconds", type=float, default=TEST_SECONDS, help="of one test")
    parser.add_argument("--list", action="store_true", help="print the steps, and run none")
    options = parser.parse_args(argv)
    end = time.monotonic() + options.seconds
    machine = Machine()
    if machine.nccl:
        os.environ["SYNCLINE_NCCL_LIBRARY"] = machine.nccl
    chosen = [
        step
        for step in steps(machine)
        if re.search(options.only, step.name)
        and not (options.skip and re.search(options.skip, step.name))
    ]
    if options.list:
        for step in chosen:
            print("%-45s %s" % (step.name, step.needs() or ""))
        return 0
    if not chosen:
        print("no step has such a name")
        return 2
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    log, summary = os.path.join(out, "log.txt"), os.path.join(out, "summary.md")
    tables = os.path.join(out, "benchmarks.md")
    head = describe(machine)
    print("\n".join(head), flush=True)
    rows = []
    for number, step in enumerate(chosen):
        with open(log, "a") as whole:
            whole.write("\n======== %s: %s\n" % (step.name, " ".join(step.command)))
        begin = time.monotonic()
        left = min(end - begin, options.step_seconds)
        outcome, output = run_step(step, left, log, options.test_seconds)
        taken = time.monotonic() - begin
        if step.is_benchmark and output:
            with open(tables, "a") as file:
                file.write("\n## %s (%s)\n\n%s" % (step.name, outcome.result, output))
        rows.append((step.name, outcome, taken))
        print(
            "%-8s %4.0f s  %s%s"
            % (outcome.result, taken, step.name, ": " + outcome.note if outcome.note else ""),
            flush=True,
        )
        last = write_summary(summary, head, rows, chosen[number + 1 :])
    print(last)
    results = {outcome.result for _, outcome, _ in rows}
    return 0 if PASSED in results and FAILED not in results else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
