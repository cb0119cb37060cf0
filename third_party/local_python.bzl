"""@local_python: the headers of a CPython of this machine, which SYNCLINE_PYTHON names.

    ./bazelw build --repo_env=SYNCLINE_PYTHON=$(which python3.12) //python:wheel_local

It may be any CPython from 3.11 on that has its headers. Where there is none, what needs them fails, and says why; nothing else
does.
"""

_ASK = """
import os, sys, sysconfig
include = sysconfig.get_path("include")
version = "%d.%d" % sys.version_info[:2]
if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
    sys.exit("%s is %s %s, not CPython 3.11 or later" % (sys.executable, sys.implementation.name, version))
if sysconfig.get_config_var("Py_GIL_DISABLED") or hasattr(sys, "gettotalrefcount"):
    sys.exit("%s is a build without the GIL, or one for debugging" % sys.executable)
if not os.path.exists(os.path.join(include, "Python.h")):
    sys.exit("Python's headers are not in " + include)
print("cp%d%d" % sys.version_info[:2])
print(include)
print(sysconfig.get_path("platinclude"))
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include/python"],
)
"""

_WITHOUT = """
load("@rules_cc//cc:defs.bzl", "cc_library")

genrule(
    name = "missing",
    outs = ["Python.h"],
    cmd = "echo '//python:wheel_local: {reason}. --repo_env=SYNCLINE_PYTHON=<path> names another interpreter.' >&2; false",
    tags = ["manual"],
)

cc_library(
    name = "headers",
    hdrs = [":missing"],
    tags = ["manual"],
    visibility = ["//visibility:public"],
)
"""

def _impl(ctx):
    python = ctx.os.environ.get("SYNCLINE_PYTHON", "/usr/bin/python3")
    asked = ctx.execute(["/bin/sh", "-c", "exec \"$@\"", "sh", python, "-I", "-c", _ASK])
    if asked.return_code:
        reason = asked.stderr.strip().replace("'", "").replace("\n", " ")
        ctx.file("BUILD.bazel", _WITHOUT.format(reason = reason.replace("\\", "").replace('"', "").replace("$", "")))
        ctx.file("defs.bzl", 'PYTHON_TAG = "none"\n')
        return
    tag, include, platform_include = asked.stdout.splitlines()
    copy = "mkdir include && cp -rL \"$1\" include/python && cp -rLn \"$2\"/. include/python"
    copied = ctx.execute(["bash", "-euc", copy, "bash", include, platform_include])
    if copied.return_code:
        fail("@%s: %s" % (ctx.name, copied.stderr))
    ctx.file("BUILD.bazel", _BUILD)
    ctx.file("defs.bzl", 'PYTHON_TAG = "%s"\n' % tag)

local_python_repository = repository_rule(
    doc = "See above.",
    implementation = _impl,
    environ = ["SYNCLINE_PYTHON"],
)
