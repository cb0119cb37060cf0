"""C++ gRPC stubs of a proto_library; the messages are a cc_proto_library's job."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def _grpc_srcs_impl(ctx):
    info = ctx.attr.proto[ProtoInfo]
    root = info.proto_source_root
    package = ctx.label.package + "/" if ctx.label.package else ""
    hdrs = []
    srcs = []
    protos = []
    for file in info.direct_sources:
        proto = file.path
        if root != "." and proto.startswith(root + "/"):
            proto = proto[len(root) + 1:]
        if not proto.startswith(package):
            fail("%s lies outside of package %s" % (proto, ctx.label.package))
        protos.append(proto)
        stem = proto[len(package):-len(".proto")]
        hdrs.append(ctx.actions.declare_file(stem + ".grpc.pb.h"))
        srcs.append(ctx.actions.declare_file(stem + ".grpc.pb.cc"))
        if ctx.attr.mocks:
            hdrs.append(ctx.actions.declare_file(stem + "_mock.grpc.pb.h"))
    out = ctx.bin_dir.path
    if ctx.label.workspace_root:
        out += "/" + ctx.label.workspace_root
    args = ctx.actions.args()
    args.add("--plugin=protoc-gen-grpc=" + ctx.executable._plugin.path)
    args.add("--grpc_out=%s%s" % ("generate_mock_code=true:" if ctx.attr.mocks else "", out))
    args.add_all(info.transitive_proto_path, format_each = "--proto_path=%s")
    args.add("--proto_path=.")
    args.add_all(protos)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        tools = [ctx.executable._plugin],
        inputs = info.transitive_sources,
        outputs = hdrs + srcs,
        arguments = [args],
        mnemonic = "GrpcCpp",
        progress_message = "Generating gRPC C++ for %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(srcs)),
        OutputGroupInfo(hdrs = depset(hdrs)),
    ]

_grpc_srcs = rule(
    implementation = _grpc_srcs_impl,
    attrs = {
        "mocks": attr.bool(),
        "proto": attr.label(mandatory = True, providers = [ProtoInfo]),
        "_plugin": attr.label(
            cfg = "host",
            default = "@protoc//:grpc_cpp_plugin",
            executable = True,
        ),
        "_protoc": attr.label(
            cfg = "host",
            default = "@protoc//:protoc",
            executable = True,
        ),
    },
)

def cc_grpc_library(name, proto, deps, mocks = False, **kwargs):
    """The C++ service stubs, <file>.grpc.pb.h, of one proto_library.

    Args:
      name: the cc_library's name.
      proto: the proto_library.
      deps: the cc_proto_library of the same protos.
      mocks: whether <file>_mock.grpc.pb.h is made too.
      **kwargs: further attributes of cc_library.
    """
    srcs = name + "_srcs"
    hdrs = name + "_hdrs"
    _grpc_srcs(
        name = srcs,
        mocks = mocks,
        proto = proto,
        visibility = ["//visibility:private"],
    )
    native.filegroup(
        name = hdrs,
        srcs = [srcs],
        output_group = "hdrs",
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [srcs],
        hdrs = [hdrs],
        deps = deps + ["@grpc//:grpc++"],
        **kwargs
    )
