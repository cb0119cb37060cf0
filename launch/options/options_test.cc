#include "launch/options/options.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/option_values.h"

namespace syncline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchOptions> Parse(const Arguments& arguments, const Variables& variables = {},
                                    const HostResources& host = {8, 0}) {
  return ParseOptions(
      arguments,
      [&](absl::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(std::string(name));
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      host);
}

LaunchOptions Good(const Arguments& arguments, const Variables& variables = {},
                   const HostResources& host = {8, 0}) {
  absl::StatusOr<LaunchOptions> options = Parse(arguments, variables, host);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : LaunchOptions();
}

std::string Error(const Arguments& arguments, const Variables& variables = {},
                  const HostResources& host = {8, 0}) {
  absl::StatusOr<LaunchOptions> options = Parse(arguments, variables, host);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

TEST(OptionsTest, AScriptAloneRunsOnceWithDefaults) {
  const LaunchOptions options = Good({"train.py"});
  EXPECT_EQ(options.kind, LaunchOptions::Program::kScript);
  EXPECT_EQ(options.program, "train.py");
  EXPECT_TRUE(options.arguments.empty());
  EXPECT_EQ(options.workers, 1);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.shutdown_timeout, absl::Seconds(30));
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.master_addr, "");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_FALSE(options.redirects.any());
  EXPECT_FALSE(options.tee.any());
  EXPECT_TRUE(options.information.empty());
}

TEST(OptionsTest, DashesAndUnderscoresAreTheSame) {
  EXPECT_EQ(Good({"--nproc-per-node=3", "a.py"}).workers, 3);
  EXPECT_EQ(Good({"--nproc_per_node=3", "a.py"}).workers, 3);
  EXPECT_EQ(Good({"--nproc_per_node", "3", "--max_restarts", "2", "a.py"}).max_restarts, 2);
  EXPECT_EQ(Good({"--no_python", "ls"}).kind, LaunchOptions::Program::kExecutable);
}

TEST(OptionsTest, EverythingAfterTheScriptIsTheScripts) {
  const LaunchOptions options = Good(
      {"--nproc-per-node", "2", "a.py", "--nproc-per-node=9", "--bogus", "-m", "--", "-h", ""});
  EXPECT_EQ(options.workers, 2);
  EXPECT_EQ(options.kind, LaunchOptions::Program::kScript);
  EXPECT_THAT(options.arguments,
              ElementsAre("--nproc-per-node=9", "--bogus", "-m", "--", "-h", ""));
}

TEST(OptionsTest, ADoubleDashEndsTheOptions) {
  const LaunchOptions options = Good({"--standalone", "--", "-odd.py", "--x"});
  EXPECT_EQ(options.program, "-odd.py");
  EXPECT_THAT(options.arguments, ElementsAre("--x"));
}

TEST(OptionsTest, ModuleAndExecutableAreToldApartAndExcludeEachOther) {
  EXPECT_EQ(Good({"-m", "pkg.train", "-m"}).kind, LaunchOptions::Program::kModule);
  EXPECT_EQ(Good({"--module", "pkg.train"}).program, "pkg.train");
  EXPECT_THAT(Error({"-m", "--no-python", "x"}), HasSubstr("exclude each other"));
}

TEST(OptionsTest, WorkersCanBeCountedFromTheHost) {
  EXPECT_EQ(Good({"--nproc-per-node=cpu", "a.py"}, {}, {6, 2}).workers, 6);
  EXPECT_EQ(Good({"--nproc-per-node=gpu", "a.py"}, {}, {6, 2}).workers, 2);
  EXPECT_EQ(Good({"--nproc-per-node=auto", "a.py"}, {}, {6, 2}).workers, 2);
  EXPECT_EQ(Good({"--nproc-per-node=auto", "a.py"}, {}, {6, 0}).workers, 6);
  EXPECT_THAT(Error({"--nproc-per-node=gpu", "a.py"}, {}, {6, 0}), HasSubstr("no GPU was found"));
  for (const char* bad : {"0", "-1", "two", "2.5", ""}) {
    EXPECT_THAT(Error({std::string("--nproc-per-node=") + bad, "a.py"}),
                HasSubstr("nproc-per-node"));
  }
}

