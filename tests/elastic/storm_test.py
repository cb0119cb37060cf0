"""A job survives a storm: workers and launchers are killed, stopped and asked to end, at random.

In turns, something happens to a random process; then all launchers that live, three in the end,
must get their workers into one round with the right ranks. A storm can be repeated with --seed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import cluster

NODES = 3
WORKERS = 2  # Of each node.
WORKER = os.path.abspath("tests/elastic/storm_worker.py")
TURNS = 10  # Of one job: longer ones would wait for --max-restarts' back-off most of the time.
LISTENING = "0A"  # As /proc/net/tcp has it.


def pytest_generate_tests(metafunc):
    turns = metafunc.config.getoption("rounds")
    seed = metafunc.config.getoption("seed")
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    jobs = [(seed + i, min(TURNS, turns - TURNS * i)) for i in range((turns + TURNS - 1) // TURNS)]
    metafunc.parametrize("seed, turns", jobs)


def listeners(door):
    """The local addresses on which something listens on that host."""
    command = [cluster.NETWORK, "--on", door, "/bin/cat", "/proc/net/tcp", "/proc/net/tcp6"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return [words[1] for words in fields if len(words) > 3 and words[3] == LISTENING]


class Storm:
    """A job under way, and what can happen to it."""

    def __init__(self, job, seed):
        self.job = job
        self.random = random.Random(seed)
        self.log = job.folder / "workers"
        self.end = job.folder / "end"
        self.round = -1  # The last one that all had in common.
        job.options = ["--nnodes", "2:%d" % NODES, "--nproc-per-node", WORKERS]
        job.options += ["--health-timeout", 2]
        job.conf = "last_call_timeout=1,join_timeout=60,keep_alive_interval=0.2"
        job.max_restarts = 1000
        self.agents = [self.launch(host) for host in range(NODES)]
        self.await_round(self.agents)

    def launch(self, host):
        program = ("--no-python", sys.executable, "-S", "-E", WORKER, self.log, self.end)
        return self.job.start(host, program=program)

    def workers(self):
        """What all workers of all rounds have said, in that order."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def common_round(self, agents):
        """The round that all workers of `agents`, and no others, are in; None if there is none."""
        world = WORKERS * len(agents)
        last = self.workers()[-world:]
        if {w["rank"] for w in last} != set(range(world)):
            return None
        if {(w["round"], w["world"]) for w in last} != {(last[0]["round"], world)}:
            return None
        said = {w["pid"]: w for w in last}
        for agent in agents:
            own = [said.get(pid) for pid in agent.workers()]
            if len(own) != WORKERS or None in own or len({w["node"] for w in own}) != 1:
                return None
            assert {w["rank"] // WORKERS for w in own} == {own[0]["node"]}, own
        return last[0]["round"]

    def await_round(self, agents, later=True):
        """Waits until they are in a round together, which is a new one if `later`."""

        def together():
            number = self.common_round(agents)
            if number is None or number < self.round + int(later):
                return False
            self.round = number
            return True

        cluster.wait_until(together, self.tell)

    def tell(self):
        lines = [json.dumps(worker) for worker in self.workers()[-12:]]
        hosts = [agent.host for agent in self.agents]
        text = "a round of hosts %s after round %d; the last workers:" % (hosts, self.round)
        return "\n".join([text, *lines, self.job.tell()])

    def holder(self):
        """The launcher that holds the store: all have said so, unless it is where it began."""
        lines = self.agents[0].said().splitlines()
        addresses = [text.split()[-1] for text in lines if "the rendezvous goes on at" in text]
        host = 0
        if addresses:
            known = [address for _, address in cluster.hosts()]
            host = known.index(addresses[-1].rpartition(":")[0])
        return next(agent for agent in self.agents if agent.host == host)

    def any_worker(self):
        pids = self.random.choice(self.agents).workers()
        return self.random.choice(pids)

    def pause(self, pid, most):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.random.uniform(0.05, most))  # What happens, not what is waited for.
        finally:
            os.kill(pid, signal.SIGCONT)

    def a_worker_is_killed(self):
        os.kill(self.any_worker(), signal.SIGKILL)
        self.await_round(self.agents)

    def a_worker_is_told_to_end(self):
        os.kill(self.any_worker(), signal.SIGTERM)
        self.await_round(self.agents)

    def a_worker_hangs(self):
        os.kill(self.any_worker(), signal.SIGSTOP)
        self.await_round(self.agents)

    def a_worker_pauses(self):
        self.pause(self.any_worker(), most=1)
        self.await_round(self.agents, later=False)

    def a_launcher_is_killed(self):
        self.replace(self.random.choice(self.agents), signal.SIGKILL)

    def the_holder_of_the_store_is_killed(self):
        self.replace(self.holder(), signal.SIGKILL)

    def a_launcher_is_told_to_end(self):
        self.replace(self.random.choice(self.agents), signal.SIGTERM)

    def a_launcher_hangs(self):
        self.hang(self.random.choice(self.agents))

    def the_holder_of_the_store_hangs(self):
        self.hang(self.holder())

    def a_launcher_pauses(self):
        self.pause(self.random.choice(self.agents).process.pid, most=3)
        self.await_round(self.agents, later=False)

    def replace(self, agent, signum):
        """It ends by the signal, with all its workers, and another one comes: at once, or later."""
        workers = agent.workers()
        agent.kill(signum)
        code = agent.finish()
        assert code == (-signum if signum == signal.SIGKILL else 128 + signum), self.tell()
        self.agents.remove(agent)
        if self.random.random() < 0.5:
            self.await_round(self.agents)
        cluster.wait_until(
            lambda: not set(workers) & set(self.job.left()), "workers outlive their launcher"
        )
        self.agents.append(self.launch(agent.host))
        self.await_round(self.agents)

    def hang(self, agent):
        """It does nothing, until the others have gone on without it."""
        agent.kill(signal.SIGSTOP)
        try:
            self.await_round([other for other in self.agents if other is not agent])
        finally:
            agent.kill(signal.SIGCONT)
        self.await_round(self.agents)

    def rage(self, turns):
        """`turns` of what can happen, all equally often."""
        kinds = [
            self.a_worker_is_killed,
            self.a_worker_is_told_to_end,
            self.a_worker_hangs,
            self.a_worker_pauses,
            self.a_launcher_is_killed,
            self.the_holder_of_the_store_is_killed,
            self.a_launcher_is_told_to_end,
            self.a_launcher_hangs,
            self.the_holder_of_the_store_hangs,
            self.a_launcher_pauses,
        ]
        self.random.shuffle(kinds)
        for turn in range(turns):
            kind = kinds[turn % len(kinds)]
            start = time.monotonic()
            before = self.round
            print("%2d %s" % (turn, kind.__name__.replace("_", " ")), end="", flush=True)
            kind()
            took = time.monotonic() - start
            print(": %.1f s, round %d to %d" % (took, before, self.round), flush=True)

    def settle(self):
        """All launchers end: because the workers have succeeded, or because they are asked to."""
        if self.random.random() < 0.5:
            self.end.touch()
            expected = 0
        else:
            for agent in self.agents:
                agent.kill(signal.SIGTERM)
            expected = 128 + signal.SIGTERM
        codes = [agent.finish() for agent in self.agents]
        assert codes == [expected] * NODES, self.tell()

    def check_rounds(self):
        """No two workers ever had one rank in one round, nor different sizes of the world."""
        seen = {}
        for worker in self.workers():
            assert 0 <= worker["rank"] < worker["world"], worker
            other = seen.setdefault((worker["round"], worker["rank"]), worker)
            assert other is worker, "%s and %s\n%s" % (other, worker, self.tell())
            first = seen.setdefault(worker["round"], worker)
            assert first["world"] == worker["world"], "%s and %s" % (first, worker)


def test_all_living_workers_are_in_one_round_after_each_turn_and_nothing_is_left(job, seed, turns):
    print("--seed=%d --rounds=%d" % (seed, turns))
    storm = Storm(job, seed)
    storm.rage(turns)
    storm.settle()
    storm.check_rounds()
    job.check_nothing_is_left()
    doors = [door for door, _ in cluster.hosts()]
    cluster.wait_until(lambda: not any(map(listeners, doors)), "something still listens")
