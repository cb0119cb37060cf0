"""Java rules that need nothing but a JDK.

Debian's Bazel comes without JavaBuilder, so the native java_* rules don't work.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load(":cc.bzl", "COPTS")
load(":portable.bzl", "PORTABLE_DEPS", "PORTABLE_LINKER_INPUTS", "PORTABLE_LINKOPTS")

JvmInfo = provider(
    "Jars for the class path, and the runfiles they need.",
    fields = {
        "jars": "depset of jars, the target's own first",
        "runfiles": "runfiles: data and native libraries",
    },
)

_JDK = {
    "_jdk": attr.label(
        default = "@local_jdk//:jdk",
        providers = [java_common.JavaRuntimeInfo],
    ),
}

def _merged(ctx, jars, deps, data):
    """JvmInfo of own jars, dependencies and data."""
    runfiles = ctx.runfiles(transitive_files = depset(transitive = [d[DefaultInfo].files for d in data]))
    for target in data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    for dep in deps:
        runfiles = runfiles.merge(dep[JvmInfo].runfiles)
    return JvmInfo(
        jars = depset(jars, transitive = [dep[JvmInfo].jars for dep in deps]),
        runfiles = runfiles,
    )

_COMPILE = """
set -euo pipefail
java=$1 jar=$2 jni=$3 classpath=$4 release=$5
shift 5
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/classes" "$tmp/jni"
options=() sources=()
for arg; do
  case $arg in
    *.java) sources+=("$arg") ;;
    *.srcjar)
      mkdir "$tmp/generated"
      (here=$PWD; cd "$tmp/generated" && "$here/$java/bin/jar" --extract --file "$here/$arg")
      mapfile -t -O "${#sources[@]}" sources < <(find "$tmp/generated" -name '*.java' | LC_ALL=C sort)
      ;;
    --resource=*)
      pair=${arg#--resource=}
      mkdir -p "$tmp/classes/$(dirname "${pair%%=*}")"
      cp -L "${pair#*=}" "$tmp/classes/${pair%%=*}"
      ;;
    *) options+=("$arg") ;;
  esac
