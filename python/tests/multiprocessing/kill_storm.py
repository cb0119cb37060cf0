"""Jobs of which processes are killed at random moments, one job after another.

Usage: kill_storm.py ROUNDS [SEED]

A job is a parent, two producers, two consumers and, with the strategy file_system, a manager. Each
array carries who has made it and its number, in every element. Prints a line for each thing that is
not as it should be, and a summary.
"""

import faulthandler
import json
import os
import pathlib
import random
import select
import signal
import sys
import tempfile
import time

import leaks
import numpy
import syncline
import syncline.multiprocessing as mp

SIZES = (100, 5_000, 20_000, 70_000)  # Elements of 8 bytes: by value, small, and large ones.
PRODUCERS, CONSUMERS = 2, 2
CLEAN_WITHIN = 30.0
TIMEOUT = 60.0


def produce(number, queues, seed):
    rng = random.Random(seed)
    i = 0
    while True:
        i += 1
        value = number * 1_000_000_000 + i
        arrays = [
            numpy.full(rng.choice(SIZES), value, "i8") for _ in range(rng.choice((1, 1, 1, 4)))
        ]
        if rng.random() < 0.2:
            arrays[0] = mp.share_memory_(arrays[0])
        rng.choice(queues).put((value, arrays))


def consume(queue, counter, report, seed):
    rng = random.Random(seed)
    kept = []
    while True:
        try:
            value, arrays = queue.get()
        except syncline.DistNetworkError:
            counter += 1  # What a killed producer, or manager, has left.
            continue
        kept.append((value, arrays))
        if len(kept) > 5:
            kept.pop(rng.randrange(5))
        for expected, some in kept:
            for array in some:
                if not (array == expected).all():
                    os.write(report, f"BAD {expected} {set(array.tolist())}\n".encode()[:4000])
                    os._exit(1)
        del arrays
        counter += 1


def job(seed, strategy, method, report, orders):
    """The parent. Reports its processes, and does what it is told."""
    rng = random.Random(seed)
    mp.set_sharing_strategy(strategy)
    context = mp.get_context(method)
    counters = mp.empty_shared(CONSUMERS, "i8")
    counters[:] = 0
    if method != "fork":  # What the start method keeps.
        first = context.Process(target=os.getpid)
        first.start()
        first.join()
        first.close()
    before = leaks.descriptors(), leaks.mappings()
    queues = [context.Queue(rng.choice((0, 3))) for _ in range(CONSUMERS)]
    processes = []
    for number in range(PRODUCERS):
        arguments = (number, queues, rng.random())
        processes.append(context.Process(target=produce, args=arguments, daemon=True))
    for number in range(CONSUMERS):
        arguments = (queues[number], counters[number : number + 1], report, rng.random())
        processes.append(context.Process(target=consume, args=arguments, daemon=True))
    for process in processes:
        process.start()
    manager = os.environ.get("SYNCLINE_SEGMENT_MANAGER", "") if strategy == "file_system" else ""
    known = {"parent": os.getpid(), "children": [p.pid for p in processes], "manager": manager}
    os.write(report, (json.dumps(known) + "\n").encode())
    killed = json.loads(os.read(orders, 4096))  # By the driver, which has done what it wanted.
    alive = [process.pid not in killed and process.is_alive() for process in processes]
    # A producer waits for a consumer that was killed, as a pipe's writer does.
    if any(alive[:PRODUCERS]) and all(alive[PRODUCERS:]):
        was = counters.copy()
        for number in range(CONSUMERS):
            goes_on = leaks.eventually(lambda n=number: counters[n] > was[n] + 3, TIMEOUT)
            if not goes_on:
                os.write(report, f"HANG of consumer {number}\n".encode())
    for process in processes:
        process.kill()
        process.join()
        process.close()
    for queue in queues:
        queue.cancel_join_thread()
        queue.close()
        queue._reader.close()
        queue._writer.close()
    processes.clear()
    queues.clear()
    after = leaks.descriptors(), leaks.mappings()
    if after != before:
        os.write(report, f"LEFT descriptors, mappings {before} -> {after}\n".encode())
    os.write(report, b"DONE\n")


