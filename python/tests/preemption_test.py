"""All ranks stop at the same step, whichever of them was asked to."""

import os
import signal
import threading
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist
from syncline import job, preemption


@pytest.fixture
def alone():
    """A job of one rank."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    preemption.uninstall()
    dist.destroy_process_group()


def stop_step(give_notice):
    """Trains until the ranks agree to stop; rank 1, or the only one, gives notice at step 20."""
    preemption.install(timeout=ranks.TIMEOUT)
    is_messenger = dist.get_rank() == min(1, dist.get_world_size() - 1)
    step = 0
    while not preemption.reached(step):
        assert preemption.agreed_step() is None or preemption.agreed_step() > step
        if is_messenger and step == 20:
            give_notice()
        dist.all_reduce(numpy.zeros(1000))
        step += 1
    assert preemption.agreed_step() == step > 20
    steps = [numpy.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, numpy.array([float(step)]))
    assert {float(s[0]) for s in steps} == {step}


def by_signal():
    stop_step(lambda: os.kill(os.getpid(), signal.SIGTERM))


def by_call():
    stop_step(preemption.notify)


def by_key():
    stop_step(lambda: job.joined().store.set("preempt/notice", b"the launcher's"))


def by_a_signal_to_each():
    preemption.install(signals=(signal.SIGUSR1,))
    os.kill(os.getpid(), signal.SIGUSR1)
    step = 0
    while not preemption.reached(step):
        dist.barrier()
        step += 1
    dist.barrier()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("notice", ["by_signal", "by_call", "by_key", "by_a_signal_to_each"])
def test_all_ranks_stop_at_the_same_step(size, notice):
    ranks.in_processes(size, __file__, notice)


def without_rank_2():
    if dist.get_rank() < 2:
        preemption.install(timeout=timedelta(seconds=3))
        preemption.notify()
        with pytest.raises(dist.DistTimeoutError, match="rank 2 of 3 has not said within 3s"):
            for step in range(1 << 40):
                preemption.reached(step)
    dist.barrier()


def test_a_rank_that_takes_no_part_is_named():
    ranks.in_processes(3, __file__, "without_rank_2")


def interrupted():
    if dist.get_rank() == 0:
        preemption.install(signals=(), timeout=ranks.TIMEOUT)
        preemption.notify()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            for step in range(1 << 40):
                preemption.reached(step)
    dist.barrier()


def test_ctrl_c_ends_the_wait_for_the_others():
    ranks.in_processes(2, __file__, "interrupted")


def test_a_handler_that_was_there_is_called_too_and_set_again(alone):
    seen = []

    def handler(number, frame):
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        preemption.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        wait_for_agreement()
        preemption.uninstall()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_agreement():
    step = 0
    while not preemption.reached(step):
        step += 1


def test_sigint_may_be_a_notice(alone):
    preemption.install(signals=[signal.SIGINT])
    os.kill(os.getpid(), signal.SIGINT)
    wait_for_agreement()


def test_it_needs_a_job_and_to_be_installed_once():
    with pytest.raises(dist.DistError, match="init_process_group first"):
        preemption.install()
    for use in (lambda: preemption.reached(0), preemption.agreed_step, preemption.notify):
        with pytest.raises(dist.DistError, match="preemption.install"):
            use()
    preemption.uninstall()


def test_installing_it_twice_is_an_error(alone):
    preemption.install()
    with pytest.raises(dist.DistError, match="uninstall"):
        preemption.install()


def test_signals_need_the_main_thread_and_nothing_is_installed_without(alone):
    errors = []

    def install(**arguments):
        try:
            preemption.install(**arguments)
        except ValueError as error:
            errors.append(error)

    for arguments in ({}, {"signals": ()}):
        thread = threading.Thread(target=install, kwargs=arguments)
        thread.start()
        thread.join(60)
    assert len(errors) == 1
    assert preemption.agreed_step() is None


def test_a_signal_that_cannot_be_handled_leaves_the_others_as_they_were(alone):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError):
        preemption.install(signals=(signal.SIGTERM, signal.SIGKILL))
    assert signal.getsignal(signal.SIGTERM) is before
    preemption.install()


def test_steps_that_do_not_count_up_are_refused(alone):
    preemption.install()
    assert preemption.reached(3) is False
    with pytest.raises(ValueError, match="got 2 after 3"):
        preemption.reached(2)


def test_a_forked_child_has_neither_its_parents_watch_nor_its_handler(alone):
    preemption.install()
    child = os.fork()
    if child == 0:
        try:
            preemption.reached(0)
        except dist.DistError:
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert preemption.reached(0) is False


if __name__ == "__main__":
    ranks.main(globals())
