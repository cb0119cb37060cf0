"""The sharing strategy file_system: the manager, its segments, and what is left of them."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import children
import leaks
import numpy
import pytest
import syncline
import syncline.multiprocessing as mp
from syncline.multiprocessing import named_segments

CLEAN_WITHIN = 30.0


@pytest.fixture(autouse=True)
def named():
    mp.set_sharing_strategy("file_system")
    yield
    mp.set_sharing_strategy("file_descriptor")


def manager_pid():
    return int(os.environ["SYNCLINE_SEGMENT_MANAGER"].split("-")[3])


def has_ended(pid):
    try:
        state = pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def new_job(script, **environment):
    """What a job of its own prints. It and its manager have ended."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SYNCLINE_SEGMENT")}
    variables.update(environment, PYTHONPATH=os.pathsep.join(sys.path))
    ended = subprocess.run(
        [sys.executable, "-c", "import syncline.multiprocessing as mp\n" + script],
        env=variables,
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_processes_of_a_job_have_one_manager_and_the_parents_strategy(method):
    context = mp.get_context(method)
    outbox = context.SimpleQueue()
    child = context.Process(target=children.tell_strategy, args=(outbox,))
    child.start()
    strategy, manager, array = outbox.get()
    assert strategy == "file_system"
    assert manager == os.environ["SYNCLINE_SEGMENT_MANAGER"]
    assert array.sum() == 50_000
    child.join(60)


def test_an_array_takes_no_descriptor():
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        before = leaks.descriptors()
        for i in range(50):
            writer.send(numpy.full(50_000, i))
        assert leaks.descriptors() == before
        got = [reader.recv() for _ in range(50)]
        assert leaks.descriptors() == before
        assert [int(array[0]) for array in got] == list(range(50))
        assert len(leaks.named_segments()) == 50
        del got
    assert leaks.eventually(lambda: leaks.named_segments() == [])


def test_a_handle_of_a_named_segment_is_refused_with_the_reason():
    array = mp.share_memory_(numpy.ones(1000))
    with pytest.raises(ValueError, match="named segment, of the strategy file_system"):
        syncline.shared_handle(array)


def test_a_child_of_fork_hands_on_what_its_parent_has_mapped():
    shared = mp.share_memory_(numpy.zeros(1000))
    context = mp.get_context("fork")
    outbox = context.SimpleQueue()
    child = context.Process(target=outbox.put, args=(shared[10:],))
    child.start()
    got = outbox.get()
    got[0] = 5
    assert shared[10] == 5
    child.join(60)
    del shared, got
    assert leaks.eventually(lambda: leaks.named_segments() == [])


def test_a_child_of_fork_copies_what_its_parent_has_freed_meanwhile():
    shared = mp.share_memory_(numpy.full(100_000, 3.0))
    context = mp.get_context("fork")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=children.send_when_told, args=(inbox, outbox, shared))
    child.start()
    del shared
    assert leaks.eventually(lambda: leaks.named_segments() == [])
    inbox.put("now")
    child.join(60)  # What a process has sent is there, though it has ended.
    assert (outbox.get() == 3).all()


def test_an_array_of_the_parent_that_a_child_of_fork_has_sent_outlives_both():
    shared = mp.share_memory_(numpy.full(100_000, 3.0))
    context = mp.get_context("fork")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=children.send_when_told, args=(inbox, outbox, shared))
    child.start()
    inbox.put("now")
    child.join(60)
    del shared, child
    got = outbox.get()
    assert (got == 3).all()
    del got
    assert leaks.eventually(lambda: leaks.named_segments() == [])


def test_segments_end_with_their_job_and_so_does_the_manager():
    script = """
import numpy, os
mp.set_sharing_strategy("file_system")
kept = mp.share_memory_(numpy.zeros(1000))
reader, writer = mp.Pipe(duplex=False)
writer.send(numpy.zeros(100_000))  # Never received.
print(os.environ["SYNCLINE_SEGMENT_MANAGER"])
"""
    for ending in ("", "os._exit(0)", "os.kill(os.getpid(), 9)"):
        ended = new_job(script + "import sys; sys.stdout.flush()\n" + ending)
        manager = ended.stdout.strip()
        assert manager.startswith("syncline-"), ended.stderr
        pid = int(manager.split("-")[3])
        assert leaks.eventually(
            lambda pid=pid, manager=manager: (
                has_ended(pid) and not any(n.startswith(manager) for n in leaks.named_segments())
            ),
            CLEAN_WITHIN,
        )


def test_a_manager_that_is_killed_leaves_nothing_and_is_started_again():
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        mapped = mp.share_memory_(numpy.full(1000, 2.0))
        writer.send(numpy.zeros(100_000))
        first = manager_pid()
        os.kill(first, signal.SIGKILL)
        assert leaks.eventually(lambda: leaks.named_segments() == [], CLEAN_WITHIN)
        with pytest.raises(syncline.DistNetworkError, match=f"process {os.getpid()} has sent"):
            reader.recv()
        assert (mapped == 2).all()
        writer.send(numpy.full(100_000, 4))
        assert (reader.recv() == 4).all()
        assert manager_pid() != first
        writer.send(mapped)  # It has no name any more, so a copy is sent.
        assert (reader.recv() == 2).all()
    del mapped
    assert leaks.eventually(lambda: leaks.named_segments() == [])


