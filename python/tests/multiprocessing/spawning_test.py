"""spawn and start_processes: ranks, errors, the end of the others, and of orphans."""

import pickle
import signal
import time

import children
import leaks
import pytest
import syncline.multiprocessing as mp

METHODS = ("fork", "spawn", "forkserver")


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("method", METHODS)
def test_each_process_has_its_rank(method):
    arrays = mp.empty_shared(3)
    assert mp.start_processes(children.fill, (arrays,), nprocs=3, start_method=method) is None
    assert arrays.tolist() == [1, 2, 3]
    arrays[:] = 0
    context = mp.spawn(children.fill, args=(arrays,), nprocs=2, join=False)
    assert isinstance(context, mp.ProcessContext)
    assert isinstance(context, mp.SpawnContext)
    assert len(set(context.pids())) == 2
    while not context.join(timeout=30):
        pass
    assert context.join()
    assert arrays.tolist() == [1, 2, 0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_an_error_ends_the_others_and_names_the_rank(method, how):
    started = time.monotonic()
    with pytest.raises(mp.ProcessException, match="rank 1") as caught:
        mp.start_processes(children.fail, (1, how), nprocs=3, start_method=method)
    assert time.monotonic() - started < 60
    error = caught.value
    assert error.error_index == 1
    assert f"process {error.pid}" in str(error)
    if how == "raise":
        assert isinstance(error, mp.ProcessRaisedException)
        assert "ValueError: this is rank 1" in str(error)
        assert "in fail" in str(error)
    else:
        assert isinstance(error, mp.ProcessExitedException)
        assert error.exit_code == (7 if how == "exit" else -signal.SIGKILL)
        assert error.signal_name == (None if how == "exit" else "SIGKILL")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.__dict__) == (str(error), error.__dict__)
    assert not mp.active_children()


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period():
    ready = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(children.ignore_termination, (ready,), nprocs=2, join=False)
    pids = [pid for pid in (ready.get() for _ in range(3)) if pid is not None]
    started = time.monotonic()
    with pytest.raises(mp.ProcessRaisedException, match="rank 0"):
        while not context.join(grace_period=0.5):
            pass
    assert 0.4 < time.monotonic() - started < 20
    assert not any(is_alive(pid) for pid in pids)


def test_join_returns_after_its_timeout():
    started = mp.get_context("fork").SimpleQueue()
    context = mp.start_processes(
        children.sleep, (started,), nprocs=1, join=False, start_method="fork"
    )
    assert not context.join(timeout=0.05)
    context.processes[0].kill()
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        context.join()


@pytest.mark.parametrize("method", METHODS)
def test_processes_end_with_their_parent(method):
    context = mp.get_context("spawn")
    outbox = context.SimpleQueue()
    parent = context.Process(target=children.parent_of_sleepers, args=(method, outbox))
    parent.start()
    pids = [outbox.get(), outbox.get()]
    assert all(is_alive(pid) for pid in pids)
    parent.kill()
    parent.join()
    assert leaks.eventually(lambda: not any(is_alive(pid) for pid in pids))
