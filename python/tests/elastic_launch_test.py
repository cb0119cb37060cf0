"""Jobs that a program starts with elastic_launch, as users of torch.distributed.launcher do."""

import importlib.machinery
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
import syncline as dist
from syncline.elastic import (
    ChildFailedError,
    DefaultLogsSpecs,
    LaunchConfig,
    LocalElasticAgent,
    Std,
    WorkerSpec,
    agent,
    by_value,
    elastic_launch,
    events,
    launcher,
    run,
)
from syncline.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)

LIMIT = 120


def config(workers=2, **fields):
    fields = {"max_restarts": 0, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", **fields}
    return LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=workers, **fields)


def test_results_come_back_by_rank():
    def sum_of_ranks(start):
        dist.init_process_group()
        total = dist.empty_shared((1,), "int64")
        total[0] = start + dist.get_rank()
        dist.all_reduce(total)
        return int(total[0]), os.environ["ROLE_NAME"]

    results = elastic_launch(config(3, role="trainer"), sum_of_ranks)(10)
    assert results == {rank: (33, "trainer") for rank in range(3)}


def test_a_program_has_no_results_and_its_own_python_path(monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    shown = "import os; print(os.environ['RANK'], os.environ['PYTHONPATH'])"
    fields = {"signals_to_handle": "term, USR1,SIGINT,TERM"}
    done = elastic_launch(config(**fields), sys.executable)("-c", shown)
    assert done == {0: None, 1: None}
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank0]: 0 /mine", "[rank1]: 1 /mine"]


def test_a_function_has_the_python_path_of_its_program_and_may_exit(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")

    def end():
        rank = int(os.environ["RANK"])
        if rank == 0:
            sys.exit()
        if rank == 1:
            os._exit(0)
        return os.environ["PYTHONPATH"]

    assert elastic_launch(config(3), end)() == {0: None, 1: None, 2: "/mine"}


UNGUARDED = """
from syncline.elastic import ChildFailedError, run

def work():
    return 1

try:
    run(work)
except ChildFailedError as error:
    print(error.get_first_failure()[1].message["message"])
"""


def test_a_program_without_a_guard_does_not_launch_itself_for_ever(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert "RuntimeError: work would be launched by each worker again" in done.stdout, done.stderr
    assert 'if __name__ == "__main__":' in done.stdout


@pytest.mark.parametrize("name", ["SIGFOO", "TERM,KILL", "sigstop"])
def test_signals_that_cannot_be_handled_are_errors_before_anything_runs(name):
    with pytest.raises(ValueError, match="signals_to_handle: .*(FOO|KILL|STOP)"):
        elastic_launch(config(signals_to_handle=name), sys.executable)("-c", "")


def test_an_error_while_it_launches_leaves_neither_a_process_nor_a_handler(monkeypatch):
    started = []

    class Launcher(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Launcher)
    monkeypatch.setattr(launcher._Relay, "begin", fail)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        elastic_launch(config(1), time.sleep)(LIMIT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert len(started) == 1 and started[0].returncode is not None


def test_signals_that_come_before_the_launcher_are_passed_on_once(monkeypatch):
    class Launcher:
        def __init__(self):
            self.got = []

        def send_signal(self, number):
            self.got.append(number)

    fake = Launcher()
    with launcher._PassedSignals([signal.SIGUSR1]) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.pass_to(fake)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert fake.got == [signal.SIGUSR1] * 2
    # One that a library in C has installed could not be put back.
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: pytest.fail("replaced"))
        with launcher._PassedSignals([signal.SIGUSR1]):
            pass


def test_a_progress_bar_and_a_file_that_fails_do_not_hold_the_launcher_up():
    class Breaks(io.StringIO):
        def write(self, text):
            if text == "full\n":
                raise RuntimeError("no more")
            return super().write(text)

    file = Breaks()
    with launcher._Relay(file, 1) as relay:
        os.write(relay.target, b"full\n10%\r50%\r100%\nlast\n")
        relay.begin()
    assert file.getvalue() == "10%\r50%\r100%\nlast\n"
    assert relay.tail == ["full", "100%", "last"]


def test_a_signal_without_a_name_is_told_by_its_number():
    job = launcher._Job(config(1), "program", [], "/nowhere")
    about = {"rank": 0, "local_rank": 0, "pid": 7, "exit_code": None, "time": 5.0}
    job._take({"event": "worker_failed", "signal": "signal 50", **about})
    assert job._process_failures(job._failures)[0].exitcode == -50


def test_a_failure_is_told_with_its_traceback():
    def fail(rank):
        if int(os.environ["RANK"]) == rank:
            raise ValueError("the loss is infinite")
        time.sleep(LIMIT)

    with pytest.raises(ChildFailedError, match="(?s)fail FAILED.*rank      : 1 .*infinite") as seen:
        elastic_launch(config(), fail)(1)
    rank, failure = seen.value.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert failure.message["message"] == "ValueError: the loss is infinite"
    assert "in fail" in failure.text()
    assert os.path.isfile(failure.error_file)


def test_a_signal_that_killed_is_told():
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildFailedError, match="SIGKILL") as seen:
        elastic_launch(config(1), die)()
    assert seen.value.failures[0].exitcode == -signal.SIGKILL


def test_the_results_are_those_of_the_last_round(tmp_path):
    marker = tmp_path / "failed"

    def fail_once():
        if os.environ["RANK"] == "1" and not marker.exists():
            marker.touch()
            sys.exit(3)
        return dist.elastic.restart_count()

    assert elastic_launch(config(max_restarts=1), fail_once)() == {0: 1, 1: 1}


def test_what_cannot_travel_is_an_error_before_anything_runs():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="(?s)cannot be given to workers.*lock"):
        elastic_launch(config(), lambda: lock)()

    def lock_of_a_worker():
        return threading.Lock()

    with pytest.raises(ChildFailedError, match="rank 0: what .*lock, cannot be pickled"):
        elastic_launch(config(1), lock_of_a_worker)()