done
if [ ${#sources[@]} -gt 0 ]; then
  "$java/bin/javac" -encoding UTF-8 --release "$release" -Xlint:all,-path -proc:none -g \
    "${options[@]}" -h "$tmp/jni" -d "$tmp/classes" -cp "$classpath" "${sources[@]}"
fi
"$java/bin/jar" --create --date=1980-01-01T00:00:02Z --file "$jar" -C "$tmp/classes" .
[ -z "$jni" ] || cp "$tmp"/jni/*.h "$jni"
"""

def _library_impl(ctx):
    jdk = ctx.attr._jdk[java_common.JavaRuntimeInfo]
    jar = ctx.actions.declare_file(ctx.label.name + ".jar")
    info = _merged(ctx, [jar], ctx.attr.deps, ctx.attr.data)
    classpath = depset(transitive = [dep[JvmInfo].jars for dep in ctx.attr.deps])
    jni_dir = "%s/%s_jni" % (jar.dirname, ctx.label.name)
    headers = [ctx.actions.declare_file("%s_jni/%s" % (ctx.label.name, h)) for h in ctx.attr.jni_headers]

    args = ctx.actions.args()
    args.add(jdk.java_home)
    args.add(jar)
    args.add(jni_dir if headers else "")
    args.add_joined(classpath, join_with = ":", omit_if_empty = False)
    args.add(ctx.attr.release)
    args.add_all(ctx.attr.javacopts)
    args.add_all(ctx.files.srcs)
    for file in ctx.files.resources:
        path = file.short_path
        if path.startswith(ctx.attr.resource_strip_prefix):
            path = path[len(ctx.attr.resource_strip_prefix):].lstrip("/")
        args.add("--resource=%s=%s" % (path, file.path))
    ctx.actions.run_shell(
        inputs = depset(
            ctx.files.srcs + ctx.files.resources,
            transitive = [classpath, jdk.files],
        ),
        outputs = [jar] + headers,
        arguments = [args],
        command = _COMPILE,
        env = {"LC_ALL": "C.UTF-8"},
        mnemonic = "Javac",
        progress_message = "Compiling Java %s" % ctx.label,
    )
    providers = [
        DefaultInfo(files = depset([jar]), runfiles = info.runfiles),
        info,
    ]
    if headers:
        providers.append(CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset(headers),
            system_includes = depset([jni_dir]),
        )))
    return providers

jvm_library = rule(
    doc = """A jar of Java sources and resources.

With jni_headers it is also a C++ dependency that brings these headers.""",
    implementation = _library_impl,
    attrs = dict(
        _JDK,
        data = attr.label_list(allow_files = True),
        deps = attr.label_list(providers = [JvmInfo]),
        javacopts = attr.string_list(),
        jni_headers = attr.string_list(doc = "Names as javac -h makes them: package_Class.h."),
        release = attr.string(default = "17"),
        resource_strip_prefix = attr.string(doc = "Cut off from the resources' paths in the workspace."),
        resources = attr.label_list(allow_files = True),
        srcs = attr.label_list(
            allow_files = [".java", ".srcjar"],
            doc = "Sources; one .srcjar of them at most.",
        ),
    ),
)

_ARCHIVE = """
set -euo pipefail
java=$1 out=$2 manifest=$3
shift 3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/jar"
printf '%b' "$manifest" > "$tmp/manifest"
for arg; do
  case $arg in
    --file=*)
      pair=${arg#--file=}
      mkdir -p "$tmp/files/$(dirname "${pair%%=*}")"
      cp -L "${pair#*=}" "$tmp/files/${pair%%=*}"
      ;;
    *.jar) (here=$PWD; cd "$tmp/jar" && "$here/$java/bin/jar" --extract --file "$here/$arg") ;;
    --native=*)
      pair=${arg#--native=}
      folder=${pair%%=*}
      name=$(basename "${pair#*=}" .stripped)
      mkdir -p "$tmp/jar/$folder"
      cp -L "${pair#*=}" "$tmp/jar/$folder/$name"
      echo "$name" >> "$tmp/jar/$folder/files"
      ;;
  esac
done
rm -rf "$tmp/jar/META-INF"
[ ! -d "$tmp/files" ] || cp -r --no-preserve=mode "$tmp/files/." "$tmp/jar"
"$java/bin/jar" --create --date=1980-01-01T00:00:02Z --file "$out" --manifest "$tmp/manifest" \
  -C "$tmp/jar" .
"""

def _license_path(ctx, file):
    """LICENSE of this workspace; licenses/re2/LICENSE, licenses/libssl-dev/copyright of others."""
    if file.owner.workspace_name == ctx.label.workspace_name:
        return file.basename
    return "licenses/" + "/".join(file.path.split("/")[-2:])

def _archive_impl(ctx):
    jdk = ctx.attr._jdk[java_common.JavaRuntimeInfo]
    jar = ctx.actions.declare_file(ctx.label.name)
    jars = depset(transitive = [library[JvmInfo].jars for library in ctx.attr.libraries])
    args = ctx.actions.args()
    args.add(jdk.java_home)
    args.add(jar)
    args.add("".join(["%s: %s\\n" % field for field in sorted(ctx.attr.manifest.items())]))
    args.add_all(jars)
    for target, folder in ctx.attr.natives.items():
        for file in target[DefaultInfo].files.to_list():
            args.add("--native=%s=%s" % (folder, file.path))
    for target, path in ctx.attr.files.items():
        args.add("--file=%s=%s" % (path, target[DefaultInfo].files.to_list()[0].path))
    for file in ctx.files.licenses:
        args.add("--file=META-INF/%s=%s" % (_license_path(ctx, file), file.path))
    ctx.actions.run_shell(
        inputs = depset(
            ctx.files.natives + ctx.files.files + ctx.files.licenses,
            transitive = [jars, jdk.files],
        ),
        outputs = [jar],
        arguments = [args],
        command = _ARCHIVE,
        env = {"LC_ALL": "C.UTF-8"},
        mnemonic = "JvmArchive",
        progress_message = "Packing %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset([jar]), runfiles = ctx.runfiles([jar])),
        _merged(ctx, [jar], [], []),
    ]

jvm_archive = rule(
    doc = """One jar with all that a program needs: classes, and native libraries for it to unpack.

The file `files` beside the native libraries has their names, one on a line.""",
    implementation = _archive_impl,
    attrs = dict(
        _JDK,
        libraries = attr.label_list(
            doc = "Whose classes, those of their dependencies included, go into the jar.",
            providers = [JvmInfo],
        ),
        files = attr.label_keyed_string_dict(
            allow_files = True,
            doc = "More files: {label: path in the jar}.",
        ),
        licenses = attr.label_list(
            allow_files = True,
            doc = "Of all that is in the jar; they go below META-INF.",
        ),
        manifest = attr.string_dict(doc = "Fields of the manifest."),
        natives = attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Native libraries: {label: folder in the jar}.",
        ),
    ),
)

_SOURCES = """
set -euo pipefail
java=$1 out=$2 prefix=$3
shift 3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/jar"
for arg; do
  case $arg in
    *.srcjar) (here=$PWD; cd "$tmp/jar" && "$here/$java/bin/jar" --extract --file "$here/$arg") ;;
    *) install -D -m 644 "$arg" "$tmp/jar/${arg#"$prefix"}" ;;
  esac
done
rm -rf "$tmp/jar/META-INF"
if [[ $out == *-javadoc.jar ]]; then
  mapfile -t sources < <(find "$tmp/jar" -name '*.java' | LC_ALL=C sort)
  "$java/bin/javadoc" -quiet -notimestamp -encoding UTF-8 --release 17 -Xdoclint:none \\
    -d "$tmp/javadoc" "${sources[@]}"
  rm -rf "$tmp/jar"
  mv "$tmp/javadoc" "$tmp/jar"
fi
"$java/bin/jar" --create --date=1980-01-01T00:00:02Z --file "$out" -C "$tmp/jar" .
"""

def _maven_impl(ctx):
    jdk = ctx.attr._jdk[java_common.JavaRuntimeInfo]
    stem = "%s/%s/%s/%s/%s-%s" % (
        ctx.label.name,
        ctx.attr.group.replace(".", "/"),
        ctx.attr.artifact,
        ctx.attr.version,
        ctx.attr.artifact,
        ctx.attr.version,
    )
    jar = ctx.actions.declare_file(stem + ".jar")
    ctx.actions.symlink(output = jar, target_file = ctx.file.jar)
    pom = ctx.actions.declare_file(stem + ".pom")
    ctx.actions.symlink(output = pom, target_file = ctx.file.pom)
    outputs = [jar, pom]
    for kind in ["sources", "javadoc"]:
        output = ctx.actions.declare_file("%s-%s.jar" % (stem, kind))
        args = ctx.actions.args()
        args.add(jdk.java_home)
        args.add(output)
        args.add(ctx.label.package + "/")
        args.add_all(ctx.files.srcs)
        ctx.actions.run_shell(
            inputs = depset(ctx.files.srcs, transitive = [jdk.files]),
            outputs = [output],
            arguments = [args],
            command = _SOURCES,
            env = {"LC_ALL": "C.UTF-8"},
            mnemonic = "JvmSources",
            progress_message = "Packing %s" % output.basename,
        )
        outputs.append(output)
    sums = []
    for file in outputs:
        sum = ctx.actions.declare_file(file.basename + ".sha1", sibling = file)
        ctx.actions.run_shell(
            inputs = [file],
            outputs = [sum],
            arguments = [file.path, sum.path],
            command = 'sha1sum "$1" | cut -d" " -f1 | tr -d "\\n" > "$2"',
            mnemonic = "Sha1",
        )
        sums.append(sum)
    return [DefaultInfo(
        files = depset(outputs + sums),
        runfiles = ctx.runfiles(outputs + sums),
    )]

maven_repository = rule(
    doc = """bazel-bin/<package>/<name>: a Maven repository with one artifact: jar, pom, sources, javadoc.""",
    implementation = _maven_impl,
    attrs = dict(
        _JDK,
        artifact = attr.string(mandatory = True),
        group = attr.string(mandatory = True),
        jar = attr.label(
            allow_single_file = [".jar"],
            mandatory = True,
        ),
        pom = attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
        srcs = attr.label_list(
            allow_files = [".java", ".srcjar"],
            doc = "The sources of the classes in the jar.",
        ),
        version = attr.string(mandatory = True),
    ),
)

def _import_impl(ctx):
    info = _merged(ctx, [ctx.file.jar], ctx.attr.deps, [])
    return [DefaultInfo(files = depset([ctx.file.jar])), info]

jvm_import = rule(
    doc = "A jar that is there already.",
    implementation = _import_impl,
    attrs = {
        "deps": attr.label_list(providers = [JvmInfo]),
        "jar": attr.label(
            allow_single_file = [".jar"],
            mandatory = True,
        ),
    },
)

def _in_runfiles(ctx, path):
    if path.startswith("/"):
        return path
    if path.startswith("external/"):
        return "$runfiles/" + path[len("external/"):]
    if path.startswith("../"):
        return "$runfiles/" + path[len("../"):]
    return "$runfiles/%s/%s" % (ctx.workspace_name, path)

def _launcher_impl(ctx):
    jdk = ctx.attr._jdk[java_common.JavaRuntimeInfo]
    info = _merged(ctx, [], ctx.attr.deps, ctx.attr.data + ctx.attr.native_libs)
    folders = {}
    for file in ctx.files.native_libs:
        folders[_in_runfiles(ctx, file.short_path).rpartition("/")[0]] = True
    launcher = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        is_executable = True,
        substitutions = {
            "%{args}": " ".join(ctx.attr.main_args),
            "%{env}": "\n".join(["export %s='%s'" % pair for pair in sorted(ctx.attr.env.items())]),
            "%{classpath}": ":".join([_in_runfiles(ctx, jar.short_path) for jar in info.jars.to_list()]),
            "%{java}": _in_runfiles(ctx, jdk.java_executable_runfiles_path),
            "%{jvm_flags}": " ".join(ctx.attr.jvm_flags),
            "%{library_path}": ":".join(folders.keys()),
            "%{main_class}": ctx.attr.main_class,
        },
    )
    files = ctx.runfiles(transitive_files = depset(transitive = [info.jars, jdk.files]))
    return [DefaultInfo(executable = launcher, runfiles = info.runfiles.merge(files))]

_LAUNCHER = dict(
    _JDK,
    data = attr.label_list(allow_files = True),
    deps = attr.label_list(providers = [JvmInfo]),
    env = attr.string_dict(doc = "Environment variables."),
    jvm_flags = attr.string_list(),
    main_args = attr.string_list(),
    main_class = attr.string(mandatory = True),
    native_libs = attr.label_list(
        allow_files = [".so"],
        doc = "JNI libraries, found by System.loadLibrary.",
    ),
    _launcher = attr.label(
        allow_single_file = True,
        default = "//bazel:java_launcher.sh",
    ),
)

jvm_binary = rule(
    doc = "A Java program: a launcher script with all jars in its runfiles.",
    implementation = _launcher_impl,
    attrs = _LAUNCHER,
    executable = True,
)

def jvm_program(name, main_class, srcs, deps = [], testonly = False, **kwargs):
    """A jvm_binary of sources of its own.

    Args:
      name: the target's name.
      main_class: the class with main(), with its package.
      srcs: sources.
      deps: jvm_library targets.
      testonly: as everywhere.
      **kwargs: further attributes of jvm_binary.
    """
    jvm_library(
        name = name + "_lib",
        testonly = testonly,
        srcs = srcs,
        deps = deps,
    )
    jvm_binary(
        name = name,
        testonly = testonly,
        main_class = main_class,
        deps = [name + "_lib"],
        **kwargs
    )

_jvm_test = rule(
    implementation = _launcher_impl,
    attrs = _LAUNCHER,
    test = True,
)

# The JVM is not instrumented, so the runtime must be there before it loads a library that is, and
# leave the JVM its signals. What the JVM never frees is no leak of ours.
_SANITIZER_ENV = {
    # Want of memory is an error that is tested, as without the sanitizer.
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allow_user_segv_handler=1:allocator_may_return_null=1",
    "LD_PRELOAD": "libasan.so.8:libstdc++.so.6",
}

# The thread sanitizer does not see what threads of the JVM do to wait for each other.
_NOT_UNDER_TSAN = select({
    "//bazel:tsan": ["@platforms//:incompatible"],
    "//conditions:default": [],
})

def jvm_junit5_test(name, test_class, srcs = [], deps = [], jvm_flags = [], env = {}, **kwargs):
    """A JUnit 5 test of one class, with the JVM's checks of native code on.

    Args:
      name: the target's name.
      test_class: the class, with its package.
      srcs: its sources, unless a jvm_library in deps has them.
      deps: jvm_library targets; JUnit is added.
      jvm_flags: further flags of the JVM.
      env: environment variables.
      **kwargs: further attributes of jvm_binary, and those of all tests.
    """
    kwargs.setdefault("target_compatible_with", _NOT_UNDER_TSAN)
    if srcs:
        jvm_library(
            name = name + "_lib",
            testonly = True,
            srcs = srcs,
            deps = deps + ["@junit5"],
        )
        deps = deps + [name + "_lib"]
    _jvm_test(
        name = name,
        env = select({
            "//bazel:asan": dict(_SANITIZER_ENV, **env),
            "//conditions:default": env,
        }),
        jvm_flags = ["-Xcheck:jni"] + jvm_flags,
        main_args = [
            "--disable-banner",
            "--fail-if-no-tests",
            "--details=tree",
            "--select-class=" + test_class,
        ],
        main_class = "org.junit.platform.console.ConsoleLauncher",
        deps = deps + ["@junit5"],
        **kwargs
    )

def jni_library(name, srcs, deps = [], copts = [], **kwargs):
    """The JNI library lib`name`.so: exports Java_* and JNI_On*, hides all that is linked in.

    It is linked for older machines, see portable.bzl.

    Args:
      name: as in System.loadLibrary(name).
      srcs: C++ sources.
      deps: C++ libraries and jvm_library targets with jni_headers; the header of JNI itself is added.
      copts: further compiler options.
      **kwargs: further attributes of cc_binary.
    """
    cc_binary(
        name = "lib%s.so" % name,
        srcs = srcs,
        additional_linker_inputs = ["//bazel:export_jni.lds"] + PORTABLE_LINKER_INPUTS,
        copts = COPTS + ["-fvisibility=hidden"] + copts,
        # The script hides what is linked in. --exclude-libs would also hide JNI_OnLoad, which lies in a
        # library of ours, wherever the linker gets that as an archive.
        linkopts = [
            "-Wl,--version-script=$(location //bazel:export_jni.lds)",
            "-Wl,-Bsymbolic",
            "-Wl,-rpath,'$$ORIGIN'",
        ] + PORTABLE_LINKOPTS,
        linkshared = True,
        linkstatic = True,
        deps = deps + ["@bazel_tools//tools/jdk:jni"] + PORTABLE_DEPS,
        **kwargs
    )
