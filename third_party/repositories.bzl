"""All external repositories. Bazel fetches one when a target first needs it."""

load("//third_party:local_python.bzl", "local_python_repository")
load("//third_party/deb:deb.bzl", "aliases_repository", "deb_repository", "deb_source_repository")
load("//third_party/pypi:pypi.bzl", "pypi_data_repository", "pypi_repository")

# Debian's rules_cc wants use_cpp_toolchain, which Debian's Bazel lacks.
_RULES_CC_PATCH = """
sed -i 's/, "use_cpp_toolchain"//
  s/use_cpp_toolchain()/["@bazel_tools\\/\\/tools\\/cpp:toolchain_type"]/' \
  cc/private/rules_impl/cc_flags_supplier.bzl cc/private/rules_impl/compiler_flag.bzl
"""

# Abseil of 2022 waits until a time on the wall clock: where that is set back meanwhile, a wait with a
# timeout takes as much longer. Releases since 2023 wait on the monotonic clock, as this does.
_ABSEIL_PATCH = """
patch -p1 <<'EOF'
--- a/absl/synchronization/internal/futex.h
+++ b/absl/synchronization/internal/futex.h
@@ -91,11 +91,17 @@
     if (t.has_timeout()) {
-      // https://locklessinc.com/articles/futex_cheat_sheet/
-      // Unlike FUTEX_WAIT, FUTEX_WAIT_BITSET uses absolute time.
-      struct timespec abs_timeout = t.MakeAbsTimespec();
+      // FUTEX_WAIT takes what remains, and counts it on the monotonic clock.
+      const struct timespec deadline = t.MakeAbsTimespec();
+      struct timespec now;  // By the clock of Mutex's DeadlineFromTimeout.
+      clock_gettime(CLOCK_REALTIME, &now);
+      int64_t left =
+          int64_t{deadline.tv_sec} * 1000000000 + deadline.tv_nsec -
+          (int64_t{now.tv_sec} * 1000000000 + now.tv_nsec);
+      if (left < 0) left = 0;
+      struct timespec timeout;
+      timeout.tv_sec = static_cast<time_t>(left / 1000000000);
+      timeout.tv_nsec = static_cast<decltype(timeout.tv_nsec)>(left % 1000000000);
       // Atomically check that the futex value is still 0, and if it
-      // is, sleep until abs_timeout or until woken by FUTEX_WAKE.
-      err = syscall(
-          SYS_futex, reinterpret_cast<int32_t *>(v),
-          FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME, val,
-          &abs_timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
+      // is, sleep until timeout or until woken by FUTEX_WAKE.
+      err = syscall(SYS_futex, reinterpret_cast<int32_t *>(v),
+                    FUTEX_WAIT | FUTEX_PRIVATE_FLAG, val, &timeout);
     } else {
EOF
"""

def _bazel_repositories():
    deb_repository(
        name = "bazel_skylib",
        packages = ["bazel-skylib"],
        strip_prefix = "usr/share/bazel/tools/skylib",
    )
    deb_repository(
        name = "platforms",
        packages = ["bazel-platforms"],
        strip_prefix = "usr/share/bazel/tools/platforms",
    )
    deb_repository(
        name = "rules_cc",
        packages = ["bazel-rules-cc"],
        patch_cmds = [_RULES_CC_PATCH],
        strip_prefix = "usr/share/bazel/rules/cc",
    )
    deb_repository(
        name = "rules_java",
        packages = ["bazel-rules-java"],
        strip_prefix = "usr/share/bazel/rules/java",
    )
    deb_repository(
        name = "rules_proto",
        packages = ["bazel-rules-proto"],
        strip_prefix = "usr/share/bazel/rules/proto",
    )
    deb_repository(
        name = "patchelf",
        build_file_content = 'exports_files(["usr/bin/patchelf"])',
        packages = ["patchelf"],
    )