def test_a_mistake_in_the_options_is_told():
    with pytest.raises(RuntimeError, match="(?s)exit code 2.*--rdzv-conf"):
        elastic_launch(config(rdzv_endpoint="localhost:1", rdzv_configs={"wrong": 1}), print)()
    with pytest.raises(ValueError, match="no rendezvous 'zeus' is registered"):
        elastic_launch(config(rdzv_backend="zeus"), print)()


def test_logs_go_where_the_specs_say(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.from_str("0:3,1:1"))
    elastic_launch(config(logs_specs=specs, run_id="job7"), _print_rank)()
    logs = tmp_path / "job7" / "attempt_0"
    assert [(logs / rank / "stdout.log").read_text() for rank in "01"] == ["0\n", "1\n"]


def _print_rank():
    print(os.environ["RANK"])


def test_events_go_to_a_handler_of_python():
    stream = io.StringIO()
    events.register_handler("mine", logging.StreamHandler(stream))
    elastic_launch(config(1, event_log_handler="mine"), _print_rank)()
    seen = [events.Event.deserialize(line) for line in stream.getvalue().splitlines()]
    names = [event.name for event in seen]
    assert names[0] == "launcher_started" and "workers_started" in names
    assert all(event.source is events.EventSource.AGENT for event in seen)


def test_a_handler_of_python_brings_the_nodes_together():
    class Zeus(RendezvousHandler):
        def __init__(self, parameters):
            self.parameters = parameters

        def get_backend(self):
            return "olympus"

        def next_rendezvous(self):
            info = RendezvousStoreInfo.build(0, dist.HashStore(), "localhost")
            return RendezvousInfo(dist.HashStore(), 0, 1, info)

        def is_closed(self):
            return False

        def set_closed(self):
            pass

        def num_nodes_waiting(self):
            return 0

        def get_run_id(self):
            return self.parameters.run_id

        def shutdown(self):
            closed.append(self.parameters.get_as_int("level"))
            return True

    closed = []
    rendezvous_handler_registry.register("olympus", Zeus)
    fields = {"rdzv_backend": "olympus", "rdzv_configs": {"level": "3"}}
    assert elastic_launch(config(1, **fields), int)("5") == {0: 5}
    assert closed == [3]