TEST(OptionsTest, OneNodeIsAcceptedAndMoreAreRefusedClearly) {
  Good({"--nnodes=1", "--node-rank=0", "a.py"});
  Good({"--nnodes=1:1", "a.py"});
  EXPECT_THAT(Error({"--nnodes=2", "a.py"}), HasSubstr("not supported yet by this version"));
  EXPECT_THAT(Error({"--nnodes=1:4", "a.py"}), HasSubstr("not supported yet by this version"));
  EXPECT_THAT(Error({"--nnodes=4:1", "a.py"}), HasSubstr("MIN:MAX"));
  EXPECT_THAT(Error({"--nnodes=one", "a.py"}), HasSubstr("'one'"));
  EXPECT_THAT(Error({"--node-rank=1", "a.py"}), HasSubstr("its rank is 0"));
}

TEST(OptionsTest, RendezvousOptionsThatNameThisHostAreAccepted) {
  const LaunchOptions options = Good({"--standalone", "--rdzv-backend=c10d", "--rdzv-id=job7",
                                      "--rdzv-endpoint=localhost:4711", "a.py"});
  EXPECT_EQ(options.rendezvous.id, "job7");
  EXPECT_EQ(options.rendezvous.port, 4711);
  EXPECT_EQ(Good({"--rdzv-endpoint=127.0.0.1", "a.py"}).rendezvous.port, 0);
  EXPECT_EQ(Good({"--rdzv-endpoint=[::1]:80", "a.py"}).rendezvous.port, 80);
  EXPECT_EQ(Good({"--rdzv-endpoint=::1", "a.py"}).rendezvous.port, 0);
  EXPECT_THAT(Error({"--rdzv-endpoint=node7.example:29400", "a.py"}),
              HasSubstr("not supported yet"));
  EXPECT_THAT(Error({"--rdzv-endpoint=localhost:http", "a.py"}), HasSubstr("'http'"));
  EXPECT_THAT(Error({"--rdzv-backend=etcd", "a.py"}), HasSubstr("not supported yet"));
  EXPECT_THAT(Error({"--rdzv-id=a/b", "a.py"}), HasSubstr("without '/'"));
}

TEST(OptionsTest, AnUnknownOptionIsRefusedWithTheNearestMatch) {
  EXPECT_THAT(Error({"--nprocs-per-node=2", "a.py"}),
              HasSubstr("unknown option --nprocs-per-node. Did you mean --nproc-per-node?"));
  EXPECT_THAT(Error({"--max_restart", "2", "a.py"}), HasSubstr("Did you mean --max-restarts?"));
  EXPECT_THAT(Error({"--nproc", "2", "a.py"}), HasSubstr("Did you mean --nproc-per-node?"));
  EXPECT_THAT(Error({"--zzzzzzzzzz", "a.py"}), HasSubstr("See --help"));
  EXPECT_THAT(Error({"-x", "a.py"}), HasSubstr("unknown option -x"));
}

TEST(OptionsTest, OptionsOfLaterVersionsAreNamedAsSuch) {
  EXPECT_THAT(Error({"--virtual-local-rank", "a.py"}), HasSubstr("not supported yet"));
  EXPECT_THAT(Error({"--rdzv_conf", "timeout=3", "a.py"}), HasSubstr("not supported yet"));
}