# Debian's static libraries of these are not position-independent, so that no
# Python or Java library could be linked with them: they are built from source.
def _cc_source_repositories():
    deb_source_repository(
        name = "com_google_absl",
        patch_cmds = [_ABSEIL_PATCH],
        source = "abseil",
    )
    # Of a newer Debian: that of this one has no source that can be had.
    deb_source_repository(
        name = "gloo",
        build_file = "//third_party:gloo.BUILD",
        patches = ["//third_party:gloo.patch"],
        source = "gloo",
    )
    deb_source_repository(
        name = "highway",
        build_file = "//third_party:highway.BUILD",
        source = "highway",
    )
    deb_source_repository(
        name = "protobuf",
        build_file = "//third_party:protobuf.BUILD",
        source = "protobuf",
    )
    deb_source_repository(
        name = "re2",
        build_file = "//third_party:re2.BUILD",
        source = "re2",
    )
    deb_repository(
        name = "unicode_data",
        build_file = "//third_party:unicode_data.BUILD",
        packages = ["unicode-data"],
    )
    deb_source_repository(
        name = "zlib",
        build_file = "//third_party:zlib.BUILD",
        source = "zlib",
    )

# The protocol alone, without what its files say to Go and to REST gateways. The lite runtime does
# without descriptors, which would be registered whenever a program starts.
_ETCD_PROTOS = """
mv usr/share/gocode/src/go.etcd.io/etcd all
rm -rf usr/share/gocode
for file in mvcc/mvccpb/kv auth/authpb/auth etcdserver/etcdserverpb/rpc; do
  install -D all/$file.proto etcd/$file.proto
done
rm -rf all
perl -0pi -e '
  s/option \\(google\\.api\\.http\\) = \\{.*?\\};//gs;
  s/^.*(gogoproto|google\\/api\\/annotations).*\\n//gm;
  s/^(package .*)$/$1\\noption optimize_for = LITE_RUNTIME;/m;
' $(find etcd -name '*.proto')
"""

# The plug-in for `srun --mpi=pmix` loads libpmix.so from a folder of the machine, by a name that only
# the package for developers has. dlopen(3) replaces $ORIGIN by the folder of the plug-in.
_SLURM_PMIX = """
ln -s libpmix.so.2 usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so
perl -pi -e 's{(/usr/lib/x86_64-linux-gnu/pmix2/lib)}{pack "a" . length $1, q($ORIGIN/../pmix2/lib)}e' \\
  usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix_v4.so
"""

# The names by which a linker asks for the libraries, beside them. A linker finds libstdc++ here too, and
# links it in.
_OLD_GLIBC = """
mkdir flat
cp -L lib/x86_64-linux-gnu/{ld-linux-x86-64.so.2,lib{c,m,mvec,dl,pthread,rt,util}.so.[0-9],libgcc_s.so.1} flat
cp usr/lib/x86_64-linux-gnu/{{,S}crt1.o,crt[in].o,libc_nonshared.a} flat
rm -rf etc lib lib64 usr
mv flat lib
for name in m dl pthread rt util; do echo "INPUT ( $(basename lib/lib$name.so.*) )" > lib/lib$name.so; done
echo 'GROUP ( libc.so.6 libc_nonshared.a AS_NEEDED ( ld-linux-x86-64.so.2 ) )' > lib/libc.so
echo 'INPUT ( libstdc++.a )' > lib/libstdc++.so
"""

