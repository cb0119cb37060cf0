"""The headers of the C++ API, which programs include as "syncline/<name>.h"."""

load("//bazel:cc.bzl", "syncline_cc_library")
load("//bazel:version.bzl", "VERSION")

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

_VERSION_HEADER = """// The version of these headers. Info::Version() of syncline/info.h is that of the library.
#ifndef SYNCLINE_VERSION_H_
#define SYNCLINE_VERSION_H_

#define SYNCLINE_VERSION "{version}"
#define SYNCLINE_VERSION_MAJOR {major}
#define SYNCLINE_VERSION_MINOR {minor}
#define SYNCLINE_VERSION_PATCH {patch}

#endif  // SYNCLINE_VERSION_H_
"""

def version_header(path):
    """The header with the version of bazel/version.bzl, for preprocessors.

    Args:
      path: of the header.
    """
    major, minor, patch = VERSION.split(".")
    native.genrule(
        name = "make_version_header",
        outs = [path],
        cmd = "cat > $@ << 'END'\n%sEND" % _VERSION_HEADER.format(
            major = major,
            minor = minor,
            patch = patch,
            version = VERSION,
        ),
    )
