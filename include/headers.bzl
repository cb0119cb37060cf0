"""The headers of the C++ API, which programs include as "syncline/<name>.h"."""

load("//bazel:cc.bzl", "syncline_cc_library")

def public_headers(name, headers, deps = []):
    """The headers that one component implements.

    Args:
      name: of the target, and of the component.
      headers: their names, without folder and ".h".
      deps: other such targets.
    """
    syncline_cc_library(
        name = name,
        hdrs = ["syncline/%s.h" % header for header in headers],
        strip_include_prefix = "/include",
        visibility = ["//visibility:public"],
        deps = deps,
    )