def _cc_repositories():
    aliases_repository(
        name = "com_google_protobuf",
        build_file = "//third_party:com_google_protobuf.BUILD",
    )
    deb_repository(
        name = "cares",
        build_file = "//third_party:cares.BUILD",
        packages = ["libc-ares-dev"],
    )
    deb_repository(
        name = "dlpack",
        build_file = "//third_party:dlpack.BUILD",
        packages = ["libdlpack-dev"],
    )
    deb_repository(
        name = "etcd_protos",
        build_file = "//third_party:etcd_protos.BUILD",
        packages = ["golang-etcd-server-dev"],
        patch_cmds = [_ETCD_PROTOS],
    )
    deb_repository(
        name = "grpc",
        build_file = "//third_party:grpc.BUILD",
        packages = [
            "libgrpc++-dev",
            "libgrpc-dev",
        ],
    )
    deb_repository(
        name = "mpich",
        build_file = "//third_party:mpich.BUILD",
        packages = [
            "libhwloc15",
            "libmpich-dev",
            "libmpich12",
            "libnuma1",
            "libslurm38",
            "libucx0",
            "libudev1",
            "mpich",
        ],
        # Bindings of other languages, static libraries, and plug-ins for networks that need libraries
        # of their own.
        patch_cmds = [
            "rm -f usr/lib/*/libmpich{cxx,fort}.* usr/lib/*/*.a usr/lib/*/ucx/libuct_{ib,rdmacm}.so*",
        ],
        relocate = True,
    )
    deb_repository(
        name = "nlohmann_json",
        build_file = "//third_party:nlohmann_json.BUILD",
        packages = ["nlohmann-json3-dev"],
    )
    deb_repository(
        name = "old_glibc",
        build_file = "//third_party:old_glibc.BUILD",
        packages = [
            "libc6-dev/bullseye",
            "libc6/bullseye",
            "libgcc-s1/bullseye",
        ],
        patch_cmds = [_OLD_GLIBC],
        without = "Programs and wheels are built for this machine's C library and newer ones",
    )
    deb_repository(
        name = "openmpi",
        build_file = "//third_party:openmpi.BUILD",
        packages = [
            "libevent-core-2.1-7",
            "libevent-pthreads-2.1-7",
            "libhwloc15",
            "libmunge2",
            "libopenmpi-dev",
            "libopenmpi3",
            "libpmix2",
            "libudev1",
            "openmpi-bin",
            "openmpi-common",
            "zlib1g",
        ],
        # Plug-ins for networks that need libraries of their own, and would only say that they lack them.
        # That for UCX is kept aside, for who has its libraries from @mpich.
        patch_cmds = [
            "mkdir ucx",
            "cp usr/lib/*/openmpi/lib/openmpi3/mca_pml_ucx.so ucx",
            "cp -L usr/lib/*/libmca_common_ucx.so.40 ucx",
            "rm -f usr/lib/*/openmpi/lib/openmpi3/*_{ofi,ucx,openib,psm,psm2,cm,monitoring,netlink}.so",
            "mkdir runtime",
            "cp -L usr/lib/*/lib{event_{core,pthreads}-2.1.so.7,hwloc.so.15,munge.so.2,pmix.so.2} runtime",
            "cp -L usr/lib/*/lib{mpi.so.40,open-{pal,rte}.so.40,mca_common_{ompio.so.41,sm.so.40}} runtime",
            "cp -L usr/lib/*/libudev.so.1 lib/*/libz.so.1 runtime",
        ],
        relocate = True,
    )
    deb_repository(
        name = "openssl",
        build_file = "//third_party:openssl.BUILD",
        packages = ["libssl-dev"],
    )
    deb_repository(
        name = "protoc",
        build_file = "//third_party:protoc.BUILD",
        packages = [
            "libgrpc29",
            "libprotobuf-dev",
            "libprotobuf32",
            "libprotoc32",
            "protobuf-compiler",
            "protobuf-compiler-grpc",
            "zlib1g",
        ],
        relocate = True,
    )
    deb_repository(
        name = "spdlog",
        build_file = "//third_party:spdlog.BUILD",
        packages = [
            "libfmt-dev",
            "libspdlog-dev",
        ],
    )
    deb_repository(
        name = "tomlplusplus",
        build_file = "//third_party:tomlplusplus.BUILD",
        packages = ["libtomlplusplus-dev"],
    )

# The files of each library, as CMakeLists.txt lists them.
_GRPC_SOURCE_LISTS = """
python3 - > srcs.bzl << END
import re
cmake = open("CMakeLists.txt").read()
print("SRCS = {")
for name in ["address_sorting", "upb", "gpr", "grpc", "grpc++"]:
    body = re.search(r"^add_library\\(%s\\n(.*?)^\\)" % re.escape(name), cmake, re.M | re.S)
    print("  %r: %r," % (name, re.findall(r"^\\s+(\\S+\\.cc?)$", body.group(1), re.M)))
print("}")
END
"""

