"""Linking for machines that have an older C library than this one: wheels, the jar, the launcher.

A binary needs the versions of glibc's functions that were there when it was linked. So it is linked with an old glibc, that
of Debian 11 (2.31), and with stand-ins for what is newer than 2.28 (bazel/portable/glibc_shims.cc), while it is compiled
as everything is: objects are shared with what is linked for this machine. libstdc++ is linked in, of libgcc_s only old
symbols are used. The result runs wherever glibc is 2.28 or later; a wheel's build and tests hold it to that.

What is instrumented is for this machine, and so is all where the mirror no longer has that Debian. What is compiled for
aarch64 needs the glibc of Debian 12 (2.36).
"""

load("@old_glibc//:status.bzl", "AVAILABLE")

# The tag of the platform that such binaries are for; linux_x86_64 promises nothing.
PLATFORM = "manylinux_2_28_x86_64" if AVAILABLE else "linux_x86_64"
AARCH64_PLATFORM = "manylinux_2_36_aarch64"

_WITHOUT_OLD_GLIBC = [
    "//bazel:aarch64",
    "//bazel:asan",
    "//bazel:fuzz",
    "//bazel:tsan",
    "//bazel:ubsan",
]

_LIBRARIES = "external/old_glibc/lib"

def _with_old_glibc(values):
    if not AVAILABLE:
        return []
    return select(dict([(setting, []) for setting in _WITHOUT_OLD_GLIBC], **{"//conditions:default": values}))

PORTABLE_DEPS = _with_old_glibc(["//bazel/portable:glibc_shims"])

# For additional_linker_inputs.
PORTABLE_LINKER_INPUTS = _with_old_glibc(["@old_glibc//:files"])

# -B is where gcc looks for crt1.o and the like, before its own folders.
PORTABLE_LINKOPTS = _with_old_glibc([
    "-B%s/" % _LIBRARIES,
    "-L" + _LIBRARIES,
])