def test_a_manager_that_is_stopped_delays_nobody():
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(numpy.zeros(50_000))
        reader.recv()
        os.kill(manager_pid(), signal.SIGSTOP)
        try:
            for i in range(30):
                writer.send(numpy.full(50_000, i))
                assert reader.recv()[7] == i
        finally:
            os.kill(manager_pid(), signal.SIGCONT)
    assert leaks.eventually(lambda: leaks.named_segments() == [])


def test_a_manager_that_cannot_start_is_an_error_that_says_so():
    for program, why in (("/nowhere", "No such file"), ("/bin/false", "has not started: 1")):
        ended = new_job(
            f"""
import pathlib
from syncline.multiprocessing import named_segments
named_segments._PROGRAM = pathlib.Path({program!r})
try:
    mp.set_sharing_strategy("file_system")
except RuntimeError as error:
    print(error)
print(mp.get_sharing_strategy())
"""
        )
        assert why in ended.stdout, ended.stderr
        assert "file_descriptor needs none" in ended.stdout
        assert ended.stdout.endswith("file_descriptor\n")


def test_the_program_says_what_it_wants():
    for arguments in ([], ["x"], ["1", "2"], ["-1"]):
        ended = subprocess.run(
            [str(named_segments._PROGRAM), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.returncode == 2
        assert "usage" in ended.stderr


def test_stale_segments_are_swept_when_a_manager_starts():
    alive = os.environ["SYNCLINE_SEGMENT_MANAGER"].split("-")
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    stale = "-".join([*alive[:3], str(dead.pid), "1", "7", "1", "1"])
    kept = "-".join([*alive, "7", "1", "1000000"])
    for name in (stale, kept):
        pathlib.Path("/dev/shm", name).touch()
    try:
        new_job("mp.set_sharing_strategy('file_system')")
        assert leaks.named_segments() == [kept]
    finally:
        os.unlink(f"/dev/shm/{kept}")


def test_too_little_memory_is_an_error_with_sizes():
    with pytest.raises(syncline.DistBackendError, match=r"KiB.*has only \d+ KiB available"):
        named_segments.make(1 << 45)
    assert leaks.eventually(lambda: leaks.named_segments() == [])
    array = numpy.zeros(100_000)
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(array)
        assert reader.recv().size == 100_000


def test_a_full_dev_shm_is_an_error_with_its_size():
    script = """
import numpy
mp.set_sharing_strategy("file_system")
reader, writer = mp.Pipe(duplex=False)
array = numpy.ones(2 << 20)
for make in (lambda: writer.send(array), lambda: mp.share_memory_(array)):
    try:
        make()
    except Exception as error:
        print(type(error).__name__, error)
writer.send(numpy.ones(1 << 17))  # What there is room for.
print(reader.recv().sum())
"""
    program = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), f"full{os.getpid()}.py")
    program.write_text("import syncline.multiprocessing as mp\n" + script)
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SYNCLINE_SEGMENT")}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = f"mount -t tmpfs -o size=8m none /dev/shm && exec {sys.executable} {program}"
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command],
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    program.unlink()
    if "unshare failed" in ended.stderr or "Operation not permitted" in ended.stderr:
        pytest.skip(f"this machine gives no mount namespace: {ended.stderr}")
    lines = ended.stdout.splitlines()
    assert len(lines) == 3, ended.stderr
    for line in lines[:2]:
        assert "/dev/shm has 8192 KiB" in line
    assert lines[2] == str(float(1 << 17))


def test_processes_of_other_users_are_refused():
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            os.setgid(65534)
            os.setuid(65534)
            named_segments._syncline._use_segment_manager(os.environ["SYNCLINE_SEGMENT_MANAGER"])
        except PermissionError:
            code = 77
        except OSError as error:
            code = 0 if isinstance(error, syncline.DistNetworkError) else 77
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 77:
        pytest.skip("this process cannot be another user")
    assert code == 0


def test_a_producer_that_is_killed_at_any_time_is_named():
    queue = mp.Queue()
    for _ in range(5):
        child = mp.Process(target=children.produce_for_ever, args=(queue, 0), daemon=True)
        child.start()
        for i in range(20):
            assert queue.get(timeout=60)[1] == i
        child.kill()
        child.join()
        named = 0
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                _, i, array = queue.get(timeout=0.5)
                assert (array == i % 100).all()
            except syncline.DistNetworkError as error:
                assert f"process {child.pid} has sent" in str(error)
                named += 1
            except mp.queues.Empty:
                break
        assert queue.empty()
    queue.close()