# bin/NAME is the program aarch64-linux-gnu-NAME with the libraries beside it. The linker's script of the C library has
# paths of a machine on which this is installed.
_AARCH64_GCC = """
mkdir bin
for program in usr/bin/aarch64-linux-gnu-*; do
  name=${program#usr/bin/aarch64-linux-gnu-}
  cat > bin/$name << END
#!/bin/sh
root=\\${0%/bin/*}
LD_LIBRARY_PATH=\\$root/usr/lib/x86_64-linux-gnu exec \\$root/$program "\\$@"
END
  chmod 755 bin/$name
done
sed -i 's,/usr/aarch64-linux-gnu/lib/,,g' usr/aarch64-linux-gnu/lib/libc.so
rm -rf usr/bin/*lto-dump* usr/lib/gcc-cross/aarch64-linux-gnu/12/lib{a,hwa,l,t}san.*
"""

_AARCH64_LIBRARIES = """
mkdir lib include
mv usr/lib/aarch64-linux-gnu/lib{address_sorting,cares,crypto,gpr,grpc,grpc++,ssl,upb}.a lib
mv usr/include/aarch64-linux-gnu include
rm -rf usr
"""

# No link leads to the machine that runs it.
_AARCH64_MACHINE = """
for link in $(find . -type l -lname '/*'); do
  target=.$(readlink $link)
  rm $link
  if [ -f $target ]; then cp $target $link; fi
done
rm -rf usr/lib/aarch64-linux-gnu/gconv usr/lib/jvm/*/lib/ct.sym usr/lib/jvm/*/{docs,legal,man} usr/share
"""

# What --config=aarch64 compiles with, and for.
def _aarch64_repositories():
    deb_repository(
        name = "aarch64_gcc",
        build_file = "//third_party:aarch64_gcc.BUILD",
        packages = [
            "binutils-aarch64-linux-gnu",
            "cpp-12-aarch64-linux-gnu",
            "g++-12-aarch64-linux-gnu",
            "gcc-12-aarch64-linux-gnu",
            "libbinutils",
            "libc6-arm64-cross",
            "libc6-dev-arm64-cross",
            "libctf-nobfd0",
            "libctf0",
            "libgcc-12-dev-arm64-cross",
            "libgcc-s1-arm64-cross",
            "libgmp10",
            "libisl23",
            "libjansson4",
            "libmpc3",
            "libmpfr6",
            "libstdc++-12-dev-arm64-cross",
            "libzstd1",
            "linux-libc-dev-arm64-cross",
        ],
        patch_cmds = [_AARCH64_GCC],
    )
    deb_repository(
        name = "aarch64_libraries",
        build_file = "//third_party:aarch64_libraries.BUILD",
        packages = [
            "libc-ares-dev:arm64",
            "libgrpc++-dev:arm64",
            "libgrpc-dev:arm64",
            "libpython3.11-dev:arm64",
            "libssl-dev:arm64",
        ],
        patch_cmds = [_AARCH64_LIBRARIES],
    )

    # Runs programs of an aarch64 machine, with what these find on it: a C library, Python and Java.
    deb_repository(
        name = "aarch64_machine",
        build_file_content = """
filegroup(
    name = "files",
    srcs = glob(["**"], exclude = ["**/* *"]),
    visibility = ["//visibility:public"],
)
""",
        packages = [
            "libc6:arm64",
            "libexpat1:arm64",
            "libffi8:arm64",
            "libgcc-s1:arm64",
            "libpython3.11-minimal:arm64",
            "libpython3.11-stdlib:arm64",
            "libstdc++6:arm64",
            "openjdk-17-jre-headless:arm64",
            "python3.11-minimal:arm64",
            "zlib1g:arm64",
        ],
        patch_cmds = [_AARCH64_MACHINE],
    )
    deb_repository(
        name = "qemu",
        build_file_content = 'exports_files(["usr/bin/qemu-aarch64-static"])',
        packages = ["qemu-user-static"],
        patch_cmds = ["find usr/bin -type f ! -name qemu-aarch64-static -delete"],
    )

