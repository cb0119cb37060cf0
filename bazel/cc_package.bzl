"""The C++ API for programs of other build systems: libraries, headers, and what finds them."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _archives(ctx):
    """Returns (Syncline's own archives, Abseil's, those of others, linker options), in the linker's order."""
    own, abseil, others, flags = [], [], [], []
    seen = {}
    for linker_input in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        workspace = linker_input.owner.workspace_name
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if not archive:
                fail("%s is no static library: the package could not be moved" % linker_input.owner)
            if archive.path in seen:
                continue
            seen[archive.path] = True
            if workspace == ctx.label.workspace_name:
                own.append(archive)
            elif workspace == "com_google_absl":
                abseil.append(archive)
            else:
                others.append(archive)
        for flag in linker_input.user_link_flags:
            if flag not in flags:
                flags.append(flag)
    return own, abseil, others, flags

def _shared_library(ctx, toolchain):
    """Declares lib<name>.so with all archives, of which it shows what `exports` says."""
    own, abseil, others, flags = _archives(ctx)
    output = ctx.actions.declare_file("%s/lib%s.so" % (ctx.label.name, ctx.attr.library_name))
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s", use_always = True)
    arguments.set_param_file_format("multiline")
    arguments.add("-shared")
    arguments.add("-o", output)
    arguments.add("-fuse-ld=gold")
    arguments.add("-Wl,-soname,lib%s.so.%s" % (ctx.attr.library_name, ctx.attr.soversion))
    arguments.add(ctx.file.exports, format = "-Wl,--version-script=%s")
    arguments.add_all(["-Wl,-z,defs", "-Wl,-z,relro,-z,now", "-Wl,--strip-all"])

    # Registrations, and what only headers refer to.
    arguments.add("-Wl,--whole-archive")
    arguments.add_all(own + abseil)
    arguments.add_all(["-Wl,--no-whole-archive", "-Wl,--start-group"])
    arguments.add_all(others)
    arguments.add("-Wl,--end-group")
    arguments.add_all(flags)
    arguments.add_all(ctx.fragments.cpp.linkopts)
    arguments.add_all(["-lstdc++", "-lm"])
    ctx.actions.run(
        executable = toolchain.compiler_executable,
        arguments = [arguments],
        inputs = depset(
            own + abseil + others + [ctx.file.exports],
            transitive = [toolchain.all_files],
        ),
        outputs = [output],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "CcPackageLink",
        progress_message = "Linking %s" % output.short_path,
    )
    return output

def _static_library(ctx, toolchain):
    """Declares lib<name>.a: one object of all that is Syncline's, and the objects of others."""
    own, abseil, others, _ = _archives(ctx)
    output = ctx.actions.declare_file("%s/lib%s.a" % (ctx.label.name, ctx.attr.library_name))
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s", use_always = True)
    arguments.set_param_file_format("multiline")
    arguments.add("--ar", toolchain.ar_executable)
    arguments.add("--ld", toolchain.ld_executable)
    arguments.add("--output", output)
    arguments.add_all("--whole", own)
    arguments.add_all("--others", abseil + others)
    ctx.actions.run(
        executable = ctx.executable._merge,
        arguments = [arguments],
        inputs = depset(own + abseil + others, transitive = [toolchain.all_files]),
        outputs = [output],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "CcPackageArchive",
        progress_message = "Merging %s" % output.short_path,
    )
    return output

def _headers(ctx):
    """Returns {path below include: file} of the public headers and of those of Abseil that they include."""
    paths = {}
    for file in ctx.attr.headers[CcInfo].compilation_context.headers.to_list():
        if file.owner.workspace_name == "com_google_absl":
            paths["include/syncline-abseil/absl/" + file.path.rpartition("/absl/")[2]] = file
        elif file.owner.workspace_name != ctx.label.workspace_name:
            fail("%s is neither ours nor Abseil's" % file.path)
        else:
            paths["include/syncline/" + file.path.rpartition("/syncline/")[2]] = file
    return paths

def _license_path(ctx, file):
    """LICENSE of this workspace; re2/LICENSE, libssl-dev/copyright of others."""
    if file.owner.workspace_name == ctx.label.workspace_name:
        return file.basename
    return "/".join(file.path.split("/")[-2:])

def _impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    name, version = ctx.attr.library_name, ctx.attr.version
    full = "lib%s.so.%s" % (name, version)
    files = _headers(ctx)
    files["lib/" + full] = _shared_library(ctx, toolchain)
    files["lib/lib%s.a" % name] = _static_library(ctx, toolchain)
    for target, path in ctx.attr.files.items():
        files[path] = target[DefaultInfo].files.to_list()[0]
    for file in ctx.files.licenses:
        files["share/doc/%s/licenses/%s" % (name, _license_path(ctx, file))] = file
    archive = ctx.actions.declare_file("%s/%s-%s-linux-x86_64.tar.gz" % (ctx.label.name, name, version))
    debian = ctx.actions.declare_file("%s/%s-dev_%s_amd64.deb" % (ctx.label.name, name, version))
    spec = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(spec, json.encode({
        "files": {path: file.path for path, file in files.items()},
        "links": {
            "lib/lib%s.so" % name: "lib%s.so.%s" % (name, ctx.attr.soversion),
            "lib/lib%s.so.%s" % (name, ctx.attr.soversion): full,
        },
        "name": name,
        "objdump": toolchain.objdump_executable,
        "version": version,
    }))
    ctx.actions.run(
        executable = ctx.executable._build,
        arguments = [spec.path, archive.path, debian.path],
        inputs = depset([spec] + files.values(), transitive = [toolchain.all_files]),
        outputs = [archive, debian],
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        mnemonic = "CcPackage",
        progress_message = "Packing %s" % archive.basename,
    )
    return [DefaultInfo(files = depset([archive, debian]), runfiles = ctx.runfiles([archive, debian]))]

cc_package = rule(
    doc = """bazel-bin/<package>/<name>/<library>-<version>-linux-x86_64.tar.gz, and a package for Debian of the same files.

A folder with bin, include, lib and share, which may lie anywhere. The shared library shows what `exports` lets
through, and needs nothing but the C and C++ runtimes; the static one has everything visible. See
package/README.md.""",
    implementation = _impl,
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    attrs = {
        "exports": attr.label(
            allow_single_file = [".lds"],
            doc = "The version script of the shared library.",
            mandatory = True,
        ),
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "More files: {label: path in the package}. In those called *.in, @VERSION@ is replaced.",
        ),
        "headers": attr.label(
            doc = "What programs include.",
            mandatory = True,
            providers = [CcInfo],
        ),
        "library": attr.label(
            doc = "What is linked, with all that it depends on.",
            mandatory = True,
            providers = [CcInfo],
        ),
        "library_name": attr.string(mandatory = True),
        "licenses": attr.label_list(
            allow_files = True,
            doc = "Of the library and of all that is linked in.",
        ),
        "soversion": attr.string(
            doc = "The part of the version that programs are bound to.",
            mandatory = True,
        ),
        "version": attr.string(mandatory = True),
        "_build": attr.label(
            cfg = "exec",
            default = "//package:build_package",
            executable = True,
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_merge": attr.label(
            cfg = "exec",
            default = "//package:merge_archives",
            executable = True,
        ),
    },
)
