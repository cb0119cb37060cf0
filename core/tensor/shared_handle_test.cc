#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/tensor/shared_place.h"
#include "core/testing/children.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Of the fields of a handle.
enum Field {
  kBegin,
  kBootId,
  kPidNamespace,
  kUser,
  kPid,
  kStarted,
  kDescriptor,
  kDevice,
  kInode,
  kSize,
  kOffset,
  kType,
  kShape
};

Tensor Made() { return EmptyShared(DType::kFloat32, {4, 6}).value(); }

std::string With(const std::string& handle, Field field, const std::string& value) {
  std::vector<std::string> fields = absl::StrSplit(handle, ',');
  fields.at(field) = value;
  return absl::StrJoin(fields, ",");
}

void ExpectError(const std::string& handle, ErrorKind kind, const std::string& words) {
  const absl::Status status = OpenShared(handle).status();
  EXPECT_EQ(KindOf(status), kind) << handle << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words)) << handle;
}

std::string OfThisProcess(const std::string& words) {
  return absl::StrCat("process ", getpid(), ", which made the handle, ", words);
}

// A pipe, whose reader sees the end when the writer dies.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  void Send(const std::string& text) {
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string Receive() {
    char text[1024];
    const ssize_t size = read(ends[0], text, sizeof(text));
    return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
  }
  int ends[2];
};

TEST(SharedHandleTest, OpensTheSameElements) {
  const Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  EXPECT_THAT(handle, StartsWith("syncline-tensor-1,"));
  EXPECT_LT(handle.size(), 200u);
  const Tensor opened = OpenShared(handle).value();
  EXPECT_EQ(opened.data(), made.data());
  EXPECT_EQ(opened.ToString(), made.ToString());
  const Tensor part = made.Slice(5, 7);
  EXPECT_EQ(OpenShared(SharedHandle(part).value())->data(), part.data());
  EXPECT_EQ(OpenShared(SharedHandle(part).value())->ToString(), part.ToString());
  const Tensor scalar = made.Slice(5, 1).Reshape({});
  EXPECT_EQ(OpenShared(SharedHandle(scalar).value())->ToString(), scalar.ToString());
}

TEST(SharedHandleTest, EveryTypeHasOne) {
  for (const DType dtype : AllDTypes()) {
    const Tensor made = EmptyShared(dtype, {3}).value();
    EXPECT_EQ(OpenShared(SharedHandle(made).value())->ToString(), made.ToString());
  }
}

TEST(SharedHandleTest, TwoProcessesSeeEachOthersWritesAndTheMemoryOutlivesItsMaker) {
  Pipe handles, replies;
  const pid_t child = Fork([&] {
    Tensor made = Made();
    made.data_as<float>()[23] = 4;
    handles.Send(SharedHandle(made).value());
    return replies.Receive() == "written" && made.data_as<float>()[0] == 7;
  });
  const absl::StatusOr<Tensor> opened = OpenShared(handles.Receive());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->data_as<float>()[23], 4);
  opened->data_as<float>()[0] = 7;
  replies.Send("written");
  EXPECT_TRUE(ExitsWell(child));
  EXPECT_EQ(opened->data_as<float>()[23], 4);
  // This process has it, and may hand it on.
  EXPECT_THAT(SharedHandle(*opened).value(), HasSubstr(absl::StrCat(",", getpid(), ",")));
  EXPECT_TRUE(OpenShared(SharedHandle(*opened).value()).ok());
}

TEST(SharedHandleTest, FreeingTheTensorLeavesItsContentsToOthers) {
  Pipe handles, replies, freed;
  const pid_t child = Fork([&] {
    {
      Tensor made = Made();
      made.data_as<float>()[0] = 4;
      handles.Send(SharedHandle(made).value());
      if (replies.Receive() != "open") return false;
    }
    freed.Send("freed");
    return replies.Receive() == "done";
  });
  const std::string handle = handles.Receive();
  const absl::StatusOr<Tensor> opened = OpenShared(handle);
  ASSERT_TRUE(opened.ok()) << opened.status();
  replies.Send("open");
  EXPECT_EQ(freed.Receive(), "freed");
  EXPECT_EQ(opened->data_as<float>()[0], 4);
  ExpectError(handle, ErrorKind::kBackend,
              absl::StrCat("process ", child, ", which made the handle, has freed the memory"));
  replies.Send("done");
  EXPECT_TRUE(ExitsWell(child));
}

