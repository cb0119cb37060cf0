"""Files for aarch64, whatever the build is for.

A target of this rule is built with the options of --config=aarch64 (.bazelrc), so that one archive can hold the
libraries of both kinds of machine.
"""

def _options(_settings, _attr):
    return {
        "//command_line_option:cpu": "aarch64",
        "//command_line_option:crosstool_top": "@aarch64_gcc//:toolchain",
        "//command_line_option:host_crosstool_top": "@bazel_tools//tools/cpp:toolchain",
    }

_to_aarch64 = transition(
    implementation = _options,
    inputs = [],
    outputs = [
        "//command_line_option:cpu",
        "//command_line_option:crosstool_top",
        "//command_line_option:host_crosstool_top",
    ],
)

def _impl(ctx):
    links = []
    for file in depset(transitive = [target[DefaultInfo].files for target in ctx.attr.srcs]).to_list():
        link = ctx.actions.declare_file("%s/%s" % (ctx.label.name, file.basename))
        ctx.actions.symlink(output = link, target_file = file)
        links.append(link)
    return [DefaultInfo(files = depset(links), runfiles = ctx.runfiles(links))]

aarch64_files = rule(
    doc = "The files of `srcs` for aarch64: bazel-bin/<package>/<name>/<file>. Tag it manual: it compiles all once more.",
    implementation = _impl,
    attrs = {
        "srcs": attr.label_list(
            allow_files = True,
            cfg = _to_aarch64,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
