"""C++ targets with Syncline's warnings: -Wall -Wextra -Werror.

Third-party headers come by -isystem and are not warned about.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":portable.bzl", "PORTABLE_DEPS", "PORTABLE_LINKER_INPUTS", "PORTABLE_LINKOPTS")

# The last three are false alarms of GCC 12 in inlined library code.
_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-maybe-uninitialized",
]

COPTS = _WARNINGS[:2] + ["-Werror"] + _WARNINGS[2:]

def warnings():
    """The options of what other projects build too: a warning of their compiler is no error."""
    return COPTS if native.repository_name() == "@" else _WARNINGS

# The parts of Abseil that code is written with everywhere. Every C++ target has them without naming
# them; BUILD files name what is rarer, such as absl/flags.
_ABSL = ["@com_google_absl//absl/" + part for part in [
    "algorithm:container",
    "base:core_headers",
    "cleanup",
    "container:flat_hash_map",
    "container:inlined_vector",
    "functional:function_ref",
    "memory",
    "status",
    "status:statusor",
    "strings",
    "strings:cord",
    "strings:str_format",
    "synchronization",
    "time",
    "types:optional",
    "types:span",
]]

_SANITIZER_DEPS = select({
    "//bazel:asan": ["//bazel:sanitizer_options"],
    "//bazel:tsan": ["//bazel:sanitizer_options"],
    "//conditions:default": [],
})

# For the code that every call runs through, where a small one spends its time: it takes 0.9 of it so. Not
# for code that reads what strangers send. Sanitizers and debuggers want the code as it is written.
HOT_PATH_COPTS = select({
    "//bazel:asan": [],
    "//bazel:fuzz": [],
    "//bazel:tsan": [],
    "//bazel:ubsan": [],
    "//conditions:default": [
        "-O3",
        "-fno-stack-protector",
        "-fomit-frame-pointer",
    ],
}) + select({
    "//bazel:debug": [
        "-O0",
        "-fno-omit-frame-pointer",
    ],
    "//conditions:default": [],
})

def _with_absl(deps):
    return deps + [dep for dep in _ABSL if dep not in deps]

def syncline_cc_library(name, copts = [], deps = [], **kwargs):
    """A cc_library with the warnings on, and with Abseil.

    Takes all attributes of cc_library.
    """
    cc_library(name = name, copts = warnings() + copts, deps = _with_absl(deps), **kwargs)

def syncline_cc_binary(name, copts = [], deps = [], linkopts = [], portable = False, **kwargs):
    """A cc_binary with the warnings on, and with Abseil.

    Takes all attributes of cc_binary, and `portable = True` for what is shipped: see portable.bzl.
    """
    cc_binary(
        name = name,
        additional_linker_inputs = PORTABLE_LINKER_INPUTS if portable else [],
        copts = warnings() + copts,
        linkopts = linkopts + (PORTABLE_LINKOPTS if portable else []),
        deps = _with_absl(deps) + _SANITIZER_DEPS + (PORTABLE_DEPS if portable else []),
        **kwargs
    )

def syncline_cc_test(name, deps, copts = [], main = "@googletest//:gtest_main", **kwargs):
    """A GoogleTest with the warnings on, and with Abseil.

    Takes all attributes of cc_test, and `main = None` for a test that brings its own main().
    """
    cc_test(
        name = name,
        copts = COPTS + copts,
        deps = _with_absl(deps) + [main or "@googletest//:gtest"] + _SANITIZER_DEPS,
        **kwargs
    )

def syncline_cc_tests(srcs, **kwargs):
    """A syncline_cc_test for each of `srcs`, named as its file: env_test for env_test.cc.

    Args:
      srcs: files of tests, most often glob(["*_test.cc"]).
      **kwargs: what all of them share: size, deps, data, main, ...
    """
    for src in srcs:
        syncline_cc_test(name = src[:-len(".cc")], srcs = [src], **kwargs)

def syncline_fuzz_tests(srcs, deps, **kwargs):
    """A fuzz target for each of `srcs`, named as its file: handshake_fuzz for handshake_fuzz.cc.

    An ordinary build makes a test of the target's seeds of it, --config=fuzz a program with libFuzzer: see
    core/testing/fuzz/README.md.

    Args:
      srcs: files that define syncline::fuzz::RunOne and Seeds, most often glob(["*_fuzz.cc"]).
      deps: what all of them use.
      **kwargs: what all of them share: data, linkopts, ...
    """
    for src in srcs:
        syncline_cc_test(
            name = src[:-len(".cc")],
            size = "small",
            srcs = [src],
            main = "//core/testing/fuzz:runner",
            deps = deps + ["//core/testing/fuzz"],
            **kwargs
        )
