"""Starts the launcher for real, and looks at what its event log, its metrics and status show."""

import json
import os
import re
import subprocess
import urllib.request

import pytest

from launch.job_for_tests import DEADLINE, LAUNCHER, RUN, wait_until

# The last rank stays away from the barrier until there is a file `go`; all ranks end with `end`.
LATE = """
import os, sys, time
import syncline as dist

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

# Who is slow to start is not what the others shall be seen to wait for.
open("there" + os.environ["RANK"], "w").close()
for rank in range(int(os.environ["WORLD_SIZE"])):
    wait_for("there%d" % rank)
dist.init_process_group(sys.argv[1])
dist.barrier()
if dist.get_rank() == dist.get_world_size() - 1:
    wait_for("go")
dist.barrier()
wait_for("end")
dist.destroy_process_group()
"""
SOON = {"SYNCLINE_STALL_WARNING": "1"}


@pytest.fixture
def late(launch, tmp_path):
    """late(backend, *options): launchers of a job whose last rank stays away, as above."""
    (tmp_path / "script.py").write_text(LATE)
    return lambda backend, *options: launch(
        *options, "--metrics-port=0", "script.py", backend, program=RUN, env=SOON
    )


def metrics_url(job):
    """Reads the job's stderr until the launcher says where its metrics are."""
    err = b""
    while not (found := re.search(rb"metrics are at (http://\S+)/metrics\n", err)):
        piece = os.read(job.process.stderr.fileno(), 65536)
        assert piece, err
        err += piece
    return found.group(1).decode()


def get(url):
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return answer.read().decode()


def stalls(url):
    """The stalls of the workers, by rank."""
    workers = json.loads(get(url + "/status"))["workers"]
    return {w["rank"]: w["stall"] for w in workers if w["stall"] is not None}


def value(url, metric):
    """Of one metric; None if it has none."""
    found = re.search(
        r"^syncline_launcher_%s (\S+)$" % re.escape(metric), get(url + "/metrics"), re.M
    )
    return float(found.group(1)) if found else None


def events(path, kind):
    lines = path.read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("backend", ["shm", "gloo", "auto"])
def test_a_rank_that_stays_away_is_shown_until_it_comes(late, tmp_path, backend):
    job = late(backend, "--nproc-per-node=3", "--event-log=events")
    url = metrics_url(job)
    wait_until(lambda: sorted(stalls(url)) == [0, 1], "two ranks that wait")
    for stall in stalls(url).values():
        assert stall["operation"].startswith("barrier #1")
        assert stall["missing"] == "2"
        assert stall["waited"] >= 1
    assert value(url, "workers_stalled") == 2
    assert value(url, 'worker_stall_seconds{rank="1",local_rank="1"}') >= 1
    assert value(url, 'worker_stall_seconds{rank="2",local_rank="2"}') is None

    # The wait doubles, and is reported again.
    wait_until(lambda: len(events(tmp_path / "events", "stall")) >= 2, "another warning")
    first, second, *_ = events(tmp_path / "events", "stall")
    assert first["rank"] == first["local_rank"] == 0
    assert first["pid"] in [
        worker["pid"]
        for started in events(tmp_path / "events", "workers_started")
        for worker in started["workers"]
    ]
    assert first["operation"].startswith("barrier #1")
    assert first["missing"] == "2"
    assert 1 <= first["waited"] < second["waited"]
    assert re.search(r"rank 0 .*has waited for .*missing: rank 2", first["text"])
    assert events(tmp_path / "events", "stall_ended") == []

    (tmp_path / "go").touch()
    wait_until(lambda: stalls(url) == {}, "nobody who waits")
    assert value(url, "workers_stalled") == 0
    assert value(url, 'worker_stall_seconds{rank="0",local_rank="0"}') is None
    wait_until(lambda: events(tmp_path / "events", "stall_ended"), "the end")
    ended = events(tmp_path / "events", "stall_ended")
    assert [(event["rank"], event["operation"]) for event in ended] == [(0, first["operation"])]
    assert ended[0]["waited"] >= second["waited"]
    warnings = value(url, "stall_warnings_total")
    assert warnings == len(events(tmp_path / "events", "stall"))

    (tmp_path / "end").touch()
    code, _, err = job.finish()
    assert code == 0, err
    assert err.count("has waited for") >= warnings - 1  # What came before the URL is not in it.


