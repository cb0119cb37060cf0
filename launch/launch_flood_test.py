"""A job of two nodes while very many strangers hold connections to the port of its rendezvous."""

import errno
import os
import resource
import socket
import threading
import time

import pytest

from launch.job_for_tests import RUN, wait_until

MOST_DESCRIPTORS = 1024  # Of a launcher.

SCRIPT = """
import time
import numpy as np
import syncline as dist

dist.init_process_group("tcp")
value = np.array([dist.get_rank() + 1.0])
for step in range(20):
    dist.all_reduce(value)
    time.sleep(0.05)
print("done", dist.get_world_size())
dist.destroy_process_group()
"""


class Flood:
    """Keeps connections to a port; half of them say a byte each second, the others nothing."""

    def __init__(self, port, count):
        self.port = port
        self.count = count
        self.made = 0
        self.has_tried_all = False
        self.stops = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def close(self):
        self.stops.set()
        self.thread.join()

    def run(self):
        sockets = [None] * self.count
        while not self.stops.wait(0.3):
            for i, connection in enumerate(sockets):
                if self.stops.is_set():
                    break
                if connection is not None and not self.is_open(connection, slow=i % 2 == 1):
                    connection.close()
                    connection = None
                sockets[i] = connection or self.connect()
            self.has_tried_all = True
        for connection in sockets:
            if connection is not None:
                connection.close()

    def connect(self):
        connection = socket.socket()
        connection.setblocking(False)
        linger = b"\1\0\0\0\0\0\0\0"  # Leaves no port behind that is taken for a while.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if connection.connect_ex(("127.0.0.1", self.port)) not in (0, errno.EINPROGRESS):
            connection.close()
            return None
        self.made += 1
        return connection

    @staticmethod
    def is_open(connection, slow):
        try:
            if slow:
                connection.send(b"S")
            return connection.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret that all nodes of this job have")
    path.chmod(0o600)
    return {"SYNCLINE_SECRET_FILE": str(path)}


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def count_descriptors(process):
    return len(os.listdir("/proc/%d/fd" % process.pid))


def test_nodes_find_each_other_and_the_job_ends_well(launch, tmp_path, secret, strangers):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= strangers + 100
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (tmp_path / "script.py").write_text(SCRIPT)

    def start():
        # What a launcher may raise it to, too.
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))

        options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        return launch(*options, "script.py", program=RUN, env=secret, preexec_fn=limit)

    first = start()
    wait_until(lambda: is_listening(port), "the rendezvous listens")
    before = count_descriptors(first.process)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood = Flood(port, strangers)
    try:
        wait_until(lambda: flood.has_tried_all, "the strangers have come")
        begin = time.monotonic()
        second = start()
        most = 0
        while first.process.poll() is None and second.process.poll() is None:
            most = max(most, count_descriptors(first.process))
            time.sleep(0.02)
        taken = time.monotonic() - begin
        for node in (first, second):
            code, out, err = node.finish()
            assert code == 0, err
            assert "done 2" in out
    finally:
        flood.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{strangers} strangers connected {flood.made} times; the job took {taken:.1f} s,")
    print(f"and the launcher {most - before} descriptors more than before they came")
    # Those of the job itself are some 40.
    assert most - before < 64 + 64
    assert taken < 45