# What tests, benchmarks, the Python extension and the sanitizers' builds need besides.
def _development_repositories():
    deb_source_repository(
        name = "benchmark",
        build_file = "//third_party:benchmark.BUILD",
        source = "benchmark",
    )
    deb_repository(
        name = "clang",
        build_file = "//third_party:clang.BUILD",
        packages = [
            "clang-19",
            "libbsd0",
            "libclang-common-19-dev",
            "libclang-cpp19",
            "libclang-rt-19-dev",
            "libedit2",
            "libffi8",
            "libicu72",
            "libllvm19",
            "liblzma5",
            "libmd0",
            "libtinfo6",
            "libxml2",
            "libz3-4",
            "zlib1g",
        ],
        relocate = True,
    )
    deb_repository(
        name = "etcd_server",
        build_file_content = 'exports_files(["usr/bin/etcd"])',
        packages = ["etcd-server"],
    )
    deb_repository(
        name = "googletest",
        build_file = "//third_party:googletest.BUILD",
        packages = ["googletest"],
    )
    deb_source_repository(
        name = "grpc_src",
        build_file = "//third_party:grpc_src.BUILD",
        patch_cmds = [
            "find . -name BUILD -delete -o -name BUILD.bazel -delete -o -name .bazelignore -delete",
            _GRPC_SOURCE_LISTS,
        ],
        source = "grpc",
    )
    deb_repository(
        name = "pkgconf",
        build_file_content = """
filegroup(
    name = "pkgconf",
    srcs = ["usr/bin/pkgconf"] + glob(["usr/lib/**/*.so.*"]),
    visibility = ["//visibility:public"],
)
""",
        packages = [
            "libpkgconf3",
            "pkgconf-bin",
        ],
        relocate = True,
    )
    deb_repository(
        name = "pybind11",
        build_file = "//third_party:pybind11.BUILD",
        packages = ["pybind11-dev"],
    )
    deb_repository(
        name = "python_headers",
        build_file = "//third_party:python_headers.BUILD",
        packages = ["libpython3.11-dev"],
    )
    deb_repository(
        name = "slurm",
        build_file = "//third_party:slurm.BUILD",
        packages = [
            "libaudit1",
            "libcap-ng0",
            "libevent-core-2.1-7",
            "libevent-pthreads-2.1-7",
            "libhwloc15",
            "liblz4-1",
            "libmunge2",
            "libnuma1",
            "libpam0g",
            "libpmix2",
            "libudev1",
            "slurm-client",
            "slurm-wlm-basic-plugins",
            "slurmctld",
            "slurmd",
            "zlib1g",
        ],
        patch_cmds = [
            # Plug-ins that need libraries of their own, and would only say that they lack them.
            "rm -f usr/lib/*/slurm-wlm/{job_submit,cli_filter,openapi,rest,acct_gather_energy_rapl}*.so",
            _SLURM_PMIX,
        ],
        relocate = True,
    )

# Debian's manifests put the machine's /usr/share/java on the class path.
_DROP_CLASS_PATH = """
python3 - << END
import glob, os, re, zipfile
for path in glob.glob("usr/share/java/*.jar"):
    if os.path.islink(path):
        continue
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path + ".new", "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == "META-INF/MANIFEST.MF":
                data = re.sub(rb"(?m)^Class-Path:.*\\n(?: .*\\n)*", b"", data)
            new.writestr(entry, data)
    os.replace(path + ".new", path)
END
"""

# Its settings lie in /etc, to which there are links.
_OLD_JAVA = """
mv usr/lib/jvm/java-17-openjdk-amd64 java
for file in $(find java -type l -lname '/etc/*'); do
  target=.$(readlink $file)
  if [ -f $target ]; then cp --remove-destination $target $file; else rm $file; fi
done
mkdir flat
cp -L usr/lib/x86_64-linux-gnu/libstdc++.so.6 lib/x86_64-linux-gnu/libz.so.1 flat
rm -rf etc usr lib java/{docs,legal,man} java/lib/ct.sym java/lib/server/classes_nocoops.jsa
mv flat lib
"""