def test_each_node_shows_its_own_workers(late, tmp_path):
    endpoint = str(tmp_path / "rdzv")
    where = ["--rdzv-backend=file", "--rdzv-id=job"]
    options = [*where, "--rdzv-endpoint=" + endpoint, "--nnodes=2", "--nproc-per-node=2"]
    jobs = [late("gloo", *options) for _ in range(2)]
    urls = [metrics_url(job) for job in jobs]

    def waiting():
        return sorted(rank for url in urls for rank in stalls(url))

    wait_until(lambda: waiting() == [0, 1, 2], "three ranks that wait")
    assert sum(value(url, "stall_warnings_total") for url in urls) >= 1
    for url in urls:
        status = json.loads(get(url + "/status"))
        ranks = [worker["rank"] for worker in status["workers"]]
        assert sorted(stalls(url)) == [rank for rank in ranks if rank != 3]

    def status():
        return subprocess.run(
            [LAUNCHER, "status", endpoint, *where],
            stdout=subprocess.PIPE,
            timeout=DEADLINE,
            check=True,
        ).stdout.decode()

    def lines():
        return re.findall(r"(\d of 2) worker\(s\); rank (\d) waits for .* missing: 3\n", status())

    wait_until(lambda: len(lines()) == 2, "a line of each node")
    assert sorted(count for count, _ in lines()) == ["1 of 2", "2 of 2"]
    (tmp_path / "go").touch()
    wait_until(lambda: "stalled" not in status(), "a status without stalls")
    (tmp_path / "end").touch()
    assert [job.process.wait(DEADLINE) for job in jobs] == [0, 0]
    for job in jobs:  # Once both are gone: they share a temporary folder.
        job.finish()


def test_a_stall_ends_with_its_worker(late, tmp_path):
    job = late("gloo", "--nproc-per-node=2", "--event-log=events")
    url = metrics_url(job)
    wait_until(lambda: sorted(stalls(url)) == [0], "a rank that waits")
    job.process.terminate()
    job.finish()
    lines = map(json.loads, (tmp_path / "events").read_text().splitlines())
    of_rank_0 = [event["event"] for event in lines if event.get("rank") == 0]
    assert of_rank_0[0] == "stall"
    assert of_rank_0[-2:] == ["stall_ended", "worker_exited"]


def test_whatever_workers_write_the_launcher_goes_on(python):
    texts = [
        "",
        "no JSON",
        "[" * 100000,
        '{"pid": 1, "waits": [{"id": {}}, 7]}',
        '{"pid": 1, "warnings": 1e300, "waits": "all"}',
    ]
    job = python(
        """
import os, sys, time
path = os.environ["SYNCLINE_STALL_FILE"]
assert not os.path.exists(path)
with open(path, "w") as file:
    file.write(sys.argv[1 + int(os.environ["LOCAL_RANK"])])
print("written", flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
""",
        f"--nproc-per-node={len(texts)}",
        "--metrics-port=0",
        args=texts,
    )
    url = metrics_url(job)
    job.expect("written", times=len(texts))
    before = json.loads(get(url + "/status"))["elapsed"]
    wait_until(lambda: json.loads(get(url + "/status"))["elapsed"] > before + 1.5, "some looks")
    assert stalls(url) == {}
    assert value(url, "workers_up") == len(texts)
    (job.tmp.parent / "end").touch()
    code, _, err = job.finish()
    assert code == 0, err
