"""tools/check_waits.py finds planted calls, and nothing else."""

import check_waits
import pytest

WAITS = [
    "const int fd = accept(listener, nullptr, nullptr);",
    "const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);",
    "if (connect(fd, address, length) != 0) return;",
    "const int error = getaddrinfo(host, nullptr, &hints, &found);",
    "poll(entries, 2, -1);",
    "poll(entries, 2, timeout0);",
    "send(fd, data, size, MSG_NOSIGNAL);",
    "write(fd, data, size);",
    "while (waitpid(pid, nullptr, 0) < 0) {",
    "mutex_.Await(absl::Condition(&ready));",
    "state->mutex.Await(",
    "mutex_.LockWhen(absl::Condition(&ready));",
    "changed_.Wait(&mutex_);",
    "done->WaitForNotification();",
    "absl::MutexLock lock(&mutex_, absl::Condition(&ready));",
]
DOES_NOT_WAIT = [
    "poll(entries, count(entries), 0);",
    "recv(fd, data, std::max(size, size_t(1)), MSG_PEEK | MSG_DONTWAIT);",
    "waitpid(-1, &status, WNOHANG);",
    "deadline.Await(mutex_, absl::Condition(&ready));",
    "mutex_.AwaitWithTimeout(absl::Condition(&ready), kSlice);",
    "done.WaitForNotificationWithTimeout(kSlice);",
    "buffer->send(peer, slot);",
    "Connect(address, SOCK_STREAM, deadline);",
    "void send(int peer) override;",
    "// poll(entries, 2, -1);",
    'Log("accept(2) failed");',
]


def complaints(tmp_path, line, exceptions=None, name="core/planted.cc"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"int x;\n{line}\n    absl::Condition(&ready));\n")
    return check_waits.check(tmp_path, exceptions or {})


@pytest.mark.parametrize("line", WAITS)
def test_a_planted_call_is_found(tmp_path, line):
    assert complaints(tmp_path, line) == [f"core/planted.cc:2: may wait for ever: {line}"]


@pytest.mark.parametrize("line", DOES_NOT_WAIT)
def test_a_call_that_does_not_wait_is_not_found(tmp_path, line):
    assert complaints(tmp_path, line) == []


def test_an_exception_covers_its_call_and_no_other(tmp_path):
    exceptions = {"core/planted.cc": {"write(fd": "a plain file"}}
    assert complaints(tmp_path, "write(fd, data, size);", exceptions) == []
    assert len(complaints(tmp_path, "write(other, data, size);", exceptions)) == 2


def test_an_exception_that_nothing_needs_is_found(tmp_path):
    exceptions = {"core/planted.cc": {"write(fd": "a plain file"}}
    assert complaints(tmp_path, "int y;", exceptions) == [
        "core/planted.cc: has no such call any more: write(fd"
    ]


def test_tests_are_not_looked_at(tmp_path):
    for name in ("core/planted_test.cc", "core/testing/planted.cc", "core/planted.py"):
        assert complaints(tmp_path, "poll(entries, 2, -1);", name=name) == []
