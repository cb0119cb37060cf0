"""A program with the stand-ins does the same on this machine's C library and on the old one."""

import math
import os
import signal
import subprocess

import pytest

PROGRAM = os.path.abspath("bazel/portable/shims_program")
OLD = os.path.abspath("../old_glibc/lib")

pytestmark = pytest.mark.skipif(
    not os.path.exists(OLD), reason="the mirror no longer has the old C library"
)


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_old_glibc():
    return said(OLD + "/ld-linux-x86-64.so.2", "--library-path", OLD, PROGRAM)


def test_both_c_libraries_give_the_same():
    assert on_old_glibc() == said(PROGRAM)


def test_it_is_what_is_right():
    lines = dict(line.split(" ", 1) for line in on_old_glibc().splitlines())
    x = 2.5
    expected = (math.exp(x), 2**x, math.log(x), math.log2(x), x**1.5)
    assert lines["exp"] == "%.17g %.17g log %.17g %.17g pow %.17g" % expected
    assert lines["edges"] == "-inf nan inf inf" or lines["edges"] == "-inf -nan inf inf"
    waits = (lines["condition"], lines["mutex"], lines["notified"])
    assert waits == ("as said", "as said", "1")
    assert lines["references"] == "1" and lines["random"] == "1"


def test_signals_have_their_names():
    names = said(PROGRAM).splitlines()[-1].split()
    known = {each.value: each.name[len("SIG") :] for each in signal.Signals}
    # Python has both of two names for one number; glibc the more common.
    assert names[6] == "ABRT" and names[17] == "CHLD" and names[29] == "POLL"
    for number in set(range(1, 32)) - {6, 16, 17, 29}:
        assert names[number] == known[number]
    assert names[0] == "-" and names[32] == "-" and names[16] == "STKFLT"