TEST(SharedHandleTest, AnEndedOwnerIsAnErrorWhetherItsParentHasLookedOrNot) {
  Pipe handles;
  Tensor made;
  const pid_t child = Fork([&] {
    made = Made();
    handles.Send(SharedHandle(made).value());
    return true;
  });
  const std::string handle = handles.Receive();
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const std::string words = absl::StrCat("process ", child, ", which made the handle, has ended");
  ExpectError(handle, ErrorKind::kBackend, words);
  EXPECT_TRUE(ExitsWell(child));
  ExpectError(handle, ErrorKind::kBackend, words);
}

TEST(SharedHandleTest, AnotherFileUnderTheSameNumberIsNotOpened) {
  Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  const int number = FindShared(made.data(), 1)->descriptor;
  made = Tensor();
  ExpectError(handle, ErrorKind::kBackend, OfThisProcess("has freed the memory"));
  const Tensor other = Made();
  ASSERT_EQ(FindShared(other.data(), 1)->descriptor, number);
  ExpectError(handle, ErrorKind::kBackend, OfThisProcess("has freed the memory"));
  // A pipe, which is not opened either.
  const std::string second = SharedHandle(other).value();
  Pipe pipe;
  ExpectError(With(second, kDescriptor, absl::StrCat(pipe.ends[0])), ErrorKind::kBackend,
              OfThisProcess("has freed the memory"));
}

TEST(SharedHandleTest, AnotherHostNamespaceUserProcessOrSizeIsAnErrorThatNamesThePid) {
  const Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  const std::vector<std::string> fields = absl::StrSplit(handle, ',');
  ExpectError(With(handle, kBootId, "0123-4567"), ErrorKind::kBackend,
              OfThisProcess("ran on another host"));
  ExpectError(With(handle, kPidNamespace, "17"), ErrorKind::kBackend,
              OfThisProcess("is of another pid namespace"));
  ExpectError(With(handle, kUser, absl::StrCat(geteuid() + 1)), ErrorKind::kBackend,
              OfThisProcess(absl::StrCat("is of user ", geteuid() + 1)));
  // The pid was given to another process.
  ExpectError(With(handle, kStarted, "17"), ErrorKind::kBackend, OfThisProcess("has ended"));
  ExpectError(With(handle, kInode, absl::StrCat(fields[kInode], "0")), ErrorKind::kBackend,
              OfThisProcess("has freed the memory"));
  ExpectError(With(handle, kSize, "1000"), ErrorKind::kBackend,
              absl::StrCat("of process ", getpid(), " has 96 bytes, but its handle says 1000"));
  ExpectError(With(handle, kOffset, "4"), ErrorKind::kArgument,
              absl::StrCat("its 96 bytes from byte 4 on are not within the memory of process ",
                           getpid(), ", which has 96"));
}

TEST(SharedHandleTest, AProcessThatMayNotLookIntoTheOwnerIsRefused) {
  const Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  // The owner may not be dumped, and the child has no capability to look into it all the same.
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
  const pid_t parent = getpid();
  const pid_t child = Fork([&] {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &header, none) != 0) return false;
    const absl::Status status = OpenShared(handle).status();
    return KindOf(status) == ErrorKind::kBackend &&
           status.message().find(absl::StrCat("process ", parent)) != std::string::npos &&
           status.message().find("cannot be looked into") != std::string::npos;
  });
  EXPECT_TRUE(ExitsWell(child));
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

