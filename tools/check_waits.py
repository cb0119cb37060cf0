#!/usr/bin/python3
"""Checks that no wait of the product is without a deadline.

Usage: tools/check_waits.py [FOLDER]

Looks through the C++ sources of FOLDER (this repository), tests aside, for calls that may wait for
another process or thread and do not say for how long. Use core/base/sockets.h for sockets,
core/base/resolve.h for names of hosts and Deadline::Await for mutexes instead. Where none of these
fits, the call stands in EXCEPTIONS with the reason why it ends. Exits with 1 and a list of the
calls that are not there, and of the exceptions that are no longer needed.

It knows calls by their names: not those that wait inside of a library (Gloo's, gRPC's), nor joins
of threads, nor reads and writes of plain files.
"""

import re
import sys

import checks

FOLDERS = ("core", "store", "backends", "ddp", "launch", "python", "java")

# Where the waits with a deadline are made.
IMPLEMENTATIONS = ("include/syncline/deadline.h", "core/base/resolve.cc", "core/base/sockets.cc")

# A call: what it looks like, and what in its arguments makes it one that does not wait.
# A function of the C library, not a method, called or declared.
_FREE = r"(?<![\w.>:])(?<!void )(?:::)?"
CALLS = [
    (_FREE + r"accept4?\(", None),
    (_FREE + r"connect\(", None),
    (_FREE + r"(?:getaddrinfo|gethostbyname\w*|gethostbyaddr\w*)\(", None),
    (_FREE + r"p?poll\(", r",\s*0$"),
    (_FREE + r"p?select\(", None),
    (_FREE + r"epoll_p?wait2?\(", r",\s*0$"),
    (_FREE + r"(?:send|sendto|sendmsg|recv|recvfrom|recvmsg)\(", r"\bMSG_DONTWAIT\b"),
    (_FREE + r"writev?\(", None),
    (_FREE + r"(?:waitpid|wait4|waitid)\(", r"\bWNOHANG\b"),
    (_FREE + r"flock\(", r"\bLOCK_(?:NB|UN)\b"),
    (r"\bF_(?:OFD_)?SETLKW\b", None),
    (r"(?:\.|->)Await\(\s*absl::Condition\b", None),  # Of absl::Mutex, without a time.
    (r"(?:\.|->)(?:Reader)?LockWhen\(", None),
    (r"(?:\.|->)Wait\(\s*&", None),  # Of absl::CondVar.
    (r"(?:\.|->)wait\(\s*(?:lock|guard)", None),  # Of std::condition_variable.
    (r"(?:\.|->)WaitForNotification\(", None),
    (r"\bMutexLock\s+\w+\(\s*&?[\w.>-]+,\s*absl::Condition\b", None),
]

