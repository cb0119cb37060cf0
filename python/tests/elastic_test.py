"""What a worker learns from its launcher, and reports to it."""

import json
import os
import subprocess
import sys
import time

import pytest
import syncline as dist
from syncline import elastic


@pytest.fixture
def error_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("SYNCLINE_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)


@elastic.record
def divide(a: float, b: float = 2) -> float:
    """A quotient."""
    return a / b


def test_a_recorded_function_is_what_it_was(error_file):
    assert divide(6) == 3 and divide(6, b=3) == 2
    assert (divide.__name__, divide.__doc__) == ("divide", "A quotient.")
    assert not error_file.exists()


def test_an_exception_is_recorded_and_raised(error_file):
    before = time.time()
    with pytest.raises(ZeroDivisionError):
        divide(1, 0)
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ZeroDivisionError: division by zero"
    info = message["extraInfo"]
    assert "in divide\n    return a / b" in info["py_callstack"]
    assert int(before) <= int(info["timestamp"]) <= time.time()
    assert info["syncline_peer_error"] is False


def test_an_error_of_a_peer_is_recorded_as_such(error_file):
    @elastic.record
    def fail():
        raise dist.DistBackendError("rank 1 has left")

    with pytest.raises(dist.DistBackendError):
        fail()
    info = json.loads(error_file.read_text())["message"]["extraInfo"]
    assert info["syncline_peer_error"] is True


def test_only_the_first_exception_is_recorded(error_file):
    for b in (0, "text"):
        with pytest.raises((ZeroDivisionError, TypeError)):
            divide(1, b)
    assert "ZeroDivisionError" in error_file.read_text()


def test_leaving_is_no_error(error_file):
    @elastic.record
    def leave():
        sys.exit(3)

    with pytest.raises(SystemExit):
        leave()
    assert not error_file.exists()


def test_without_a_launcher_an_exception_is_only_raised():
    with pytest.raises(ZeroDivisionError):
        divide(1, 0)


def test_without_a_launcher_there_is_one_round():
    assert (elastic.round(), elastic.restart_count(), elastic.max_restarts()) == (0, 0, 0)
    assert elastic.run_id() == ""


def test_under_torchrun_rounds_are_restarts(monkeypatch):
    facts = {"RESTART_COUNT": "2", "MAX_RESTARTS": "5", "RUN_ID": "job"}
    for name, value in facts.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    assert (elastic.round(), elastic.restart_count(), elastic.max_restarts()) == (2, 2, 5)
    assert elastic.run_id() == "job"


def test_under_our_launcher_its_own_variables_count(monkeypatch):
    facts = {"ROUND": "4", "RESTART_COUNT": "2", "MAX_RESTARTS": "5", "RUN_ID": "job"}
    for name, value in facts.items():
        monkeypatch.setenv(f"SYNCLINE_{name}", value)
        monkeypatch.setenv(f"TORCHELASTIC_{name}", "9")
    assert (elastic.round(), elastic.restart_count(), elastic.max_restarts()) == (4, 2, 5)
    assert elastic.run_id() == "job"


def test_what_is_not_a_number_is_told(monkeypatch):
    monkeypatch.setenv("SYNCLINE_ROUND", "first")
    with pytest.raises(ValueError, match="SYNCLINE_ROUND.*'first'"):
        elastic.round()


def test_a_heartbeat_touches_the_file_that_the_environment_names(tmp_path):
    path = tmp_path / "heartbeat"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from syncline import elastic; elastic.heartbeat()"]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert not path.exists()
    environment["SYNCLINE_HEARTBEAT_FILE"] = str(path)
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert path.read_bytes() == b""