def launched_at_once(*configs, function=None):
    """What each node of a job returns, or how it fails; the nodes are threads."""
    results = [None] * len(configs)

    def node(number):
        try:
            results[number] = elastic_launch(configs[number], function or _rank_and_size)()
        except ChildFailedError as error:
            results[number] = error

    threads = [threading.Thread(target=node, args=(n,)) for n in range(len(configs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    return results


def _rank_and_size():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def test_each_node_returns_its_own_ranks():
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    nodes = [
        LaunchConfig(
            2, 2, workers, run_id="job", rdzv_backend="c10d", rdzv_endpoint=endpoint, max_restarts=0
        )
        for workers in (1, 2)
    ]
    results = launched_at_once(*nodes)
    assert sorted(len(result) for result in results) == [1, 2]
    assert {**results[0], **results[1]} == {rank: (rank, 3) for rank in range(3)}


def test_a_failure_on_another_node_is_told_with_its_rank():
    def fail():
        if os.environ["RANK"] == "1":
            raise ValueError("the loss is infinite")
        time.sleep(LIMIT)

    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    fields = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "max_restarts": 0}
    nodes = [LaunchConfig(2, 2, 1, run_id="job", **fields) for _ in range(2)]
    errors = launched_at_once(*nodes, function=fail)
    stopped, failed = sorted((error.get_first_failure() for error in errors), key=lambda f: f[0])
    assert (failed[0], failed[1].exitcode) == (1, 1)
    assert (stopped[0], stopped[1].exitcode) == (0, -signal.SIGTERM)
    assert "because of a failure on another node: rank 1 (pid" in stopped[1].text()


def test_a_handler_of_python_gives_nodes_their_ranks():
    class Hera(RendezvousHandler):
        store = dist.HashStore()
        ranks = [0, 1]

        def __init__(self, parameters):
            pass

        def get_backend(self):
            return "hera"

        def next_rendezvous(self):
            rank = self.ranks.pop()
            store = dist.PrefixStore("nodes", self.store)
            info = RendezvousStoreInfo.build(rank, store, "127.0.0.1")
            return RendezvousInfo(store, rank, 2, info)

        def is_closed(self):
            return False

        def set_closed(self):
            pass

        def num_nodes_waiting(self):
            return 0

        def get_run_id(self):
            return "job"

        def shutdown(self):
            return True

    rendezvous_handler_registry.register("hera", Hera)
    nodes = [
        LaunchConfig(2, 2, 1, run_id="job", rdzv_backend="hera", max_restarts=0) for _ in range(2)
    ]
    results = launched_at_once(*nodes)
    assert sorted(results, key=min) == [{0: (0, 2)}, {1: (1, 2)}]


def test_an_agent_runs_what_its_spec_says():
    handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "id", 1, 1))
    spec = WorkerSpec("role", 2, handler, entrypoint=int, args=("7",), max_restarts=0)
    result = LocalElasticAgent(spec).run()
    assert (result.state, result.return_values) == (agent.WorkerState.SUCCEEDED, {0: 7, 1: 7})
    failing = WorkerSpec("role", 1, handler, entrypoint=int, args=("x",), max_restarts=0)
    result = LocalElasticAgent(failing).run()
    assert result.is_failed() and result.failures[0].exitcode == 1


# What a notebook or an interactive session does: there is no file of its functions.
SESSION = """
import dataclasses, json, math
from syncline.elastic import run

FACTOR = 3

@dataclasses.dataclass
class Point:
    x: int
    def doubled(self):
        return Point(2 * self.x)

class Further(Point):
    def doubled(self):
        return Further(super().doubled().x + helper(0))

def helper(n):
    return FACTOR if n == 0 else helper(n - 1)

def train(point, *, more=2):
    import os
    print("here is", os.environ["RANK"])
    return point.doubled(), math.floor(helper(5) + more + 0.5)

results = run(train, nprocs=2, args=(Further(4),))
print(json.dumps([[type(p).__name__, isinstance(p, Point), p.x, n] for p, n in results]))
"""


@pytest.mark.parametrize("by", ["argument", "stdin"])
def test_functions_and_classes_of_a_session_travel(by):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, *(["-c", SESSION] if by == "argument" else ["-"])],
        input=None if by == "argument" else SESSION,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    assert sorted(printed) == ["[rank0]: here is 0", "[rank1]: here is 1"]
    assert json.loads(last) == [["Further", True, 11, 5]] * 2


def test_what_workers_print_is_printed_where_print_goes(monkeypatch):
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    run(_print_rank, nprocs=2)
    assert sorted(cell.getvalue().splitlines()) == ["[rank0]: 0", "[rank1]: 1"]


def test_functions_that_call_each_other_stay_together():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    copy = by_value.loads(by_value.dumps(even))
    assert copy is not even
    assert [copy(n) for n in range(4)] == [True, False, True, False]
    assert by_value.loads(by_value.dumps(os.path.join)) is os.path.join


def test_modules_of_any_finder_travel_by_name_and_functions_of_none_by_value(monkeypatch):
    class Editable:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, None) if name == "mine" else None

    module = types.ModuleType("mine")
    exec("def f(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path, Editable])
    assert by_value.loads(by_value.dumps(module.f)) is module.f
    module.f.__module__ = None
    copy = by_value.loads(by_value.dumps(module.f))
    assert copy is not module.f and copy() == 1


STOPPED = """
import os, sys, time
from syncline.elastic import SignalException, elastic_launch, LaunchConfig

def wait():
    print("ready", os.getpid(), flush=True)
    time.sleep(100)

try:
    elastic_launch(LaunchConfig(1, 1, 1, rdzv_backend="c10d", max_restarts=0), wait)()
except SignalException as error:
    print("stopped by", error.sigval.name, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_with_its_program(number):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], env=environment, stdout=subprocess.PIPE, text=True
    ) as program:
        word, pid = program.stdout.readline().split()
        assert word == "ready"
        program.send_signal(number)
        rest = program.stdout.read()  # Until all of the job is gone.
        program.wait(LIMIT)
    assert rest == ("stopped by SIGTERM\n" if number == signal.SIGTERM else "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
