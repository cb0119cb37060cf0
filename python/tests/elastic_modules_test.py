"""Events, metrics, timers, rendezvous and errors of syncline.elastic, as users have them."""

import io
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from syncline.elastic import events, metrics, rendezvous, timer
from syncline.elastic.multiprocessing import Std, to_map
from syncline.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record

LIMIT = 60


def test_an_event_is_a_line_of_json_for_its_handler():
    stream = io.StringIO()
    events.register_handler("test", logging.StreamHandler(stream))
    event = events.Event("epoch", events.EventSource.WORKER, 5, {"loss": 0.5, "best": None})
    events.record(event, "test")
    events.record(event)
    assert events.Event.deserialize(stream.getvalue()) == event
    assert json.loads(stream.getvalue())["source"] == "WORKER"
    with pytest.raises(ValueError, match="no event handler 'x'; there are null, console"):
        events.record(event, "x")


def test_an_event_of_the_rendezvous_names_its_caller():
    stream = io.StringIO()
    events.register_handler("dynamic_rendezvous", logging.StreamHandler(stream))
    try:
        events.construct_and_record_rdzv_event("id", "here", events.NodeState.RUNNING, rank=2)
    finally:
        events.register_handler("dynamic_rendezvous", logging.NullHandler())
    seen = events.RdzvEvent.deserialize(stream.getvalue())
    assert seen.name == ("elastic_modules_test.py:test_an_event_of_the_rendezvous_names_its_caller")
    assert (seen.run_id, seen.rank, seen.pid) == ("id", 2, os.getpid())


class Kept(metrics.MetricHandler):
    def __init__(self):
        self.data = []

    def emit(self, metric_data):
        self.data.append(metric_data)


def test_values_go_to_the_handler_of_their_group():
    own, others = Kept(), Kept()
    metrics.configure(others)
    metrics.configure(own, "own")
    try:
        metrics.put_metric("a", 1, "own")
        metrics.put_metric("b", 2)

        @metrics.prof(group="own")
        def work(fail):
            if fail:
                raise ValueError

        work(False)
        with pytest.raises(ValueError):
            work(True)
    finally:
        metrics.configure(metrics.NullMetricHandler())
    assert [(d.group_name, d.name, d.value) for d in others.data] == [("torchelastic", "b", 2)]
    names = [d.name.rsplit(".work", 1)[-1].lstrip(".") for d in own.data]
    assert names == ["a", "success", "duration.ms", "failure", "duration.ms"]


