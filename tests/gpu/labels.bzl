"""A file of labels whose targets are there, and are not built for it."""

def _impl(ctx):
    file = ctx.actions.declare_file(ctx.label.name)
    labels = ["//%s:%s" % (target.label.package, target.label.name) for target in ctx.attr.targets]
    ctx.actions.write(file, "\n".join(labels) + "\n")
    return DefaultInfo(files = depset([file]), runfiles = ctx.runfiles([file]))

label_names = rule(
    implementation = _impl,
    attrs = {
        "targets": attr.label_list(mandatory = True),
    },
)