def _java_repositories():
    deb_repository(
        name = "junit5",
        build_file = "//third_party:junit5.BUILD",
        patch_cmds = [_DROP_CLASS_PATH],
        packages = [
            "junit5",
            "libapiguardian-java",
            "libopentest4j-java",
            "libpicocli-java",
            "libunivocity-parsers-java",
        ],
    )

    # Debian 11's Java, which its C library runs. A program starts by
    # ld-linux-x86-64.so.2 --library-path and the path of java.
    deb_repository(
        name = "old_java",
        build_file_content = """
filegroup(
    name = "files",
    srcs = glob(["java/**", "lib/*"]),
    visibility = ["//visibility:public"],
)
""",
        packages = [
            "libstdc++6/bullseye",
            "openjdk-17-jre-headless/bullseye",
            "zlib1g/bullseye",
        ],
        patch_cmds = [_OLD_JAVA],
        without = "The jar is not tested with an old C library",
    )

    # Maven, and a Maven repository with the plug-ins that compile a project and with what those need:
    # of JUnit that is the list of its versions, which the pom of a plug-in's parent imports.
    deb_repository(
        name = "maven",
        build_file_content = """
filegroup(
    name = "files",
    srcs = glob([
        "etc/maven/**",
        "usr/share/java/**",
        "usr/share/maven/**",
        "usr/share/maven-repo/**",
    ]),
    visibility = ["//visibility:public"],
)
""",
        packages = [
            "junit5",
            "libaopalliance-java",
            "libapache-pom-java",
            "libasm-java",
            "libatinject-jsr330-api-java",
            "libcdi-api-java",
            "libcommons-cli-java",
            "libcommons-io-java",
            "libcommons-lang-java",
            "libcommons-lang3-java",
            "libcommons-parent-java",
            "liberror-prone-java",
            "libgeronimo-annotation-1.3-spec-java",
            "libgeronimo-interceptor-3.0-spec-java",
            "libguava-java",
            "libguice-java",
            "libjansi-java",
            "libjsr305-java",
            "libmaven-compiler-plugin-java",
            "libmaven-filtering-java",
            "libmaven-parent-java",
            "libmaven-resolver-java",
            "libmaven-resources-plugin-java",
            "libmaven-shared-incremental-java",
            "libmaven-shared-utils-java",
            "libmaven3-core-java",
            "libplexus-build-api-java",
            "libplexus-cipher-java",
            "libplexus-classworlds-java",
            "libplexus-compiler-java",
            "libplexus-component-annotations-java",
            "libplexus-container-default-java",
            "libplexus-interpolation-java",
            "libplexus-languages-java",
            "libplexus-sec-dispatcher-java",
            "libplexus-utils2-java",
            "libqdox2-java",
            "libsisu-inject-java",
            "libsisu-plexus-java",
            "libslf4j-java",
            "libwagon-file-java",
            "libwagon-http-shaded-java",
            "libwagon-provider-api-java",
            "libxbean-reflect-java",
            "maven",
        ],
        patch_cmds = [
            "ln -sfn ../../../../etc/maven/m2.conf usr/share/maven/bin/m2.conf",
            "ln -sfn ../../../etc/maven usr/share/maven/conf",
        ],
    )

_PY_LIBRARY = """
py_library(
    name = "{target}",
    srcs = glob(["usr/lib/python3/dist-packages/**/*.py"]),
    data = glob(
        ["**"],
        exclude = [
            "**/*.py",
            "**/* *",
            "BUILD.bazel",
            "usr/share/doc/**",
        ],
    ),
    imports = ["usr/lib/python3/dist-packages"],
    visibility = ["//visibility:public"],
    deps = {deps},
)
"""

# See third_party/pypi/pypi.bzl.
_COMPILE_PYTHON = """
PYTHONHASHSEED=0 /usr/bin/python3 -B -m compileall -qq --invalidation-mode unchecked-hash usr/lib/python3/dist-packages || true
"""

def _python_repository(target, packages, deps = [], prune = [], patch_cmds = [], **kwargs):
    """Declares @py_{target}//:{target}: the Python packages, without their tests, but compiled."""
    deb_repository(
        name = "py_" + target,
        build_file_content = _PY_LIBRARY.format(deps = deps, target = target),
        packages = packages,
        patch_cmds = [
            "find . -type d -name tests -prune -exec rm -rf {} +",
            "shopt -s globstar nullglob; rm -rf " + " ".join(prune),
        ] + patch_cmds + [_COMPILE_PYTHON],
        **kwargs
    )

