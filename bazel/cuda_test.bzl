"""A test of what building code for CUDA devices says where the toolkit could not be downloaded."""

_CommandsInfo = provider(fields = {"commands": "the command lines of the actions CudaCompile"})

def _aspect_impl(target, _ctx):
    commands = [action.argv for action in target.actions if action.mnemonic == "CudaCompile"]
    return [_CommandsInfo(commands = commands)]

_commands_aspect = aspect(implementation = _aspect_impl)

_SCRIPT = """#!/bin/bash
# The build of the target fails with this one line.
if printed="$({command} 2>&1)"; then
  echo "the build of the target does not fail"
  exit 1
fi
[ "$printed" = {line} ] && exit 0
echo "it says: $printed"
exit 1
"""

def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

def _impl(ctx):
    commands = ctx.attr.target[_CommandsInfo].commands
    if len(commands) != 1:
        fail("%s compiles %d files, not 1" % (ctx.attr.target.label, len(commands)))
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        script,
        _SCRIPT.format(
            command = " ".join([_quoted(argument) for argument in commands[0]]),
            line = _quoted(ctx.attr.line),
        ),
        is_executable = True,
    )
    return [DefaultInfo(executable = script)]

cuda_unavailable_test = rule(
    doc = "Runs what builds `target`, which cannot be built: it fails, and prints `line`.",
    implementation = _impl,
    attrs = {
        "line": attr.string(mandatory = True),
        "target": attr.label(aspects = [_commands_aspect], mandatory = True),
    },
    test = True,
)
