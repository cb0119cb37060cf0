"""Jobs whose connections are encrypted, and launchers that refuse one that would not be."""

import os
import re
import socket
import stat

import pytest

from launch.job_for_tests import DEADLINE, RUN, wait_until

# All ranks exchange a value over sockets, and say what they found in their environment.
EXCHANGE = """
import os
import numpy as np
import syncline as dist

dist.init_process_group("tcp")
value = np.array([dist.get_rank() + 1.0])
dist.all_reduce(value)
tls = {name[13:]: value for name, value in os.environ.items() if name.startswith("SYNCLINE_TLS_")}
print("sum", value[0], os.environ.get("SYNCLINE_TLS"), sorted(tls), tls.get("KEY"))
dist.destroy_process_group()
"""
SAY = ["--no-python", "/bin/sh", "-c", 'echo "rank $RANK: $SYNCLINE_TLS"']


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret that all nodes of this job have")
    path.chmod(0o600)
    return {"SYNCLINE_SECRET_FILE": str(path)}


@pytest.fixture
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def exchange(launch, tmp_path):
    (tmp_path / "script.py").write_text(EXCHANGE)
    return lambda *options, **kwargs: launch(*options, "script.py", program=RUN, **kwargs)


def lines_of(out):
    return sorted(re.sub(r"^\[.*?\]: ", "", line) for line in out.splitlines())


def test_throw_away_certificates_end_with_the_job(exchange):
    code, out, err = exchange("--nproc-per-node=2", "--tls=throw-away").finish()
    assert code == 0, err
    lines = lines_of(out)
    assert len(lines) == 2 and lines[0] == lines[1]
    found = re.fullmatch(
        r"sum 3\.0 certificates \['CA', 'CERT', 'KEY', 'PEER_NAME'\] (\S+)", lines[0]
    )
    assert found, lines
    assert not os.path.exists(os.path.dirname(found[1]))


def test_one_node_has_a_secret_of_its_own(exchange):
    code, out, err = exchange("--nproc-per-node=2", "--tls=secret").finish()
    assert code == 0, err
    assert lines_of(out) == ["sum 3.0 secret [] None"] * 2


def test_the_variable_is_the_option(exchange):
    code, out, err = exchange("--nproc-per-node=2", env={"SYNCLINE_TLS": "throw-away"}).finish()
    assert code == 0, err
    assert all(line.startswith("sum 3.0 certificates ") for line in lines_of(out))
    code, out, err = exchange("--tls=off", env={"SYNCLINE_TLS": "throw-away"}).finish()
    assert code == 0, err
    assert lines_of(out) == ["sum 1.0 None [] None"]


def finish_all(nodes):
    """What each has said; they share a temporary folder, which is empty once all have ended."""
    for node in nodes:
        node.process.wait(DEADLINE)
    return [node.finish() for node in nodes]


def endpoint(port):
    return ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d"]


def test_nodes_with_one_secret_are_one_job(exchange, secret, free_port):
    nodes = [exchange(*endpoint(free_port), "--tls=secret", env=secret) for _ in range(2)]
    for code, out, err in finish_all(nodes):
        assert code == 0, err
        assert lines_of(out) == ["sum 3.0 secret [] None"]


def test_certificates_are_made_for_all_nodes(exchange, launch, tmp_path, free_port):
    code, out, err = launch("--make-certificates=certificates").finish()
    assert code == 0, err
    options = re.search(r"\n  (--tls=certificates .*)\n", out)[1].split()
    assert str(tmp_path / "certificates") in options[1]
    for name in ("ca.pem", "cert.pem", "key.pem"):
        assert stat.S_IMODE((tmp_path / "certificates" / name).stat().st_mode) == 0o600
    nodes = [exchange(*endpoint(free_port), *options) for _ in range(2)]
    for code, out, err in finish_all(nodes):
        assert code == 0, err
        assert lines_of(out)[0].startswith("sum 3.0 certificates")


def test_certificates_that_exist_are_not_overwritten(launch, tmp_path):
    (tmp_path / "certificates").mkdir()
    key = tmp_path / "certificates" / "key.pem"
    key.write_text("the user's own")
    code, out, err = launch("--make-certificates=certificates").finish()
    assert (code, out) == (2, ""), err
    assert "'certificates/key.pem' exists already and is not overwritten" in err
    assert key.read_text() == "the user's own"
    assert [path.name for path in key.parent.iterdir()] == ["key.pem"]


def test_a_node_that_does_not_encrypt_is_refused(exchange, secret, free_port):
    first = exchange(*endpoint(free_port), "--tls=secret", env=secret)
    second = exchange(*endpoint(free_port), env=secret)
    # Either may serve the rendezvous, and then waits for another node.
    ended = []

    def one_has_ended():
        ended.extend(node for node in (first, second) if node.process.poll() is not None)
        return ended

    wait_until(one_has_ended, "a node is refused")
    for node in (first, second):
        if node is not ended[0]:
            node.process.terminate()
            node.process.wait(DEADLINE)
    code, out, err = ended[0].finish()
    assert code == 1
    assert "SYNCLINE_TLS is" in err and "it must be the same in every process of the job" in err


def test_a_status_that_is_refused_is_an_error(launch, secret, free_port):
    job = launch(*endpoint(free_port), "--tls=secret", *SAY, env=secret)
    answers = []

    def is_refused():
        answers.append(launch("status", f"127.0.0.1:{free_port}", env=secret).finish())
        return "SYNCLINE_TLS is off in this process and secret where" in answers[-1][2]

    wait_until(is_refused, "a rendezvous that refuses a status")
    assert answers[-1][:2] == (1, "")
    job.process.terminate()
    job.finish()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--tls=yes"], "It is one of off, secret, certificates, throw-away"),
        (["--tls=certificates"], "SYNCLINE_TLS_CERT must name a file"),
        (["--tls-cert=c.pem"], "SYNCLINE_TLS_CERT has no effect"),
        (
            ["--tls=certificates", "--tls-cert=c", "--tls-key=k", "--tls-ca=a"],
            "which SYNCLINE_TLS_CERT names, cannot be used: No such file",
        ),
        (["--tls=throw-away", *endpoint(1)], "--tls=throw-away is for one node"),
        (["--tls=secret", "--rdzv-id=j", *endpoint(1)], "by SYNCLINE_SECRET_FILE"),
        (
            [
                "--tls=secret",
                "--nnodes=2",
                "--rdzv-backend=etcd",
                "--rdzv-endpoint=h",
                "--rdzv-id=j",
            ],
            "needs an encrypted way to etcd",
        ),
    ],
)
def test_what_would_not_be_encrypted_does_not_start(launch, options, message):
    code, out, err = launch(*options, *SAY).finish()
    assert (code, out) == (2, ""), err
    assert message in err