def _python_repositories():
    _python_repository(
        packages = [
            "python3-mypy",
            "python3-mypy-extensions",
            "python3-typing-extensions",
        ],
        prune = ["usr/bin", "usr/lib/python3/dist-packages/{mypy/test,mypyc}"],
        target = "mypy",
    )
    _python_repository(
        packages = [
            "libgfortran5",
            "libopenblas0-pthread",
            "libquadmath0",
            "python3-numpy",
        ],
        prune = ["usr/bin", "usr/include", "usr/**/numpy/core/include"],
        relocate = True,
        target = "numpy",
    )
    _python_repository(
        packages = [
            "python3-attr",
            "python3-hypothesis",
            "python3-iniconfig",
            "python3-packaging",
            "python3-pluggy",
            "python3-pytest",
            "python3-sortedcontainers",
        ],
        prune = ["usr/bin"],
        target = "pytest",
    )
    _python_repository(
        packages = [
            "libyaml-0-2",
            "python3-yaml",
        ],
        relocate = True,
        target = "yaml",
    )
    _python_repository(
        packages = ["python3-tqdm"],
        prune = ["usr/bin"],
        target = "tqdm",
    )

_PYTHON_HEADERS = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "headers",
    hdrs = glob(["usr/include/**"]),
    includes = ["usr/include", "usr/include/python{version}"],
    visibility = ["//visibility:public"],
)
"""

# The interpreter finds its C library beside it, as do programs and virtual environments that start it.
_RELOCATE_PYTHON = """
cd usr/bin
mv python{version} python{version}.elf
cat > python{version} << 'END'
#!/bin/sh
bin=$(dirname "$(readlink -f "$0")")
libraries=$(dirname "$bin")/lib/x86_64-linux-gnu
exec "$libraries/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$libraries" "$bin/python{version}.elf" "$@"
END
chmod 755 python{version}
cd ../..
mv usr/share/python-wheels/pip-*.whl pip.whl
rm -rf usr/share/python-wheels usr/lib/x86_64-linux-gnu/gconv
"""

def _other_python_repositories(version, suite):
    """@python{version}_headers, and @python{version}, which runs wheels' tests."""
    deb_repository(
        name = "python%s_headers" % version,
        build_file_content = _PYTHON_HEADERS.format(version = version),
        packages = ["libpython%s-dev/%s" % (version, suite)],
        patch_cmds = ["rm -rf usr/lib usr/bin"],
    )
    deb_repository(
        name = "python" + version,
        build_file = "//third_party:python.BUILD",
        packages = [package + "/" + suite for package in [
            "libc6",
            "libexpat1",
            "libffi8",
            "libgcc-s1",
            "libpython%s-minimal" % version,
            "libpython%s-stdlib" % version,
            "python%s-minimal" % version,
            "python3-pip-whl",
            "zlib1g",
        ]],
        patch_cmds = [_RELOCATE_PYTHON.format(version = version)],
    )

# Interpreters besides /usr/bin/python3: see bazel/pythons.bzl.
def _pythons():
    local_python_repository(name = "local_python")
    _other_python_repositories("3.13", "trixie")
    _other_python_repositories("3.14", "sid")
    deb_repository(
        name = "pybind11_3",
        build_file = "//third_party:pybind11_3.BUILD",
        packages = ["pybind11-dev/sid"],
    )

# What downloads wheels.
def _pip_repository():
    deb_repository(
        name = "pip",
        build_file_content = 'exports_files(["pip.whl"])',
        packages = ["python3-pip-whl"],
        patch_cmds = ["mv usr/share/python-wheels/pip-*.whl pip.whl"],
    )

def _pypi_mpi_repositories():
    pypi_data_repository(
        name = "mpich5",
        build_file = "//third_party:mpich5.BUILD",
        packages = ["mpich"],
    )
    pypi_data_repository(
        name = "openmpi5",
        build_file = "//third_party:openmpi5.BUILD",
        packages = ["openmpi"],
    )

