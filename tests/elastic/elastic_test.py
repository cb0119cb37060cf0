"""Training goes on, with the right ranks, whatever happens to workers and nodes."""

import os
import signal
import time

import cluster


def three_nodes(job):
    """Launchers on hosts 0, which holds the store, 1 and 2, in their first steps."""
    first = job.start(0)
    agents = [first, job.start(1), job.start(2)]
    job.await_step(world=6)
    return agents


def test_a_killed_worker_is_replaced(job):
    job.steps = 250
    agents = three_nodes(job)
    victim = agents[1].workers()[0]
    moment = time.time()
    os.kill(victim, signal.SIGKILL)
    job.await_step(world=6, after=moment)
    job.finish(agents)
    assert "SIGKILL" in agents[0].said()
    assert "round 1: 3 node(s), 6 worker(s)" in agents[2].said()
    print("first step after %.2f s" % job.first_step_after(moment, 6))


def test_a_killed_node_is_left_out_and_comes_back(job):
    job.steps = 250
    agents = three_nodes(job)
    moment = time.time()
    agents[2].kill()
    job.await_step(world=4, after=moment)
    print("first step after %.2f s" % job.first_step_after(moment, 4))
    agents[2] = job.start(2)
    job.await_step(world=6, after=moment)
    job.finish(agents)


def test_when_the_node_with_the_store_is_killed_another_holds_it(job):
    job.steps = 300
    agents = three_nodes(job)
    moment = time.time()
    agents[0].kill()
    job.await_step(world=4, after=moment)
    print("first step after %.2f s" % job.first_step_after(moment, 4))
    assert "the rendezvous goes on at" in agents[1].said()
    agents[0] = job.start(0)  # Finds nobody at the endpoint, until it learns where they are.
    job.await_step(world=6, after=moment)
    assert "the rendezvous goes on at" in agents[0].said()
    job.finish(agents)


def test_a_node_that_comes_is_taken_in_and_one_that_leaves_is_not_missed(job):
    job.steps = 250
    first = job.start(0)
    second = job.start(1)
    job.await_step(world=4)
    moment = time.time()
    third = job.start(2)
    job.await_step(world=6, after=moment)
    print("first step of the larger group after %.2f s" % job.first_step_after(moment, 6))
    moment = time.time()
    second.kill(signal.SIGTERM)
    assert second.finish() == 128 + signal.SIGTERM
    job.await_step(world=4, after=moment)
    print("first step of the smaller group after %.2f s" % job.first_step_after(moment, 4))
    job.finish([first, third])
    assert "left: SIGTERM" in first.said()


def test_a_node_that_hangs_is_left_out_and_comes_back(job):
    job.steps = 400
    job.conf += ",keep_alive_interval=0.2"
    agents = three_nodes(job)
    moment = time.time()
    stopped = [agents[1].process.pid, *agents[1].workers()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        job.await_step(world=4, after=moment)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    job.await_step(world=6, after=moment)
    job.finish(agents)


def test_a_job_of_fixed_size_names_the_node_it_waits_for_and_ends_with_the_last_failure(job):
    job.steps = 250
    job.options = ["--nnodes", 3, "--nproc-per-node", 2]
    job.max_restarts = 0
    job.conf = "join_timeout=20"
    agents = three_nodes(job)
    lost = "lost or left since round 0: node %s " % cluster.hosts()[1][1]
    agents[1].kill()
    for agent in (agents[0], agents[2]):
        assert agent.finish() == 1, job.tell()
        said = agent.said()
        assert "round 0 is over, and the next has not begun yet: 2 of at least 3" in said
        assert "no round has begun yet" not in said
        assert "after 0 of 0 restarts" in said, said
        waited, _, end = said.partition("no round within 20s (join_timeout) after round 0: ")
        assert lost in waited and lost in end, said


def test_when_no_restart_is_left_all_nodes_name_the_cause(job):
    job.max_restarts = 0
    agents = three_nodes(job)
    victim = agents[2].workers()[1]
    os.kill(victim, signal.SIGSEGV)
    for agent in agents:
        assert agent.finish() == 128 + signal.SIGSEGV, job.tell()
        assert "pid %d" % victim in agent.said(), job.tell()