def start(seed, strategy, method):
    """Forks a job's parent. Returns its pid, and where it reports to and takes orders from."""
    report, to_driver = os.pipe()
    orders, from_driver = os.pipe()
    os.set_inheritable(to_driver, True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.close(report)
            os.close(from_driver)
            job(seed, strategy, method, to_driver, orders)
            code = 0
        except BaseException as error:
            os.write(to_driver, f"ERROR {type(error).__name__}: {error}\n".encode())
        finally:
            from multiprocessing import util

            util._exit_function()
            os._exit(code)
    os.close(to_driver)
    os.close(orders)
    return pid, report, from_driver


def lines_of(report, until, seconds):
    """What a job has reported, until a line begins so, it has ended, or the time is over."""
    text, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if any(line.startswith(until) for line in text.decode().splitlines()):
            break
        if select.select([report], [], [], 0.1)[0]:
            data = os.read(report, 65536)
            if not data:
                break
            text += data
    return text.decode().splitlines()


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def processes_of(session, manager):
    """The processes that are left of a job."""
    left = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            command = pathlib.Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue
        of_manager = b"syncline-segment-manager" in command and (
            int(fields[3]) == session or command.rstrip(b"\0").endswith(b"\0%d" % session)
        )
        if fields[0] not in "ZX" and (int(fields[3]) == session or of_manager):
            left.append((int(entry), command.replace(b"\0", b" ").decode()[-60:]))
    return left


def round_of(seed, problems):
    rng = random.Random(seed)
    strategy = rng.choice(("file_descriptor", "file_system", "file_system"))
    method = rng.choices(("fork", "spawn", "forkserver"), (30, 1, 1))[0]
    parent, report, orders = start(seed, strategy, method)
    reported = lines_of(report, "{", TIMEOUT)
    known = next((json.loads(line) for line in reported if line.startswith("{")), None)
    if known is None:
        problems.append(f"seed {seed} did not start: {reported}")
        kill(parent)
        os.waitpid(parent, 0)
        return "none"
    manager = known["manager"]
    victims = [("child", pid) for pid in known["children"]]
    if manager:
        victims.append(("manager", int(manager.split("-")[3])))
    rng.shuffle(victims)
    parent_dies = rng.random() < 0.5
    chosen = victims[: rng.randint(0 if parent_dies else 1, 3)]
    if parent_dies:
        chosen.insert(rng.randint(0, len(chosen)), ("parent", parent))
    for _, pid in chosen:
        time.sleep(rng.random() * 0.08)  # The moment is what is random.
        kill(pid)
    if not parent_dies:
        os.write(orders, json.dumps([pid for _, pid in chosen]).encode())
        reported += lines_of(report, "DONE", 3 * TIMEOUT)
        if not any(line == "DONE" for line in reported):
            problems.append(f"seed {seed}: the parent is not done: {reported[1:]}")
            kill(parent)
    # Children of a parent that was killed are nobody's: they wait as those of multiprocessing do.
    for pid in known["children"]:
        kill(pid)
    os.waitpid(parent, 0)
    began = time.monotonic()
    prefix = manager + "-" if manager else "syncline-none"

    def is_clean():
        segments = [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
        return segments == [] and processes_of(parent, manager) == []

    if not leaks.eventually(is_clean, CLEAN_WITHIN):
        segments = [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
        left = processes_of(parent, manager)
        problems.append(f"seed {seed}, {strategy}, {method}, {chosen}: left {segments[:3]} {left}")
        for pid, _ in left:
            kill(pid)
    slowest = time.monotonic() - began
    reported += lines_of(report, "\0", 5.0)  # Until all ends of the pipe are closed.
    for line in reported:
        if line.startswith(("BAD", "HANG", "LEFT", "ERROR")):
            problems.append(f"seed {seed}, {strategy}, {method}, {chosen}: {line}")
    os.close(report)
    os.close(orders)
    return slowest


def main():
    rounds = int(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    faulthandler.enable()
    problems = []
    before = leaks.descriptors()
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="storm") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for seed in range(first, first + rounds):
            known = len(problems)
            took = round_of(seed, problems)
            slowest = max(slowest, took if isinstance(took, float) else 0.0)
            for problem in problems[known:]:
                print(problem, flush=True)
        files = os.listdir(folder)
    if leaks.descriptors() != before:
        problems.append(f"descriptors: {before} -> {leaks.descriptors()}")
    if any(not name.startswith("pymp-") for name in files):
        problems.append(f"files: {files}")
    print(f"{rounds} rounds, {len(problems)} problems, clean within {slowest:.1f} s")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
