"""External repositories made of pinned wheels from PyPI.

Where PyPI cannot be reached the repository resolves nevertheless; then the
module NAME_status has AVAILABLE = False and the REASON, and so has @NAME//:status.bzl.
See wheels.py.
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
        ] + {headers},
        allow_empty = True,
    ),
    imports = ["site-packages"],
    visibility = ["//visibility:public"],
)

filegroup(
    name = "development",
    srcs = glob({headers} + {development}, allow_empty = True),
    visibility = ["//visibility:public"],
)
"""

# pip installs these folders below the prefix of the Python installation: bin, include, lib.
_MOVE_DATA = """
for folder in site-packages/*.data/data/*; do
  if [ -e "$folder" ]; then mv "$folder" .; fi
done
"""

# Some wheels give their programs no permission to run, or to their owner only.
_MAKE_EXECUTABLE = """
shopt -s nullglob
cd site-packages
for pattern; do
  for file in $pattern; do chmod 755 "$file"; done
done
"""

# By one process with one order of sets, so that the byte code is the same each time. Unchecked, since no
# source changes. Some files are for other interpreters, and stay as they are.
_COMPILE = """
PYTHONHASHSEED=0 /usr/bin/python3 -B -m compileall -qq --invalidation-mode unchecked-hash site-packages || true
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
    if ctx.attr.executables:
        result = ctx.execute(["bash", "-euc", _MAKE_EXECUTABLE, "bash"] + ctx.attr.executables)
        if result.return_code:
            fail("@%s: %s" % (ctx.name, result.stderr))

    # Files of other build systems would hide folders from glob().
    find = ["find", "site-packages", "-name", "BUILD", "-o", "-name", "BUILD.bazel"]
    for path in ctx.execute(find).stdout.splitlines():
        ctx.delete(path)
    ctx.symlink("site-packages/%s_status.py" % ctx.name, "status.bzl")
    if ctx.attr.build_file:
        result = ctx.execute(["bash", "-euc", _MOVE_DATA])
        if result.return_code:
            fail("@%s: %s" % (ctx.name, result.stderr))
        ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    else:
        # Once, and not by the first process of each test: no test sees what another has compiled.
        ctx.execute(["bash", "-c", _COMPILE], timeout = 3600)
        ctx.file("BUILD.bazel", _BUILD.format(
            development = ["site-packages/" + path for path in ctx.attr.development],
            headers = ["site-packages/%s/**" % folder for folder in ctx.attr.headers],
            target = ctx.attr.target,
        ))

_repository = repository_rule(
    implementation = _impl,
    attrs = {
        "build_file": attr.label(allow_single_file = True),
        "development": attr.string_list(doc = "Files beside the headers to build extensions with."),
        "executables": attr.string_list(doc = "Patterns of files in site-packages that can be run."),
        "headers": attr.string_list(doc = "Folders of site-packages for the build of extensions only."),
        "pins": attr.string(mandatory = True, doc = "The part of the lock for this, as JSON."),
        "prune": attr.string_list(doc = "Folders of site-packages that are dropped."),
        "target": attr.string(),
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

def pypi_repository(target, packages, prune = [], headers = [], development = []):
    """Declares @pypi_{target}//:{target}, a py_library of several packages.

    And @pypi_{target}//:development, with what extensions are built with.

    Args:
      target: the library's name.
      packages: names of packages, pinned in lock.bzl; dependencies are not added.
      prune: folders of the packages that are dropped.
      headers: folders that are not in the library, only in :development.
      development: further files of :development.
    """
    _repository(
        name = "pypi_" + target,
        development = development,
        headers = headers,
        pins = json.encode({package: PYPI[package] for package in packages}),
        prune = prune,
        target = target,
    )

def pypi_data_repository(name, packages, build_file, prune = [], executables = []):
    """Declares @{name}, which holds the data files of wheels: bin, include, lib.

    Args:
      name: the repository's name.
      packages: the wheels' names, pinned in lock.bzl.
      build_file: the BUILD file; where a wheel cannot be had, its globs find nothing.
      prune: folders and files of site-packages that are dropped.
      executables: patterns of files in site-packages that are made executable.
    """
    if native.existing_rule(name):
        return
    _repository(
        name = name,
        build_file = Label(build_file),
        executables = executables,
        pins = json.encode({package: PYPI[package] for package in packages}),
        prune = prune,
    )
