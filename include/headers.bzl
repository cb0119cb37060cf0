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

def each_alone(headers):
    """Sources that each include one header alone, since it may be the first that a program includes.

    Args:
      headers: their files, "syncline/<name>.h".

    Returns:
      the names of the sources.
    """
    sources = []
    for header in headers:
        name = header[len("syncline/"):-len(".h")] + "_alone"
        sources.append(name + ".cc")
        native.genrule(
            name = name,
            outs = [name + ".cc"],
            cmd = "echo '#include \"%s\"' > $@" % header,
        )
    return sources
