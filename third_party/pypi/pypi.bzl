"""External repositories made of pinned wheels from PyPI.

Where PyPI cannot be reached the repository resolves nevertheless; then the
module NAME_status has AVAILABLE = False and the REASON. See wheels.py.
"""

load(":lock.bzl", "PYPI")

_BUILD = """
py_library(
    name = "{target}",
    srcs = glob(["site-packages/**/*.py"]),
    data = glob(
        ["site-packages/**"],
        exclude = [
            "site-packages/**/*.py",
            "site-packages/**/* *",
        ],
        allow_empty = True,
    ),
    imports = ["site-packages"],
    visibility = ["//visibility:public"],
)
"""

def _impl(ctx):
    fetch = ctx.path(ctx.attr._fetch)
    pip = ctx.path(ctx.attr._pip)
    command = ["/usr/bin/python3", "-B", fetch, pip, ctx.name, ctx.attr.pins]
    result = ctx.execute(command, timeout = 3600)
    if result.return_code:
        fail("@%s: %s%s" % (ctx.name, result.stdout, result.stderr))
    for line in result.stdout.splitlines():
        print("@%s: %s" % (ctx.name, line))  # buildifier: disable=print
    for folder in ctx.attr.prune:
        ctx.delete("site-packages/" + folder)

    # Files of other build systems would hide folders from glob().
    find = ["find", "site-packages", "-name", "BUILD", "-o", "-name", "BUILD.bazel"]
    for path in ctx.execute(find).stdout.splitlines():
        ctx.delete(path)
    ctx.file("BUILD.bazel", _BUILD.format(target = ctx.attr.target))

_repository = repository_rule(
    implementation = _impl,
    attrs = {
        "pins": attr.string(mandatory = True, doc = "The part of the lock for this, as JSON."),
        "prune": attr.string_list(doc = "Folders of site-packages that are dropped."),
        "target": attr.string(mandatory = True),
        "_fetch": attr.label(default = "//third_party/pypi:wheels.py"),
        "_pip": attr.label(default = "@pip//:pip.whl"),
    },
    environ = [
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_INDEX_URL",
        "SYNCLINE_LOCKED",
        "XDG_CACHE_HOME",
    ],
)

def pypi_repository(target, packages, prune = []):
    """Declares @pypi_{target}//:{target}, a py_library of several packages.

    Args:
      target: the library's name.
      packages: names of packages, pinned in lock.bzl; dependencies are not added.
      prune: folders of the packages that are dropped.
    """
    _repository(
        name = "pypi_" + target,
        pins = json.encode({package: PYPI[package] for package in packages}),
        prune = prune,
        target = target,
    )