TEST(OptionsTest, BadValuesNameTheOption) {
  EXPECT_THAT(Error({"--max-restarts=-1", "a.py"}), HasSubstr("--max-restarts"));
  EXPECT_THAT(Error({"--max-restarts=many", "a.py"}), HasSubstr("--max-restarts"));
  for (const char* seconds : {"-3", "nan", "inf", "1e300"}) {
    EXPECT_THAT(Error({absl::StrCat("--shutdown-timeout=", seconds), "a.py"}),
                HasSubstr("--shutdown-timeout"));
  }
  EXPECT_THAT(Error({"--master-port=70000", "a.py"}), HasSubstr("--master-port"));
  EXPECT_THAT(Error({"--role"}), HasSubstr("--role"));
  EXPECT_THAT(Error({"--role=", "a.py"}), HasSubstr("--role= has no value"));
}

TEST(OptionsTest, NoScriptIsAnError) {
  EXPECT_THAT(Error({}), HasSubstr("no script"));
  EXPECT_THAT(Error({"--standalone"}), HasSubstr("no script"));
}

TEST(OptionsTest, TheEnvironmentSetsDefaultsThatTheCommandLineOverrides) {
  const Variables variables = {{"PET_NPROC_PER_NODE", "4"}, {"PET_MODULE", "1"}};
  EXPECT_EQ(Good({"pkg"}, variables).workers, 4);
  EXPECT_EQ(Good({"pkg"}, variables).kind, LaunchOptions::Program::kModule);
  EXPECT_EQ(Good({"--nproc-per-node=2", "pkg"}, variables).workers, 2);
  EXPECT_EQ(Good({"a.py"}, {{"PET_ROLE", ""}}).role, "default");
  EXPECT_THAT(Error({"a.py"}, {{"PET_MAX_RESTARTS", "often"}}),
              HasSubstr("PET_MAX_RESTARTS=often"));
}

TEST(OptionsTest, StreamsAreChosenForAllRanksOrForSome) {
  const LaunchOptions options = Good({"-r", "3", "-t", "0:1,12:2", "a.py"});
  EXPECT_EQ(options.redirects.For(5), Streams::kBoth);
  EXPECT_EQ(options.tee.For(0), Streams::kStdout);
  EXPECT_EQ(options.tee.For(12), Streams::kStderr);
  EXPECT_EQ(options.tee.For(1), Streams::kNone);
  EXPECT_THAT(Error({"-r", "4", "a.py"}), HasSubstr("--redirects: '4'"));
  EXPECT_THAT(Error({"-t", "x:1", "a.py"}), HasSubstr("'x' is not a local rank"));
}

TEST(OptionsTest, AFolderForLogsAloneMeansBothStreamsOfAllRanks) {
  EXPECT_EQ(Good({"--log-dir=/logs", "a.py"}).tee.For(3), Streams::kBoth);
  EXPECT_EQ(Good({"--log-dir=/logs", "-r1", "a.py"}).tee.For(3), Streams::kNone);
}

TEST(OptionsTest, RanksShownOnTheConsoleMustExist) {
  EXPECT_THAT(Good({"--nproc-per-node=3", "--local-ranks-filter=0,2", "a.py"}).console_ranks,
              ElementsAre(0, 2));
  EXPECT_THAT(Error({"--local-ranks-filter=1", "a.py"}), HasSubstr("'1' is not a local rank"));
}

TEST(OptionsTest, HelpAndVersionAreInformation) {
  const std::string help = Good({"--help"}).information;
  EXPECT_THAT(help, HasSubstr("--nproc-per-node"));
  EXPECT_FALSE(absl::StrContains(help, "--nproc_per_node"));
  EXPECT_THAT(help, HasSubstr("Usage: "));
  EXPECT_THAT(Good({"--version"}).information, HasSubstr("syncline-run "));
}

TEST(OptionsTest, NearestMatchIsEmptyForStrangers) {
  EXPECT_EQ(NearestMatch("--role", {"--role", "--tee"}), "--role");
  EXPECT_EQ(NearestMatch("--rolle", {"--role", "--tee"}), "--role");
  EXPECT_EQ(NearestMatch("--learning-rate", {"--role", "--tee"}), "");
}

}  // namespace
}  // namespace syncline
