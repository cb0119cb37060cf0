"""Code for CUDA devices: compiled by the pinned nvcc, and embedded in C++ libraries as data."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda_toolkit//:status.bzl", "AVAILABLE", "REASON")
load("//bazel:cc.bzl", "syncline_cc_library")

# Machine code for the A100 (which other cards of compute capability 8 run too), the H100 and the
# B200. The driver compiles PTX for all others: that of the next capability below the card's.
_TARGETS = [
    "arch=compute_80,code=[sm_80,compute_80]",
    "arch=compute_90,code=sm_90",
    "arch=compute_100,code=[sm_100,compute_100]",
]

# Results must be those of the host: no multiplication is fused with an addition.
_OPTIONS = [
    "-fatbin",
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "--compress-mode=size",
    "-Werror=all-warnings",
    "-Xcompiler=-Wall,-Wextra,-Werror",
]

_UNAVAILABLE = ("%s cannot be compiled: %s. To try again: %s sync --only=cuda_toolkit. " +
                "To build without code for CUDA devices: --define=cuda_kernels=no")

def _path(ctx, file):
    """Where the file is in this repository, as #include lines say it; its short_path has ../ where another builds."""
    return "%s/%s" % (ctx.label.package, file.basename)

def _compile(ctx, source, headers, output):
    """Declares the action that makes the fat binary `output` of the file `source`."""
    reason = ctx.attr.missing or ("" if AVAILABLE else REASON)
    without = ctx.var.get("cuda_kernels") == "no" or ctx.var["TARGET_CPU"] == "aarch64"
    if without and not ctx.attr.missing:
        ctx.actions.write(output, "")
        return
    if reason:
        ctx.actions.run_shell(
            arguments = [_UNAVAILABLE % (
                _path(ctx, source),
                reason,
                "bazel" if ctx.label.workspace_name else "./bazelw",
            )],
            command = 'echo "$1" >&2; exit 1',
            mnemonic = "CudaCompile",
            outputs = [output],
        )
        return
    nvcc = [file for file in ctx.files._nvcc if file.path.endswith("/bin/nvcc")][0]
    context = headers.compilation_context
    arguments = ctx.actions.args()
    arguments.add_all(_OPTIONS)
    arguments.add_all(_TARGETS, before_each = "-gencode")
    arguments.add("-ccbin", find_cpp_toolchain(ctx).compiler_executable)
    arguments.add_all(context.defines, format_each = "-D%s")
    arguments.add_all(context.quote_includes, before_each = "-I")
    arguments.add_all(context.includes, before_each = "-I")
    arguments.add_all(context.system_includes, before_each = "-isystem")
    arguments.add("-o", output)
    arguments.add(source)
    ctx.actions.run(
        arguments = [arguments],
        # nvcc looks for ptxas and others on the PATH too.
        env = {"PATH": "/usr/bin:/bin"},
        executable = nvcc,
        inputs = depset([source] + ctx.files.hdrs, transitive = [context.headers]),
        mnemonic = "CudaCompile",
        outputs = [output],
        progress_message = "Compiling %s for CUDA devices" % _path(ctx, source),
        tools = ctx.files._nvcc,
    )

def _cuda_embedded_impl(ctx):
    headers = cc_common.merge_cc_infos(direct_cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    header = ctx.outputs.header
    guard = _path(ctx, header).replace("/", "_").replace(".", "_").upper() + "_"
    lines = [
        "// The fat binaries of //%s:%s, as data." % (ctx.label.package, ctx.label.name),
        "#ifndef " + guard,
        "#define " + guard,
        "",
        "#include <cstddef>",
        "",
        "namespace %s {" % ctx.attr.namespace,
        "",
    ]
    fatbins = []
    for source in ctx.files.srcs:
        stem = source.basename[:-len(".cu")]
        fatbin = ctx.actions.declare_file(stem + ".fatbin")
        _compile(ctx, source, headers, fatbin)
        fatbins.append(fatbin)
        variable = "k%sFatbin" % "".join([word.capitalize() for word in stem.split("_")])
        lines.append("extern const unsigned char %s[];" % variable)
        lines.append("extern const size_t %sSize;" % variable)
    lines += ["", "}  // namespace " + ctx.attr.namespace, "", "#endif  // " + guard, ""]
    ctx.actions.write(header, "\n".join(lines))

    arguments = ctx.actions.args()
    arguments.add_all([ctx.file._embed, ctx.outputs.source, _path(ctx, header), ctx.attr.namespace])
    arguments.add_all(fatbins)
    ctx.actions.run(
        arguments = [arguments],
        executable = "/usr/bin/python3",
        inputs = fatbins + [ctx.file._embed],
        mnemonic = "CudaEmbed",
        outputs = [ctx.outputs.source],
    )
    return [
        DefaultInfo(files = depset([ctx.outputs.source, header])),
        OutputGroupInfo(fatbin = depset(fatbins)),
    ]

cuda_embedded = rule(
    doc = "The part of syncline_cuda_library that makes its header and its source.",
    implementation = _cuda_embedded_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "header": attr.output(mandatory = True),
        "missing": attr.string(
            doc = "For a test: why the toolkit could not be downloaded, as if it were not there.",
        ),
        "namespace": attr.string(mandatory = True),
        "source": attr.output(mandatory = True),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_embed": attr.label(allow_single_file = True, default = "//bazel:embed_fatbins.py"),
        "_nvcc": attr.label(cfg = "host", default = "@cuda_toolkit//:nvcc"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def syncline_cuda_library(name, srcs, namespace, hdrs = [], deps = [], **kwargs):
    """A C++ library that holds code for CUDA devices as data.

    For each source `my_kernels.cu` its header {name}.h declares kMyKernelsFatbin, the bytes of a fat
    binary that cuModuleLoadData takes, and kMyKernelsFatbinSize. It has machine code for compute
    capabilities 8.0, 9.0 and 10.0, and PTX for others. Options of the C++ compiler, such as those of
    sanitizers, do not reach nvcc. Where the toolkit could not be downloaded, the build of the library
    fails, and says why. With --define=cuda_kernels=no it is built without the toolkit, and empty.

    Args:
      name: the library's name.
      srcs: .cu files, each of which becomes a fat binary; they do not see each other.
      namespace: what the header declares the variables in, such as "syncline::device".
      hdrs: headers of this package that the sources include.
      deps: C++ libraries whose headers the sources include; their code is not linked.
      **kwargs: what other attributes of cc_library the library has.
    """
    embedded = name + "_embedded"
    cuda_embedded(
        name = embedded,
        srcs = srcs,
        hdrs = hdrs,
        header = name + ".h",
        namespace = namespace,
        source = name + ".cc",
        visibility = ["//visibility:private"],
        deps = deps,
    )
    syncline_cc_library(
        name = name,
        srcs = [name + ".cc"],
        hdrs = [name + ".h"],
        **kwargs
    )
