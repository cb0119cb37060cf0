"""Launchers on hosts of their own, and what their workers did."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

NETWORK = os.path.abspath("tests/elastic/network")
LAUNCHER = os.path.abspath("launch/syncline_run")
TRAINING = os.path.abspath("examples/elastic_fashion_mnist.py")
HOSTS_VARIABLE = "SYNCLINE_TEST_HOSTS"
DEADLINE = 40  # Seconds, of any wait; far more than is needed.
PORT = 29400


def wait_until(condition, what):
    """Waits until `condition()` is true; `what` may be a function that describes."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                "not within %d s: %s" % (DEADLINE, what() if callable(what) else what)
            )
        time.sleep(0.01)


def hosts():
    """[(door, address)] of all hosts."""
    return [text.split("=") for text in os.environ[HOSTS_VARIABLE].split(",")]


def children_of(pid):
    """The processes whose parent is `pid`, with their command lines."""
    found = {}
    for child in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", child, "stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                command = pathlib.Path("/proc", child, "cmdline").read_bytes().decode()
                found[int(child)] = command.split("\0")
        except OSError:
            pass
    return found


class Agent:
    """A running launcher."""

    def __init__(self, host, process, output):
        self.host = host
        self.process = process
        self.output = output

    def said(self):
        return self.output.read_text(errors="replace")

    def workers(self):
        """The pids of its workers."""
        children = children_of(self.process.pid)
        return [pid for pid, command in children.items() if command[0] == sys.executable]

    def kill(self, signum=signal.SIGKILL):
        self.process.send_signal(signum)

    def finish(self):
        """Its exit code."""
        try:
            return self.process.wait(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                "the launcher on host %d does not end:\n%s" % (self.host, self.said())
            ) from None


class Cluster:
    """One job: launchers, a checkpoint that they share, and the steps that were made."""

    def __init__(self, folder, min_nodes=1, max_nodes=3, workers=2, steps=120, step_time=0.03):
        self.mark = "MARK=" + uuid.uuid4().hex
        self.folder = folder
        self.options = ["--nnodes", "%d:%d" % (min_nodes, max_nodes), "--nproc-per-node", workers]
        self.steps, self.step_time = steps, step_time
        self.max_restarts = 3
        self.endpoint = [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "%s:%d" % (hosts()[0][1], PORT),
        ]
        self.conf = "last_call_timeout=2,join_timeout=60"
        self.agents = []
        self.shm = set(os.listdir("/dev/shm"))

    def start(self, host, *more, program=(TRAINING,), variables=()):
        """A launcher on `host`, with these variables in its environment."""
        tmp = self.folder / "tmp"
        tmp.mkdir(exist_ok=True)
        output = self.folder / ("agent%d.log" % len(self.agents))
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(tmp),
            "PYTHON_EXEC": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "SYNCLINE_RUNFILES": os.path.dirname(os.getcwd()),
            "OMP_NUM_THREADS": "1",
        }
        env.update([self.mark.split("=")])
        env.update(variables)
        command = [NETWORK, "--on", hosts()[host][0], LAUNCHER, *self.options, *self.endpoint]
        command += ["--rdzv-conf", self.conf, "--rdzv-id", "elastic"]
        command += ["--max-restarts", self.max_restarts, *more, *program]
        if program == (TRAINING,):
            command += ["--steps", self.steps, "--step-time", self.step_time, "--limit", 2400]
            command += ["--checkpoint", self.folder / "checkpoint", "--checkpoint-every", 5]
            command += ["--log-steps", self.folder / "steps"]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=env,
                cwd=str(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        self.agents.append(Agent(host, process, output))
        return self.agents[-1]

    def made(self):
        """The steps so far: {"t", "step", "round", "rank", "world"}, in the order of writing."""
        path = self.folder / "steps"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def tell(self):
        """All that was said, for a failed test."""
        said = ["--- host %d\n%s" % (agent.host, agent.said()) for agent in self.agents]
        return "\n".join([*said, "the last steps: %s" % self.made()[-6:]])

    def await_step(self, world, after=-1.0, count=3):
        """Waits until `count` steps have been made with `world` ranks after time `after`."""

        def enough():
            steps = {s["step"] for s in self.made() if s["world"] == world and s["t"] > after}
            return len(steps) >= count

        wait_until(enough, lambda: "%d steps with %d ranks\n%s" % (count, world, self.tell()))

    def first_step_after(self, moment, world):
        """Seconds from `moment` to the first step that all `world` ranks of a later round made."""
        times = {}
        before = max((s["round"] for s in self.made() if s["t"] <= moment), default=-1)
        for step in self.made():
            if step["world"] == world and step["round"] > before:
                times.setdefault((step["round"], step["step"]), []).append(step["t"])
        return min(max(t) for t in times.values() if len(t) == world) - moment

    def check_steps(self):
        """Each round has ranks 0 to world - 1, one world size, and makes its steps in order."""
        rounds = {}
        for step in self.made():
            rounds.setdefault(step["round"], []).append(step)
        assert rounds, self.tell()
        for steps in rounds.values():
            worlds = {step["world"] for step in steps}
            assert len(worlds) == 1, worlds
            assert {step["rank"] for step in steps} <= set(range(worlds.pop()))
            for rank in {step["rank"] for step in steps}:
                own = [step["step"] for step in steps if step["rank"] == rank]
                assert own == list(range(own[0], own[0] + len(own))), (rank, own)
        last = max(rounds)
        assert max(step["step"] for step in rounds[last]) == self.steps - 1, self.tell()

    def finish(self, agents):
        """All of them succeed, after all steps."""
        codes = [agent.finish() for agent in agents]
        assert codes == [0] * len(codes), self.tell()
        self.check_steps()

    def left(self):
        """Living processes of this job."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in pathlib.Path("/proc", pid, "environ").read_bytes():
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def check_nothing_is_left(self):
        for agent in self.agents:
            agent.finish()
        wait_until(lambda: not self.left(), lambda: "processes are left: %s" % self.left())
        # A launcher that was killed leaves its folder to its guardian.
        wait_until(lambda: not os.listdir(self.folder / "tmp"), "temporary files are left")
        wait_until(lambda: set(os.listdir("/dev/shm")) <= self.shm, "shared memory is left")

    def close(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
