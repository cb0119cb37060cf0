"""Checks the locks of our C++ sources with clang's -Wthread-safety: see --config=thread-safety in .bazelrc.

The build itself is gcc's, which ignores ABSL_GUARDED_BY and its like. The aspect has clang read each source file
once more, with the includes and definitions of its target; no code is generated. What most files include is parsed
once, into a precompiled header, which makes this three times as fast.
"""

_WARNINGS = ["-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]

# A sandbox of some thousand headers takes longer to set up than a file takes to analyse, as in compile actions.
_REQUIREMENTS = {"no-sandbox": "1"}

def _compilation_context(targets):
    infos = [target[CcInfo] for target in targets if CcInfo in target]
    return cc_common.merge_cc_infos(direct_cc_infos = infos).compilation_context

def _options(ctx, context, copts):
    """The options of a gcc command that clang needs too: not those of warnings and of code generation."""
    copts = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + copts
    options = ctx.actions.args()
    options.add_all([option for option in copts if option[:2] in ["-D", "-U", "-I", "-s"]])
    options.add_all(context.defines, format_each = "-D%s")
    options.add_all(context.quote_includes, before_each = "-iquote")
    options.add_all(context.includes, before_each = "-I")
    options.add_all(context.system_includes, before_each = "-isystem")
    return options

def _precompiled_header_impl(ctx):
    context = _compilation_context(ctx.attr.deps)
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    options = _options(ctx, context, [])
    options.add_all(["-x", "c++-header", "-fpch-instantiate-templates"])

    # Bazel compares contents: a header that was checked out once more, with another time, is the same header.
    options.add_all(["-Xclang", "-fno-pch-timestamp", ctx.file.hdr, "-o", output])
    ctx.actions.run(
        arguments = [options],
        executable = ctx.executable._clang,
        # The output holds absolute paths, which another folder's build must not get from a cache.
        execution_requirements = dict(_REQUIREMENTS, **{"no-cache": "1"}),
        inputs = depset([ctx.file.hdr], transitive = [context.headers]),
        mnemonic = "ClangHeader",
        outputs = [output],
    )
    return [DefaultInfo(files = depset([output]))]

_CLANG = attr.label(cfg = "host", default = "@clang//:clang", executable = True)

precompiled_header = rule(
    doc = "A header, parsed for clang. It may hold third-party headers only, and none that needs a definition.",
    implementation = _precompiled_header_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdr": attr.label(allow_single_file = True, mandatory = True),
        "_clang": _CLANG,
    },
    fragments = ["cpp"],
)

def _analyse(ctx, source, options, inputs):
    stamp = ctx.actions.declare_file("_thread_safety/%s/%s.ok" % (ctx.label.name, source.basename))
    ctx.actions.run_shell(
        arguments = [ctx.executable._clang.path, source.path, stamp.path, options],
        command = 'clang="$1" source="$2" stamp="$3"; shift 3; "$clang" "$@" "$source" && touch "$stamp"',
        execution_requirements = _REQUIREMENTS,
        inputs = inputs,
        mnemonic = "ThreadSafety",
        outputs = [stamp],
        progress_message = "Analysing the locks of " + source.short_path,
        tools = [ctx.executable._clang],
    )
    return stamp

def _thread_safety_impl(target, ctx):
    if ctx.label.workspace_name or ctx.rule.kind not in ["cc_library", "cc_binary", "cc_test"]:
        return []
    attributes = ctx.rule.attr
    context = _compilation_context([target] + attributes.deps)
    options = _options(ctx, context, attributes.copts)
    defines = [define.replace("\\\"", "\"") for define in attributes.defines + attributes.local_defines]
    options.add_all(defines, format_each = "-D%s")
    options.add_all(["-x", "c++", "-fsyntax-only", "-include-pch", ctx.file._header])
    options.add_all(_WARNINGS)
    inputs = depset(
        [ctx.file._header] + ctx.rule.files.srcs + getattr(ctx.rule.files, "hdrs", []),
        transitive = [context.headers],
    )
    stamps = [
        _analyse(ctx, source, options, inputs)
        for source in ctx.rule.files.srcs
        if source.is_source and source.extension == "cc"
    ]
    return [OutputGroupInfo(thread_safety = depset(stamps))]

thread_safety = aspect(
    implementation = _thread_safety_impl,
    attrs = {
        "_clang": _CLANG,
        "_header": attr.label(
            allow_single_file = True,
            default = "//bazel:thread_safety_header",
        ),
    },
    fragments = ["cpp"],
)