TEST(SharedHandleTest, WhatIsNoHandleIsAnArgumentErrorThatSaysWhy) {
  const Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  const auto refuses = [&](const std::string& text, const std::string& words) {
    ExpectError(text, ErrorKind::kArgument, "is not the handle of a shared tensor");
    ExpectError(text, ErrorKind::kArgument, words);
  };
  refuses("", "does not begin with");
  refuses("syncline-tensor-2" + handle.substr(17), "does not begin with");
  refuses(std::string(1000, 'x'), "does not begin with");
  refuses(std::string("syncline\0\n", 10), "\\x00\\n");
  refuses("syncline-tensor-1", "has 1 fields, not 13");
  refuses(handle + ",", "has 14 fields, not 13");
  for (const Field field : {kUser, kPid, kStarted, kDescriptor, kDevice, kInode, kSize, kOffset}) {
    for (const char* const value : {"", "-1", "+1", " 1", "1 ", "0x1", "99999999999999999999"}) {
      refuses(With(handle, field, value), "its ");
    }
  }
  refuses(With(handle, kPid, "0"), "its pid is none");
  refuses(With(handle, kBootId, "../x"), "its boot id is none");
  refuses(With(handle, kPidNamespace, "x"), "its pid namespace is no number");
  refuses(With(handle, kType, "float7"), "float7");
  for (const char* const shape : {"", "x", "4x", "-4x6", "4x6x", "99999999999999999999"}) {
    refuses(With(handle, kShape, shape), "its shape is none");
  }
  refuses(With(handle, kShape, "4x0"), "has no elements");
  refuses(With(handle, kShape, "4294967296x4294967296"), "larger than the address space");
  refuses(With(handle, kOffset, "2"), "not aligned");
  refuses(With(handle, kShape, "4x7"), "not within the memory");
}

TEST(SharedHandleTest, WhatIsNotSharedHasNone) {
  const auto refuses = [](const Tensor& tensor, const std::string& words) {
    const absl::Status status = SharedHandle(tensor).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  const Tensor made = Made();
  refuses(Tensor::Zeros(DType::kFloat32, {3}), "float32[3] on cpu: its memory is not shared");
  refuses(EmptyShared(DType::kFloat32, {0}).value(), "it has no elements");
  refuses(Tensor(made.data(), DType::kFloat32, {2, 2}, {6, 1}), "it is not contiguous");
  refuses(Tensor(made.data(), DType::kFloat32, {2}, {}, Device(), nullptr, Access::kReadOnly),
          "it is read-only");
}

TEST(SharedHandleTest, AChildsOwnCopyIsNotShared) {
  const Tensor made = EmptyShared(DType::kFloat32, {4}, AfterFork::kOwn).value();
  const pid_t child = Fork([&] {
    return KindOf(SharedHandle(made).status()) == ErrorKind::kArgument &&
           !FindShared(made.data(), 1).has_value();
  });
  EXPECT_TRUE(ExitsWell(child));
  EXPECT_TRUE(SharedHandle(made).ok());
  // What the child opens is its parent's memory.
  const std::string handle = SharedHandle(made).value();
  const pid_t opener = Fork([&] {
    const absl::StatusOr<Tensor> opened = OpenShared(handle);
    if (!opened.ok() || opened->data() == made.data()) return false;
    opened->data_as<float>()[1] = 3;
    return true;
  });
  EXPECT_TRUE(ExitsWell(opener));
  EXPECT_EQ(made.data_as<float>()[1], 3);
}

TEST(SharedHandleTest, WantOfDescriptorsIsAnError) {
  const Tensor made = Made();
  const std::string handle = SharedHandle(made).value();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  // With room for none, then for one more at a time: each call that opens something fails once.
  const int lowest = dup(0);
  ASSERT_GE(lowest, 0);
  close(lowest);
  int failed = 0;
  bool succeeded = false;
  for (int more = 0; more < 8 && !succeeded; ++more) {
    const rlimit few = {static_cast<rlim_t>(lowest + more), limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const absl::StatusOr<Tensor> opened = OpenShared(handle);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    succeeded = opened.ok();
    if (!succeeded) {
      ++failed;
      EXPECT_EQ(KindOf(opened.status()), ErrorKind::kBackend) << opened.status();
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr("Too many open files"));
    }
  }
  EXPECT_TRUE(succeeded);
  EXPECT_GE(failed, 2);
  const int after = dup(0);
  EXPECT_EQ(after, lowest) << "an open descriptor was left";
  close(after);
}

}  // namespace
}  // namespace syncline::tensor
