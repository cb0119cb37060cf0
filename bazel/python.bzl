"""Python extensions and pytest tests, run by /usr/bin/python3."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load(":cc.bzl", "COPTS")
load(":portable.bzl", "PORTABLE_DEPS", "PORTABLE_LINKER_INPUTS", "PORTABLE_LINKOPTS")

def pybind_extension(
        name,
        srcs,
        deps = [],
        copts = [],
        imports = ["."],
        pybind11 = "@pybind11",
        visibility = None,
        tags = [],
        **kwargs):
    """A pybind11 module: a py_library `name` and the file `name`.so.

    Only PyInit_* is exported; all libraries linked in stay hidden. Shared ones,
    if there are any, are found in the runfiles, or beside the module. It is linked for older machines, see portable.bzl.

    Args:
      name: the module's name.
      srcs: C++ sources.
      deps: C++ libraries; pybind11 is added, with the headers of the interpreter.
      copts: further compiler options.
      imports: as for py_library.
      pybind11: the target of pybind11.
      visibility: of both targets.
      tags: of both targets.
      **kwargs: further attributes of cc_binary.
    """
    cc_binary(
        name = name + ".so",
        srcs = srcs,
        additional_linker_inputs = ["//bazel:export_python.lds"] + PORTABLE_LINKER_INPUTS,
        copts = COPTS + ["-fvisibility=hidden"] + copts,
        linkopts = [
            "-Wl,--exclude-libs,ALL",
            "-Wl,--version-script=$(location //bazel:export_python.lds)",
            "-Wl,-Bsymbolic",
            "-Wl,-rpath,'$$ORIGIN'",
        ] + PORTABLE_LINKOPTS,
        linkshared = True,
        linkstatic = True,
        tags = tags,
        visibility = visibility,
        deps = deps + [pybind11] + PORTABLE_DEPS,
        **kwargs
    )
    native.py_library(
        name = name,
        data = [name + ".so"],
        imports = imports,
        tags = tags,
        visibility = visibility,
    )

# The interpreter is not instrumented, so the runtime of a sanitizer must be there before it loads an
# extension that is. What the interpreter never frees is no leak of ours, and what it and its libraries
# do among themselves is not to be judged.
def _test_env(env):
    return select({
        "//bazel:asan": dict(
            env,
            ASAN_OPTIONS = "detect_leaks=0",
            LD_PRELOAD = "libasan.so.8:libstdc++.so.6",
        ),
        "//bazel:tsan": dict(
            env,
            LD_PRELOAD = "libtsan.so.2:libstdc++.so.6",
            TSAN_OPTIONS = "ignore_noninstrumented_modules=1",
        ),
        "//conditions:default": env,
    })

# Whatever the machine's user has in a cache.
_ENV = {"SYNCLINE_TORCH_NATIVE": "off"}

def syncline_py_test(name, srcs, deps = [], args = [], env = _ENV, **kwargs):
    """A test run by pytest over all of `srcs`, which prints why it skipped tests.

    Args:
      name: the target's name.
      srcs: files of tests, and a conftest.py if there is one.
      deps: Python libraries; pytest is added.
      args: further arguments of pytest.
      env: variables; by default those of the backend for torch in Python.
      **kwargs: further attributes of py_test.
    """
    tests = [src for src in srcs if not src.endswith("conftest.py")]
    native.py_test(
        name = name,
        srcs = srcs + ["//bazel:pytest_main.py"],
        args = ["$(location %s)" % test for test in tests] + args,
        env = _test_env(env),
        main = "//bazel:pytest_main.py",
        python_version = "PY3",
        deps = deps + ["@py_pytest//:pytest"],
        **kwargs
    )

def syncline_py_tests(srcs, **kwargs):
    """A syncline_py_test for each of `srcs`, named as its file: errors_test for errors_test.py.

    Args:
      srcs: files of tests, most often glob(["*_test.py"]).
      **kwargs: what all of them share: size, deps, data, ...
    """
    for src in srcs:
        syncline_py_test(name = src[:-len(".py")], srcs = [src], **kwargs)