LATE = """
import sys, time
from syncline.elastic import timer
timer.configure(timer.FileTimerClient(sys.argv[1]))
with timer.expires(after=float(sys.argv[2]), scope="step"):
    time.sleep(0.05)
with timer.expires(after=float(sys.argv[2]), scope="late"):
    print("ready", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.mark.parametrize("stays, code", [(LIMIT, -signal.SIGKILL), (0, 0)])
def test_who_does_not_leave_a_block_in_time_is_killed(tmp_path, stays, code):
    heard = []
    server = timer.FileTimerServer(
        str(tmp_path / "pipe"), "job", 0.1, log_event=lambda name, request: heard.append(name)
    )
    server.start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    after = "0.3" if stays else str(LIMIT)
    late = [sys.executable, "-c", LATE, str(tmp_path / "pipe"), after, str(stays)]
    assert subprocess.run(late, env=environment, timeout=LIMIT).returncode == code
    server.stop()
    assert ("kill worker process" in heard) == (code != 0)
    assert not (tmp_path / "pipe").exists()


def test_no_request_and_no_error_ends_a_timer_server(tmp_path, monkeypatch):
    class Closed:
        def write(self, _):
            raise BrokenPipeError

    def log_event(name, request):
        raise RuntimeError("a mistake of the user's")

    monkeypatch.setattr(timer, "_PAUSE", 0.01)
    monkeypatch.setattr(sys, "stderr", Closed())
    pipe = str(tmp_path / "pipe")
    server = timer.FileTimerServer(pipe, "job", 0.1)
    server._log_event = log_event
    timer._Watchdog.start(server)
    # The first three would reach this process too; the others could end the server. Processes that
    # do not handle SIGURG ignore it.
    reached = []
    before = signal.signal(signal.SIGURG, lambda *_: reached.append(True))
    for pid in (0, -1, -os.getpgrp(), 1 << 70, "Infinity"):
        bad = {"pid": 0, "scope_id": "bad", "expiration_time": 1, "signal": int(signal.SIGURG)}
        with open(pipe, "w") as file:
            file.write(json.dumps(bad).replace("0", str(pid), 1) + "\n")
    with open(pipe, "w") as file:
        file.write("[" * 2000 + "\n")
    for _ in range(2):  # The first has raised after its end.
        with subprocess.Popen(["sleep", str(LIMIT)]) as late:
            line = timer.FileTimerRequest(late.pid, "s", time.time(), signal.SIGKILL).to_json()
            with open(pipe, "w") as file:
                file.write(line + "\n")
            assert late.wait(LIMIT) == -signal.SIGKILL
    server._log_event = lambda name, request: None
    server.stop()
    signal.signal(signal.SIGURG, before)
    assert not reached


def test_a_queue_cannot_kill_a_whole_group():
    server = timer.LocalTimerServer(multiprocessing.get_context("spawn").Queue())
    server.register_timers([timer.TimerRequest(pid, "s", 1) for pid in (0, -1, None)])
    assert not server.get_expired_timers(time.time())


def test_without_a_server_a_countdown_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(timer, "_client", None)
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)
    with pytest.raises(RuntimeError, match="call configure"), timer.expires(1):
        pass
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "none"))
    with pytest.raises(BrokenPipeError, match="no timer server reads"), timer.expires(1):
        pass


def test_a_queue_carries_countdowns_too():
    queue = multiprocessing.get_context("spawn").Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.05)
    with subprocess.Popen(["sleep", str(LIMIT)]) as late:
        queue.put(timer.TimerRequest(late.pid, "scope", time.time() + 0.1))
        client = timer.LocalTimerClient(queue)
        with timer.expires(LIMIT, "mine", client):
            server.start()
            assert late.wait(LIMIT) == -signal.SIGKILL
    server.stop()


def test_a_registry_says_what_there_is():
    parameters = rendezvous.RendezvousParameters("c10d", "a:1", "id", 1, 2, on="Yes", n="3")
    assert (parameters.get_as_bool("on"), parameters.get_as_int("n")) == (True, 3)
    assert parameters.get_as_int("missing", 7) == 7
    with pytest.raises(ValueError, match="n='3' is neither"):
        parameters.get_as_bool("n")
    registry = rendezvous.RendezvousHandlerRegistry()
    registry.register("c10d", rendezvous.LauncherRendezvous)
    registry.register("c10d", rendezvous.LauncherRendezvous)
    with pytest.raises(ValueError, match="registered already"):
        registry.register("c10d", print)
    handler = registry.create_handler(parameters)
    assert (handler.get_backend(), handler.get_run_id()) == ("c10d", "id")
    with pytest.raises(NotImplementedError, match="the launcher's own"):
        handler.next_rendezvous()
    with pytest.raises(ValueError, match="less than min_nodes"):
        rendezvous.RendezvousParameters("c10d", "", "", 2, 1)


def test_streams_are_spelled_as_torchruns():
    assert Std.from_str("3") is Std.ALL
    assert Std.from_str("0:1,12:2") == {0: Std.OUT, 12: Std.ERR}
    assert to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}
    with pytest.raises(ValueError, match="which streams"):
        Std.from_str("4")


def test_a_launcher_passes_on_what_its_worker_has_recorded(tmp_path, monkeypatch):
    theirs, mine = tmp_path / "theirs.json", tmp_path / "mine.json"
    recorded = {"message": {"message": "boom", "extraInfo": {"timestamp": "5"}}}
    theirs.write_text(json.dumps(recorded))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(mine))

    @record
    def main(code):
        if code is not None:
            sys.exit(code)
        raise ChildFailedError("trainer", {3: ProcessFailure(1, 7, -9, str(theirs))})

    assert main(0) is None
    with pytest.raises(SystemExit):
        main(4)
    with pytest.raises(ChildFailedError, match="(?s)trainer FAILED.*rank      : 3.*SIGKILL.*boom"):
        main(None)
    assert json.loads(mine.read_text()) == recorded
