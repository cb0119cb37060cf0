"""C++ targets with Syncline's warnings: -Wall -Wextra -Werror.

Third-party headers come by -isystem and are not warned about.
"""

# The last three are false alarms of GCC 12 in inlined library code.
COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-maybe-uninitialized",
]

_SANITIZER_DEPS = select({
    "//bazel:asan": ["//bazel:sanitizer_options"],
    "//bazel:tsan": ["//bazel:sanitizer_options"],
    "//conditions:default": [],
})

def syncline_cc_library(name, copts = [], **kwargs):
    """A cc_library with the warnings on.

    Takes all attributes of cc_library.
    """
    native.cc_library(name = name, copts = COPTS + copts, **kwargs)

def syncline_cc_binary(name, copts = [], deps = [], **kwargs):
    """A cc_binary with the warnings on.

    Takes all attributes of cc_binary.
    """
    native.cc_binary(name = name, copts = COPTS + copts, deps = deps + _SANITIZER_DEPS, **kwargs)

def syncline_cc_test(name, deps, copts = [], main = "@googletest//:gtest_main", **kwargs):
    """A GoogleTest with the warnings on; `main = None` for one that brings its own main().

    Takes all attributes of cc_test.
    """
    native.cc_test(
        name = name,
        copts = COPTS + copts,
        deps = deps + ([main] if main else ["@googletest//:gtest"]) + _SANITIZER_DEPS,
        **kwargs
    )
