// docs/launcher.md lists the options that there are.
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/flags.h"
#include "launch/options/parse_for_tests.h"
#include "launch/options/rendezvous_conf.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;

// The names in the first column of the tables below heading `section`, without their marks.
std::vector<std::string> FirstColumn(absl::string_view section) {
  std::ifstream file("docs/launcher.md");
  EXPECT_TRUE(file.good());
  std::vector<std::string> names;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "#")) inside = absl::EndsWith(line, section);
    if (!inside || !absl::StartsWith(line, "| `")) continue;
    const size_t end = line.find('`', 3);
    names.push_back(line.substr(3, end - 3));
  }
  return names;
}

std::vector<std::string> OptionsOfManual() {
  std::vector<std::string> names = FirstColumn("Those of torchrun");
  for (const std::string& own : FirstColumn("Our own")) names.push_back(own);
  return names;
}

// A value that the option takes, and what else must be given with it.
const std::map<std::string, Arguments>& Samples() {
  static const auto* const samples = new std::map<std::string, Arguments>{
      {"nnodes", {"2:4", "--rdzv-endpoint=h"}},
      {"nproc-per-node", {"auto"}},
      {"node-rank", {"0"}},
      {"role", {"trainer"}},
      {"local-addr", {"10.0.0.1"}},
      {"master-addr", {"10.0.0.1"}},
      {"master-port", {"4711"}},
      {"rdzv-endpoint", {"localhost:4711"}},
      {"rdzv-backend", {"c10d"}},
      {"rdzv-id", {"j"}},
      {"rdzv-conf", {"join_timeout=3"}},
      {"tls-cert", {"c", "--tls=certificates", "--tls-key=k", "--tls-ca=a"}},
      {"tls-key", {"k", "--tls=certificates", "--tls-cert=c", "--tls-ca=a"}},
      {"tls-ca", {"a", "--tls=certificates", "--tls-cert=c", "--tls-key=k"}},
      {"tls-peer-name", {"n", "--tls=certificates", "--tls-cert=c", "--tls-key=k", "--tls-ca=a"}},
      {"make-certificates", {"certificates"}},
      {"max-restarts", {"3"}},
      {"shutdown-timeout", {"3"}},
      {"health-timeout", {"3"}},
      {"failure-grace", {"2.5"}},
      {"signals-to-handle", {"SIGTERM,SIGUSR2"}},
      {"signals-to-forward", {"SIGUSR1,SIGCONT"}},
      {"monitor-interval", {"0.1"}},
      {"log-dir", {"/logs"}},
      {"redirects", {"0:1"}},
      {"tee", {"3"}},
      {"local-ranks-filter", {"0"}},
      {"duplicate-stdout-filters", {"a,b"}},
      {"duplicate-stderr-filters", {"a"}},
      {"log-line-prefix-template", {"${rank}: "}},
      {"interactive", {"0"}},
      {"log-rotate-size", {"1M"}},
      {"log-rotate-keep", {"1", "--log-rotate-size=1M"}},
      {"event-log", {"e.json"}},
      {"metrics-port", {"0"}},
      {"config", {"/dev/null"}},
  };
  return *samples;
}

TEST(ManualTest, EveryOptionIsInTheManualOnce) {
  std::multiset<std::string> expected;
  for (const Flag& flag : AllFlags()) expected.insert(absl::StrCat("--", flag.name));
  const std::vector<std::string> names = OptionsOfManual();
  EXPECT_EQ(std::multiset<std::string>(names.begin(), names.end()), expected);
}

TEST(ManualTest, EveryOptionOfTheManualCanBeGivenWithDashesAndUnderscores) {
  for (const std::string& name : OptionsOfManual()) {
    const Flag& flag = FlagNamed(name.substr(2));
    if (flag.name == "json") continue;  // Of `status`; see node_options_test.cc.
    Arguments more;
    const auto sample = Samples().find(std::string(flag.name));
    if (sample != Samples().end()) {
      more = sample->second;
    } else if (flag.takes_value()) {
      more = {std::string(flag.choices.substr(0, flag.choices.find('|')))};
    }
    more.push_back("a.py");
    std::string underscored = name;
    for (char& c : underscored) c = c == '-' ? '_' : c;
    underscored.replace(0, 2, "--");
    for (const std::string& spelling : {name, underscored}) {
      Arguments arguments = more;
      arguments.insert(arguments.begin(), spelling);
      const absl::StatusOr<LaunchOptions> options = Parse(arguments);
      EXPECT_TRUE(options.ok()) << spelling << ": " << options.status();
    }
  }
}

TEST(ManualTest, EveryKeyOfTheRendezvousIsInTheManualWithItsBackends) {
  std::ifstream file("docs/launcher.md");
  const std::string manual((std::istreambuf_iterator<char>(file)), {});
  std::set<std::string> expected;
  for (const RendezvousKey& key : RendezvousKeys()) {
    expected.insert(std::string(key.name));
    std::string backends = key.backends.empty() ? "all" : std::string(key.backends);
    backends = absl::StrJoin(absl::StrSplit(backends, ','), ", ");
    EXPECT_THAT(manual, HasSubstr(absl::StrCat("\n| `", key.name, "` | ", backends, " | ")));
  }
  const std::vector<std::string> names = FirstColumn("Keys of `--rdzv-conf`");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
}

TEST(ManualTest, FurtherVariablesOfOptionsAreInTheManual) {
  std::ifstream file("docs/launcher.md");
  const std::string manual((std::istreambuf_iterator<char>(file)), {});
  for (const Flag& flag : AllFlags()) {
    EXPECT_THAT(manual, HasSubstr(std::string(flag.variable))) << flag.name;
  }
}

}  // namespace
}  // namespace syncline::launch
