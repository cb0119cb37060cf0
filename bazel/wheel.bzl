"""A wheel of Python libraries with extensions, for machines that have nothing but pip."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _package_files(ctx):
    """Returns ({path in the wheel: file}, [shared libraries that lie elsewhere])."""
    files, libraries = {}, []
    for library in ctx.attr.libraries:
        runfiles = library[DefaultInfo].default_runfiles.files
        for file in depset(transitive = [library[DefaultInfo].files, runfiles]).to_list():
            if file.short_path.startswith(ctx.attr.strip_prefix):
                files[file.short_path[len(ctx.attr.strip_prefix):]] = file
            elif ".so" in file.basename:
                libraries.append(file)
            elif file.owner.workspace_name == "" and file.extension in ("py", "pyi"):
                fail("%s is outside of %s: where in the wheel?" % (file.short_path, ctx.attr.strip_prefix))
    return files, libraries

def _license_path(file):
    """LICENSE of this workspace; re2/LICENSE, libssl-dev/copyright of others."""
    return file.basename if not file.owner.workspace_name else "/".join(file.path.split("/")[-2:])

def _impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    files, libraries = _package_files(ctx)
    for target, path in ctx.attr.files.items():
        files[path] = target[DefaultInfo].files.to_list()[0]

    # The runtime of a sanitizer is the machine's, and needs the symbols.
    sanitized = any(["-fsanitize" in option for option in ctx.fragments.cpp.linkopts])
    platform = "linux_x86_64" if sanitized else ctx.attr.platform
    tag = "%s-%s-%s" % (ctx.attr.python_tag, ctx.attr.python_tag, platform)
    wheel = ctx.actions.declare_file(
        "%s/%s-%s-%s.whl" % (ctx.label.name, ctx.attr.distribution, ctx.attr.version, tag),
    )
    spec = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(spec, json.encode({
        "description": ctx.file.description.path,
        "distribution": ctx.attr.distribution,
        "entry_points": ctx.attr.entry_points,
        "files": {path: file.path for path, file in files.items()},
        "libraries": [file.path for file in libraries],
        "licenses": {_license_path(file): file.path for file in ctx.files.licenses},
        "metadata": ctx.attr.metadata,
        "platform": platform,
        "tag": tag,
        "tools": {
            "objdump": toolchain.objdump_executable,
            "patchelf": ctx.executable._patchelf.path,
            "strip": toolchain.strip_executable,
        },
        "version": ctx.attr.version,
    }))
    ctx.actions.run(
        executable = ctx.executable._builder,
        arguments = [spec.path, wheel.path],
        inputs = depset(
            [spec, ctx.file.description] + files.values() + libraries + ctx.files.licenses,
            transitive = [toolchain.all_files],
        ),
        tools = [ctx.executable._patchelf],
        outputs = [wheel],
        env = {"LC_ALL": "C.UTF-8"},
        mnemonic = "Wheel",
        progress_message = "Packing %s" % wheel.basename,
    )
    return [DefaultInfo(files = depset([wheel]), runfiles = ctx.runfiles([wheel]))]

python_wheel = rule(
    doc = """bazel-bin/<package>/<name>/<distribution>-<version>-<tags>.whl.

It holds what lies under `strip_prefix` of all that the libraries need: sources, stubs, data,
extensions; and, under <distribution>.libs, the shared libraries that these load and that are not
the platform's. Python packages of other repositories are not in it. See
python/packaging/build_wheel.py.""",
    implementation = _impl,
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    attrs = {
        "description": attr.label(
            allow_single_file = [".md"],
            doc = "The long description.",
            mandatory = True,
        ),
        "distribution": attr.string(mandatory = True),
        "entry_points": attr.string_dict(doc = "{group/name: module:function}, as console_scripts/syncline-run."),
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "More files: {label: path in the wheel}.",
        ),
        "libraries": attr.label_list(providers = [PyInfo]),
        "licenses": attr.label_list(
            allow_files = True,
            doc = "Of the distribution and of all that is linked in or bundled.",
        ),
        "metadata": attr.string_list(doc = "Further fields of METADATA."),
        "platform": attr.string(
            doc = "Checked, but that of a sanitizer's build, which is this machine's: linux_x86_64.",
            mandatory = True,
        ),
        "python_tag": attr.string(
            doc = "The interpreter, and the ABI, of the extensions: cp311.",
            mandatory = True,
        ),
        "strip_prefix": attr.string(mandatory = True),
        "version": attr.string(mandatory = True),
        "_builder": attr.label(
            cfg = "exec",
            default = "//python/packaging:build_wheel",
            executable = True,
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_patchelf": attr.label(
            allow_single_file = True,
            cfg = "exec",
            default = "@patchelf//:usr/bin/patchelf",
            executable = True,
        ),
    },
)