# File: {a part of the line with the call: why the call ends}.
EXCEPTIONS = {
    "backends/common/socket_streams.cc": {
        "poll(entries.data()": "after kInterruptInterval at most; the caller looks at its deadline",
    },
    "backends/tcp/point_to_point.cc": {
        "poll(entries.data()": "after the limit that the caller gives, within its deadline",
    },
    "backends/tcp/tcp_connections.cc": {
        "poll(entries.data()": "after the time in the call: the watch ends by stop_event_, the"
        " other loop by its deadline",
    },
    "core/base/host.cc": {
        "connect(fd.get()": "a datagram socket: this only picks a route",
    },
    "core/group/operation_queue.cc": {
        "State::IsOver": "the owner has aborted the operations that this waits for",
    },
    "core/group/process_group.cc": {
        "Condition(&none_in_flight)": "the backends, which were aborted, complete what is pending",
    },
    "core/join/multicast_socket.cc": {
        "connect(fd.get()": "a datagram socket: this only picks a route",
        "sendto(fd_": "the socket is non-blocking",
        "recvfrom(fd_": "the socket is non-blocking",
        "poll(&poll_fd": "as long as the caller says",
    },
    "core/segments/manager_main.cc": {
        "waitpid(pid": "a process of its own, whose child ends soon after the job",
    },
    "store/tcp/tcp_acceptor.cc": {
        "epoll_wait(": "an event loop: until a connection's deadline, or an event such as the stop",
    },
    "store/tcp/tls_relay.cc": {
        "epoll_wait(": "an event loop: until a connection has bytes to move, or the stop",
    },
    "backends/hierarchical/record_teller.cc": {
        "Condition(&has_work)": "the thread of its own, which the destructor ends",
    },
    "backends/common/lifecycle.cc": {
        "diagnosing_": "FailureReporter::kBound bounds the diagnosis",
    },
    "backends/mpi/mpi_library.cc": {
        "write(file.get()": "to memory: a memfd",
    },
    "backends/gloo/periodic_wakeup.cc": {
        "&HasWork": "an idle thread's: until there is work, for the life of the process",
    },
    "backends/local/local_group.cc": {
        "pending->done": "all have arrived: a thread computes, which waits for nobody",
        "side.done": "taken: a thread copies, which waits for nobody",
    },
    "backends/mpi/mpi_runtime.cc": {
        "&is_settled": "MPI's thread begins no call that blocks but those with a deadline",
        "&has_task": "an idle thread's: until there is work, for the life of the process",
    },
    "python/syncline/torch/native/backend.h": {
        "WorkPointer send(": "a method, declared",
        "WorkPointer recv(": "a method, declared",
    },
    "launch/guardian.cc": {
        "write(pipe": "a few bytes to a process that does nothing but read them",
        "poll(&ended": "a constant",
        "waitpid(pid_": "its pipe is closed: it kills what is left and exits",
    },
    "launch/job_files.cc": {
        "write(file.get()": "a file in a folder of this job's own",
    },
    "launch/launcher.cc": {
        "poll(fds.data()": "the event loop: until the next thing is due",
    },
    "launch/launcher_prepare.cc": {
        "poll(&signal": "a constant",
    },
    "launch/monitor/event_file.cc": {
        "write(fd_.get()": "on a writer thread's own account, see writer_thread.h",
    },
    "launch/output/fd_sink.cc": {
        "poll(&ready": "on a writer thread, see writer_thread.h",
        "write(fd_": "on a writer thread, see writer_thread.h",
    },
    "launch/output/log_file.cc": {
        "write(fd": "on a writer thread, see writer_thread.h",
    },
    "launch/output/message_queue.cc": {
        "write(fd_": "an eventfd: waits only at 2^64 - 1 messages",
    },
    "launch/output/writer_thread.cc": {
        "&has_work": "an idle thread's: until there is work, or the end",
    },
    "launch/rendezvous/event_queue.h": {
        "write(fd_": "an eventfd: waits only at 2^64 - 1 items",
    },
    "launch/worker.cc": {
        "waitpid(pid": "the child could not run its program and is about to exit",
    },
}


def without_comments(text):
    """Returns the C++ text with comments and the contents of strings blanked, line by line."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S)


def arguments(text, start):
    """Returns what is between the first "(" from `start` on and its ")"."""
    begin = text.find("(", start)
    depth = 0
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at].strip()
    return text[begin + 1 :]


def waits(text):
    """Yields the number and the text of each line with a call that may wait without a deadline."""
    lines = text.split("\n")
    text = without_comments(text)
    for call, does_not_wait in CALLS:
        for found in re.finditer(call, text):
            if does_not_wait and re.search(does_not_wait, arguments(text, found.start())):
                continue
            number = text.count("\n", 0, found.start()) + 1
            yield number, lines[number - 1].strip()


def is_product(path):
    """Whether it is C++ that users run."""
    if path.suffix not in (".cc", ".h"):
        return False
    parts = path.parent.parts
    return not re.search(r"_test$|_testing", path.stem) and not {"testing", "tests"} & set(parts)


def check(root, exceptions):
    """Returns the complaints about the sources in `root`."""
    complaints = []
    needed = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if not is_product(name) or str(name) in IMPLEMENTATIONS:
                continue
            for number, line in sorted(waits(path.read_text())):
                parts = [part for part in exceptions.get(str(name), {}) if part in line]
                needed.update((str(name), part) for part in parts)
                if not parts:
                    complaints.append(f"{name}:{number}: may wait for ever: {line}")
    for name, parts in exceptions.items():
        for part in parts:
            if (name, part) not in needed:
                complaints.append(f"{name}: has no such call any more: {part}")
    return complaints


if __name__ == "__main__":
    sys.exit(checks.main("tools/check_waits.py", lambda root: check(root, EXCEPTIONS)))