# What nvcc needs to make code for devices out of our kernels. No library of it: none is linked into
# what we build, which opens the driver at run time.
def _cuda_repositories():
    pypi_data_repository(
        name = "cuda_toolkit",
        build_file = "//third_party:cuda_toolkit.BUILD",
        executables = [
            "nvidia/cu13/bin/*",
            "nvidia/cu13/nvvm/bin/*",
        ],
        packages = [
            "nvidia-cuda-crt",
            "nvidia-cuda-nvcc",
            "nvidia-cuda-runtime",
            "nvidia-nvvm",
        ],
        prune = [
            "nvidia/cu13/bin/nvlink",
            "nvidia/cu13/lib",
        ],
    )

def _pypi_nccl_repository():
    pypi_data_repository(
        name = "nccl",
        build_file = "//third_party:nccl.BUILD",
        packages = ["nvidia-nccl-cu13"],
    )

def _pypi_repositories():
    pypi_data_repository(
        name = "cmake",
        build_file = "//third_party:cmake.BUILD",
        executables = ["cmake/data/bin/cmake"],
        packages = ["cmake"],
        prune = [
            "cmake/data/doc",
            "cmake/data/share/cmake-3.31/Help",
        ],
    )
    pypi_repository(
        packages = [
            "clang-format",
            "ruff",
        ],
        target = "formatters",
    )
    pypi_repository(
        packages = [
            "jax",
            "jaxlib",
            "ml-dtypes",
            "numpy",
            "opt-einsum",
            "scipy",
        ],
        prune = ["scipy/datasets"],
        target = "jax",
    )
    pypi_repository(
        packages = ["mpi4py"],
        target = "mpi4py",
    )
    pypi_repository(
        packages = [
            "filelock",
            "fsspec",
            "jinja2",
            "markupsafe",
            "mpmath",
            "networkx",
            "numpy",
            "sympy",
            "torch",
            "typing-extensions",
        ],
        development = [
            "torch/lib/libc10.so",
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libtorch_python.so",
            "torch/version.py",
        ],
        headers = ["torch/include"],
        prune = [
            "torch/share",
            "torch/test",
        ],
        target = "torch",
    )

def _data_repositories():
    # The licences that Debian's copyright files refer to.
    deb_repository(
        name = "common_licenses",
        build_file_content = 'exports_files(["Apache-2.0", "CC0-1.0", "GPL-2", "GPL-3"])',
        packages = ["base-files"],
        strip_prefix = "usr/share/common-licenses",
    )

    # That of libstdc++, which is the compiler's and linked in.
    deb_repository(
        name = "gcc_license",
        build_file_content = 'exports_files(["gcc-12-base/copyright"])',
        packages = ["gcc-12-base"],
        strip_prefix = "usr/share/doc",
    )

    # CPython's own tests, which the interpreter comes without.
    deb_repository(
        name = "cpython_tests",
        build_file = "//third_party:cpython_tests.BUILD",
        packages = ["libpython3.11-testsuite"],
        strip_prefix = "usr/lib/python3.11/test",
    )
    deb_repository(
        name = "fashion_mnist",
        build_file = "//third_party:fashion_mnist.BUILD",
        packages = ["dataset-fashion-mnist"],
        strip_prefix = "usr/share/datasets/fashion-mnist",
    )
    deb_repository(
        name = "fortunes",
        build_file = "//third_party:fortunes.BUILD",
        packages = [
            "fortunes",
            "fortunes-min",
        ],
        strip_prefix = "usr/share/games/fortunes",
    )

def cc_dependencies():
    """Declares the external repositories of the C++ libraries and of the launcher: see //:dependencies.bzl."""
    _bazel_repositories()
    _cc_source_repositories()
    _cc_repositories()
    _pip_repository()
    _cuda_repositories()
    _pypi_mpi_repositories()
    _pypi_nccl_repository()

def syncline_repositories():
    """Declares every external repository of the workspace."""
    cc_dependencies()
    _aarch64_repositories()
    _development_repositories()
    _java_repositories()
    _python_repositories()
    _pythons()
    _pypi_repositories()
    _data_repositories()
