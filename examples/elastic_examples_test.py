"""The elastic example through the launcher: killed, stopped, and gone on with."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
RUN = ROOT / "launch/run"
SCRIPT = ROOT / "examples/elastic_fashion_mnist.py"
LIMIT = 120  # Seconds; far more than is needed.


class Job:
    """Runs of the example that share a checkpoint, a log of steps and a result."""

    def __init__(self, folder):
        self._folder = folder
        self._result = folder / "result.json"
        self._log = folder / "steps.jsonl"

    def start(self, ranks, *options, restarts=0):
        launcher = [RUN, "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        script = [SCRIPT, "--checkpoint", self._folder / "state", "--limit", 2400]
        script += ["--log-steps", self._log, "--result", self._result, *options]
        return subprocess.Popen(
            [str(word) for word in launcher + script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
        )

    def run(self, ranks, *options, expect=0, **launcher):
        process = self.start(ranks, *options, **launcher)
        return self.finish(process, expect)

    def finish(self, process, expect=0):
        try:
            output, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        assert process.returncode == expect, output
        return output

    def steps(self):
        """The lines of the log."""
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def steps_of(self, rank, round=0):
        return [s["step"] for s in self.steps() if (s["rank"], s["round"]) == (rank, round)]

    def result(self):
        return json.loads(self._result.read_text())


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_make_all_steps_and_learn(job, ranks):
    output = job.run(ranks, "--steps", 60)
    assert f"round 0: {ranks} ranks, from step 0" in output
    for rank in range(ranks):
        assert job.steps_of(rank) == list(range(60))
    assert {s["world"] for s in job.steps()} == {ranks}
    times = [s["t"] for s in job.steps() if s["rank"] == 0]
    assert times == sorted(times) and abs(times[-1] - time.time()) < LIMIT
    result = job.result()
    assert (result["ranks"], result["steps"], result["round"]) == (ranks, 60, 0)
    assert result["accuracy"] > 0.7


def test_after_a_failure_it_goes_on_from_the_last_checkpoint(job, tmp_path):
    output = job.run(2, "--steps", 40, "--fail-at", "25:1", restarts=1)
    assert "round 1: 2 ranks, from step 20" in output
    for rank in range(2):
        assert job.steps_of(rank, 0) == list(range(25))
        assert job.steps_of(rank, 1) == list(range(20, 40))
    undisturbed = Job(tmp_path / "undisturbed")
    (tmp_path / "undisturbed").mkdir()
    undisturbed.run(2, "--steps", 40)
    assert job.result()["accuracy"] == undisturbed.result()["accuracy"]


def test_with_another_number_of_ranks_it_goes_on_too(job):
    job.run(3, "--steps", 20)
    assert "round 0: 2 ranks, from step 20" in job.run(2, "--steps", 50)
    assert job.result()["steps"] == 50
    assert job.result()["accuracy"] > 0.7


def test_told_to_stop_all_ranks_stop_at_the_same_step_and_save(job):
    process = job.start(3, "--steps", 1_000_000, "--step-time", 0.002, "--checkpoint-every", 10**9)
    deadline = time.monotonic() + LIMIT
    while len(job.steps()) < 30:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output = job.finish(process, expect=128 + signal.SIGTERM)
    lasts = {job.steps_of(rank)[-1] for rank in range(3)}
    assert len(lasts) == 1, lasts
    (last,) = lasts
    assert f"stopped before step {last + 1}, as all ranks agreed" in output
    assert f"from step {last + 1}\n" in job.run(2, "--steps", last + 5)
    assert job.result()["steps"] == last + 5
