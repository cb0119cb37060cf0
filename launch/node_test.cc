// What a node needs of its host.
#include "launch/node.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/testing/log_lines.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/job_files.h"
#include "launch/options/options.h"

namespace syncline::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(NodeTest, WithoutDescriptorsNoFreePortIsFoundAndTheErrorNamesTheLimit) {
  ASSERT_TRUE(FindFreePort().ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<int> port = FindFreePort();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(std::string(port.status().message()),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("Too many open files"),
                    HasSubstr("ulimit -n"), Not(HasSubstr("Bad file descriptor"))));
}

TEST(NodeTest, ANodeThatWaitsForAnInterfaceSaysSoWhenItBegins) {
  setenv("SYNCLINE_SOCKET_IFNAME", "no_such_interface", 1);
  const LogLines lines;
  LaunchOptions options;
  options.nodes = {1, 2};
  options.rendezvous.read_timeout = absl::Seconds(20);
  const auto has_been_said = [&] { return lines.Have("this node waits up to 20s "); };
  const absl::Status status =
      StartNode(options, "secret", MonotonicClock(), has_been_said).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("'no_such_interface'"));
  EXPECT_TRUE(has_been_said()) << lines.text();
  unsetenv("SYNCLINE_SOCKET_IFNAME");
}

// As systemd-tmpfiles(8) does before it removes what is in a folder; see tmpfiles.d(5).
bool MayBeCleaned(const std::string& folder) {
  const base::UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

TEST(JobFilesTest, CleanersOfTemporaryFilesLeaveTheFolderAloneWhileTheJobRuns) {
  auto files = JobFiles::Create(testing::TempDir(), "");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_FALSE(MayBeCleaned((*files)->folder()));
  const std::string folder = (*files)->folder();
  files->reset();
  struct stat info = {};
  EXPECT_NE(stat(folder.c_str(), &info), 0);
}

}  // namespace
}  // namespace syncline::launch
