"""External repositories made of pinned Debian packages.

Nothing is installed and no root is needed: the packages are downloaded with
apt, verified by the lock's SHA-256, and unpacked. See fetch.py and lock.bzl.
"""

load(":lock.bzl", "BINARY", "SOURCE")

def _python(ctx, script, *args, **kwargs):
    """Returns why the script failed, where `may_fail`."""
    result = ctx.execute(
        ["/usr/bin/python3", "-B", ctx.path(script)] + list(args),
        timeout = 1800,
        environment = {"LC_ALL": "C.UTF-8"},
    )
    if result.return_code and kwargs.get("may_fail"):
        return (result.stdout + result.stderr).strip()
    if result.return_code:
        fail("@%s: %s%s" % (ctx.name, result.stdout, result.stderr))
    for line in result.stdout.splitlines():
        print("@%s: %s" % (ctx.name, line))  # buildifier: disable=print
    return None

def _shell(ctx, command, *args):
    result = ctx.execute(["bash", "-euc", command, "bash"] + list(args))
    if result.return_code:
        fail("@%s: %s: %s%s" % (ctx.name, command, result.stdout, result.stderr))

_STRIP = """
mv "$1" .keep
find . -mindepth 1 -maxdepth 1 ! -name .keep -exec rm -rf {} +
find .keep -mindepth 1 -maxdepth 1 -exec mv -t . {} +
rmdir .keep
"""

_PATCH = 'patch --strip=1 --silent --no-backup-if-mismatch < "$1"'

def _finish(ctx):
    """Strips, patches, relocates, and adds the BUILD file."""
    if ctx.attr.strip_prefix:
        _shell(ctx, _STRIP, ctx.attr.strip_prefix)
    for patch in ctx.attr.patches:
        _shell(ctx, _PATCH, ctx.path(patch))
    for command in ctx.attr.patch_cmds:
        _shell(ctx, command)
    if ctx.attr.patchelf:
        _python(ctx, ctx.attr._relocate, ctx.path(ctx.attr.patchelf))
    if ctx.attr.build_file:
        ctx.delete("BUILD")
        ctx.delete("BUILD.bazel")
        ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    elif ctx.attr.build_file_content:
        ctx.file("BUILD.bazel", ctx.attr.build_file_content)

def _impl(ctx):
    ctx.path(ctx.attr._apt)  # Fetch again when it changes.
    optional = bool(ctx.attr.without)
    reason = _python(ctx, ctx.attr._fetch, ctx.attr.kind, ctx.attr.pins, may_fail = optional)
    if reason:
        print("@%s: %s: %s" % (ctx.name, ctx.attr.without, reason))  # buildifier: disable=print
        ctx.file("BUILD.bazel", 'filegroup(name = "files", visibility = ["//visibility:public"])')
    else:
        _finish(ctx)
    if optional:
        ctx.file("status.bzl", "AVAILABLE = %s\n" % (not reason))

_repository = repository_rule(
    implementation = _impl,
    attrs = {
        "build_file": attr.label(allow_single_file = True),
        "build_file_content": attr.string(),
        "kind": attr.string(values = ["binary", "source"], mandatory = True),
        "patch_cmds": attr.string_list(doc = "Shell commands, run in the root after unpacking."),
        "patches": attr.label_list(
            allow_files = [".patch"],
            doc = "Applied in the root after unpacking, before patch_cmds.",
        ),
        "patchelf": attr.label(doc = "Set: ELF files find each other by rpath."),
        "pins": attr.string(mandatory = True, doc = "The part of the lock for this, as JSON."),
        "without": attr.string(
            doc = "What is so where the packages cannot be had, which then is no error: @{name}//:status.bzl has " +
                  "AVAILABLE, and //:files are none.",
        ),
        "strip_prefix": attr.string(doc = "The folder that becomes the root; the rest is dropped."),
        "_apt": attr.label(default = "//third_party/deb:apt.py"),
        "_fetch": attr.label(default = "//third_party/deb:fetch.py"),
        "_relocate": attr.label(default = "//third_party/deb:relocate.py"),
    },
    environ = ["SYNCLINE_DEB_CACHE", "SYNCLINE_LOCKED", "XDG_CACHE_HOME"],
)

def _aliases_impl(ctx):
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

_aliases_repository = repository_rule(
    implementation = _aliases_impl,
    attrs = {"build_file": attr.label(allow_single_file = True, mandatory = True)},
)

def aliases_repository(name, build_file):
    """Declares a repository that gives targets of others the names that Bazel knows.

    Args:
      name: the repository's name.
      build_file: the BUILD file, which is all that it has.
    """
    if not native.existing_rule(name):
        _aliases_repository(name = name, build_file = Label(build_file))

def _declare(name, build_file = None, patches = [], **kwargs):
    """Declares @{name}, unless the user's workspace has one of this name already.

    Labels of build_file and patches are of this repository, whichever workspace calls.
    """
    if native.existing_rule(name):
        return
    _repository(
        name = name,
        build_file = Label(build_file) if build_file else None,
        patches = [Label(patch) for patch in patches],
        **kwargs
    )

def deb_repository(name, packages, relocate = False, **kwargs):
    """Declares a repository that holds the files of binary packages.

    Args:
      name: the repository's name.
      packages: names of packages, pinned in lock.bzl; PACKAGE/SUITE is that of another suite.
      relocate: whether the ELF files shall find each other by rpath.
      **kwargs: build_file or build_file_content, strip_prefix, patch_cmds, without.
    """
    _declare(
        name = name,
        kind = "binary",
        pins = json.encode({package: BINARY[package] for package in packages}),
        patchelf = "@patchelf//:usr/bin/patchelf" if relocate else None,
        **kwargs
    )

def deb_source_repository(name, source, **kwargs):
    """Declares a repository that holds a source package, with Debian's patches applied.

    Args:
      name: the repository's name.
      source: the source package's name, pinned in lock.bzl.
      **kwargs: build_file or build_file_content, strip_prefix, patches, patch_cmds.
    """
    _declare(
        name = name,
        kind = "source",
        pins = json.encode({source: SOURCE[source]}),
        **kwargs
    )
