#include "core/base/env.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

using ::testing::HasSubstr;

constexpr char kName[] = "SYNCLINE_ENV_TEST";
constexpr char kSecretFile[] = "SYNCLINE_SECRET_FILE";

class EnvTest : public ::testing::Test {
 protected:
  EnvTest() : path_(::testing::TempDir() + "/secret") {}

  ~EnvTest() override {
    unsetenv(kName);
    unsetenv(kSecretFile);
    unlink(path_.c_str());
  }

  void WriteSecret(const std::string& secret, mode_t mode) {
    std::ofstream(path_) << secret;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    setenv(kSecretFile, path_.c_str(), 1);
  }

  void ExpectNoSecret(const std::string& message) {
    const absl::StatusOr<std::string> secret = JobSecret();
    ASSERT_FALSE(secret.ok());
    EXPECT_EQ(KindOf(secret.status()), ErrorKind::kArgument);
    EXPECT_THAT(std::string(secret.status().message()), HasSubstr(message));
    EXPECT_THAT(std::string(secret.status().message()), HasSubstr(kSecretFile));
  }

  const std::string path_;
};

TEST_F(EnvTest, AnEmptyValueIsAValue) {
  EXPECT_FALSE(GetEnv(kName).has_value());
  setenv(kName, "", 1);
  EXPECT_EQ(GetEnv(kName), "");
  EXPECT_EQ(*RequireEnv(kName), "");
}

TEST_F(EnvTest, AMissingVariableIsNamedWithWhatSetsIt) {
  const absl::Status status = RequireEnv(kName).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_EQ(
      status.message(),
      "environment variable SYNCLINE_ENV_TEST is not set; a launcher such as syncline-run sets "
      "it. Without one, give the rank and the number of ranks with the init method");
  EXPECT_EQ(RequireEnvInt(kName, 0, 1).status(), status);
}

TEST_F(EnvTest, AnIntegerMayBeEitherEndOfItsRange) {
  setenv(kName, "0", 1);
  EXPECT_EQ(*RequireEnvInt(kName, 0, 7), 0);
  setenv(kName, "7", 1);
  EXPECT_EQ(*RequireEnvInt(kName, 0, 7), 7);
}

TEST_F(EnvTest, ABadIntegerIsShownWithItsRange) {
  for (const char* bad : {"8", "-1", "", "x", "3x", "99999999999999999999"}) {
    setenv(kName, bad, 1);
    const absl::Status status = RequireEnvInt(kName, 0, 7).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + std::string(bad) + "'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("from 0 to 7"));
  }
}

TEST_F(EnvTest, RanksCompareTheirCallsUnlessDebugIsOff) {
  unsetenv("SYNCLINE_DEBUG");
  EXPECT_TRUE(*DebugChecks());
  setenv("SYNCLINE_DEBUG", "ON", 1);
  EXPECT_TRUE(*DebugChecks());
  setenv("SYNCLINE_DEBUG", "off", 1);
  EXPECT_FALSE(*DebugChecks());
  setenv("SYNCLINE_DEBUG", "detail", 1);
  EXPECT_TRUE(*DebugChecks());
  setenv("SYNCLINE_DEBUG", "verbose", 1);
  const absl::Status status = DebugChecks().status();
  unsetenv("SYNCLINE_DEBUG");
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("on, off or detail, not 'verbose'"));
}

TEST_F(EnvTest, WithoutTheVariableThereIsNoSecret) {
  ASSERT_TRUE(JobSecret().ok());
  EXPECT_EQ(*JobSecret(), "");
}

TEST_F(EnvTest, TheSecretIsAllBytesOfTheFile) {
  const std::string bytes("a\0b\n", 4);
  WriteSecret(bytes, 0600);
  ASSERT_TRUE(JobSecret().ok()) << JobSecret().status();
  EXPECT_EQ(*JobSecret(), bytes);
}

TEST_F(EnvTest, ASecretThatOthersMayReadIsRefused) {
  for (const mode_t mode : {0644, 0604, 0620, 0601}) {
    WriteSecret("secret", mode);
    ExpectNoSecret("chmod 600");
  }
}

// So Kubernetes hands it to a container that does not run as root.
TEST_F(EnvTest, OnlyRootMayLetAGroupReadASecret) {
  WriteSecret("secret", 0640);
  EXPECT_EQ(JobSecret().ok(), geteuid() == 0);
  if (geteuid() != 0 || chown(path_.c_str(), 12345, 12345) != 0) return;
  ExpectNoSecret("chmod 600");
}

TEST_F(EnvTest, AnEmptyHugeOrMissingSecretIsRefused) {
  WriteSecret("", 0600);
  ExpectNoSecret("empty");
  WriteSecret(std::string(4097, 'x'), 0600);
  ExpectNoSecret("larger than 4096 bytes");
  unlink(path_.c_str());
  ExpectNoSecret("No such file");
}

TEST_F(EnvTest, APipeForASecretIsRefusedWithoutWaitingForItsWriter) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  setenv(kSecretFile, path_.c_str(), 1);
  ExpectNoSecret("not a regular file");
}

}  // namespace
}  // namespace syncline::base
