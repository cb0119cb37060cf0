"""Runs every example through the launcher, as its users do."""

import contextlib
import json
import os
import pathlib
import re
import signal
import time
import xml.etree.ElementTree

import pytest
from running import EXAMPLES, launched, run


def train(ranks, folder, *arguments):
    """Trains and returns what fashion_mnist.py found."""
    options = ["--picture", folder / "loss.svg", "--result", folder / "result.json", *arguments]
    run(f"--nproc-per-node={ranks}", EXAMPLES / "fashion_mnist.py", *options, cwd=folder)
    result = json.loads((folder / "result.json").read_text())
    picture = xml.etree.ElementTree.parse(folder / "loss.svg")
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == len(result["losses"])
    return result


def test_fashion_mnist_reaches_87_percent_in_five_epochs(tmp_path):
    result = train(2, tmp_path)
    assert result["ranks"] == 2
    assert len(result["losses"]) == 5
    assert result["accuracy"] >= 0.87


def test_the_number_of_ranks_does_not_change_what_is_learned(tmp_path):
    """So one rank and three reach what two do."""
    options = ["--epochs=2", "--limit=12000"]
    results = {}
    for ranks in (1, 2, 3):
        folder = tmp_path / f"ranks{ranks}"
        folder.mkdir()
        results[ranks] = train(ranks, folder, *options)
        assert results[ranks]["ranks"] == ranks
    for ranks in (2, 3):
        assert results[ranks]["losses"] == pytest.approx(results[1]["losses"], rel=1e-4)
        assert results[ranks]["accuracy"] == pytest.approx(results[1]["accuracy"], abs=0.005)


WITHOUT_A_FRAMEWORK = {
    "cpp": ["--no-python", EXAMPLES / "fashion_mnist"],
    "java": ["--no-python", EXAMPLES / "fashion_mnist_java"],
}


@pytest.mark.parametrize("language", WITHOUT_A_FRAMEWORK)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_perceptron_trains_without_any_framework(language, ranks, tmp_path):
    command = [f"--nproc-per-node={ranks}", *WITHOUT_A_FRAMEWORK[language]]
    output = run(*command, "--epochs=2", "--limit=12000", cwd=tmp_path)
    epochs = re.findall(r"epoch (\d): loss ([0-9.]+), test accuracy ([0-9.]+)%", output)
    assert [number for number, _, _ in epochs] == ["1", "2"], output
    losses = [float(loss) for _, loss, _ in epochs]
    assert losses[1] < losses[0] < 1.2
    assert float(epochs[1][2]) >= 78
    assert f"weights bitwise equal on all {ranks} ranks" in output


def workers_of(job):
    """The process ids of the launcher's workers, by rank."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = path.read_bytes().split(b"\0")
            status = (path.parent / "status").read_text()
            if f"\nPPid:\t{job.pid}\n" in status:
                rank = next((v[5:] for v in variables if v.startswith(b"RANK=")), None)
                if rank is not None:
                    found[int(rank)] = int(path.parent.name)
    return found


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_first_epoch(job):
    for line in job.stdout:
        if re.search(r"epoch 1: loss", line):
            return
    pytest.fail("training ended before its first epoch")


def kill_rank_1(job):
    """Kills rank 1 in mid-training. Returns the process ids of all workers before."""
    wait_for_first_epoch(job)
    pids = workers_of(job)
    assert set(pids) == {0, 1, 2}
    os.kill(pids[1], signal.SIGKILL)
    return pids


ENDLESS = ["--epochs", "1000", "--limit", "6000"]
THREE = "--nproc-per-node=3"


def test_a_killed_worker_is_named_and_the_others_are_gone_soon(tmp_path):
    with launched(THREE, EXAMPLES / "fashion_mnist.py", *ENDLESS, cwd=tmp_path) as job:
        pids = kill_rank_1(job)
        deadline = time.monotonic() + 10  # A busy machine takes its time.
        while any(map(is_alive, pids.values())) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(is_alive, pids.values()))
        output, _ = job.communicate(timeout=20)
    assert job.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in output
    assert re.search(r"rank\s*:?\s*1\b", output) and str(pids[1]) in output


def test_with_a_restart_training_starts_anew_and_finishes(tmp_path):
    options = ["--epochs", "15", "--limit", "12000", "--result", tmp_path / "result.json"]
    script = EXAMPLES / "fashion_mnist.py"
    with launched("--max-restarts=1", THREE, script, *options, cwd=tmp_path) as job:
        kill_rank_1(job)
        output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    assert len(json.loads((tmp_path / "result.json").read_text())["losses"]) == 15


def test_hello_in_python(tmp_path):
    output = run(THREE, EXAMPLES / "hello.py", cwd=tmp_path)
    for rank in range(3):
        assert f"rank {rank} of 3: [3. 3. 3. 3.]" in output


def test_hello_in_cpp(tmp_path):
    output = run(THREE, "--no-python", EXAMPLES / "hello", cwd=tmp_path)
    for rank in range(3):
        assert f"rank {rank} of 3: 3 3 3 3" in output


TOURS = {
    "python": [EXAMPLES / "tour.py"],
    "cpp": ["--no-python", EXAMPLES / "tour"],
    "java": ["--no-python", EXAMPLES / "tour_java"],
}


@pytest.mark.parametrize("language", TOURS)
def test_the_tour_says_the_same_in_every_language(language, tmp_path):
    output = run(THREE, *TOURS[language], cwd=tmp_path)
    for rank in range(3):
        assert f"rank {rank}: the sum is 3\n" in output
        assert f"rank {rank}: the shared sum is 3\n" in output
        assert f"rank {rank}: gathered 0 1 2\n" in output
        assert f"rank {rank}: the largest of my half is {[2, 1, 2][rank]}\n" in output
        assert re.search(rf"rank {rank}: refused: .*not 3", output)
        mismatch = re.search(rf"rank {rank}: mismatch: (.*)", output)
        assert mismatch, output
        assert "2 elements" in mismatch[1] and "3 elements" in mismatch[1]
