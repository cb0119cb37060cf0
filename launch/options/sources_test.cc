// The environment, the file of --config and --dry-run.
#include <signal.h>

#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/config_file.h"
#include "launch/options/flags.h"
#include "launch/options/parse_for_tests.h"
#include "launch/options/rendezvous_conf.h"
#include "launch/options/settings.h"

namespace syncline::launch {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

LaunchOptions FromConfig(const std::string& text, const Variables& variables = {}) {
  return Good({"--config", WriteFile("good.toml", text), "a.py"}, variables);
}

std::string ConfigError(const std::string& text) {
  Settings settings;
  const absl::Status status = AddConfigText(text, "job.toml", &settings);
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(SourcesTest, TheEnvironmentSetsDefaultsThatTheCommandLineOverrides) {
  const Variables variables = {{"PET_NPROC_PER_NODE", "4"}, {"PET_MODULE", "1"}};
  EXPECT_EQ(Good({"pkg"}, variables).workers, 4);
  EXPECT_EQ(Good({"pkg"}, variables).kind, LaunchOptions::Program::kModule);
  EXPECT_EQ(Good({"--nproc-per-node=2", "pkg"}, variables).workers, 2);
  EXPECT_EQ(Good({"a.py"}, {{"PET_MODULE", "0"}}).kind, LaunchOptions::Program::kScript);
  EXPECT_EQ(Good({"a.py"}, {{"PET_ROLE", ""}}).role, "default");
  EXPECT_THAT(Error({"a.py"}, {{"PET_MAX_RESTARTS", "often"}}),
              HasSubstr("PET_MAX_RESTARTS: 'often'"));
  EXPECT_THAT(Error({"a.py"}, {{"PET_MODULE", "maybe"}}), HasSubstr("PET_MODULE=maybe"));
}

TEST(SourcesTest, OurVariablesWinOverTorchruns) {
  EXPECT_EQ(Good({"a.py"}, {{"PET_ROLE", "p"}, {"SYNCLINE_ROLE", "s"}}).role, "s");
  EXPECT_EQ(Good({"a.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}}).shutdown_timeout,
            absl::Seconds(7));
  EXPECT_EQ(Good({"a.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}, {"PET_SHUTDOWN_TIMEOUT", "8"}})
                .shutdown_timeout,
            absl::Seconds(8));
  EXPECT_EQ(Good({"a.py"}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "x"}}).prefix_template, "x");
}

TEST(SourcesTest, EveryOptionHasItsVariable) {
  for (const Flag& flag : AllFlags()) {
    if (flag.name == "help" || flag.name == "version" || flag.name == "print-completion" ||
        flag.name == "print-manual" || flag.name == "make-certificates") {
      continue;
    }
    std::string upper;
    for (const char c : flag.name) upper += c == '-' ? '_' : absl::ascii_toupper(c);
    const std::string choice(flag.choices.substr(0, flag.choices.find('|')));
    const std::string value = flag.takes_value() ? (choice.empty() ? "1" : choice) : "true";
    for (const char* prefix : {"SYNCLINE_", "PET_"}) {
      const Variables variables = {{prefix + upper, value}};
      Settings settings;
      ASSERT_TRUE(settings.AddEnvironment(LookUpIn(variables)).ok());
      ASSERT_NE(settings.Find(flag.name), nullptr) << flag.name;
      EXPECT_EQ(settings.Find(flag.name)->text, value);
    }
  }
}

TEST(SourcesTest, ALauncherInAWorkerDoesNotTakeTheOuterJobsRestartsForItsOwn) {
  EXPECT_EQ(Good({"a.py"}, {{"SYNCLINE_MAX_RESTARTS", "3"}}).max_restarts, 3);
  EXPECT_EQ(Good({"a.py"}, {{"SYNCLINE_MAX_RESTARTS", "3"}, {"SYNCLINE_ROUND", "0"}}).max_restarts,
            0);
}

TEST(SourcesTest, AFileSetsOptionsByTheirNames) {
  const LaunchOptions options = FromConfig(
      "nnodes = \"2:4\"\n"
      "nproc_per_node = 3\n"
      "rdzv-endpoint = \"h:1\"\n"
      "max-restarts = 5\n"
      "shutdown-timeout = 1.5\n"
      "module = true\n"
      "failure-grace = 1.25\n"
      "signals-to-handle = [\"SIGTERM\", \"SIGINT\"]\n"
      "signals_to_forward = [\"SIGHUP\"]\n"
      "[rdzv-conf]\n"
      "join_timeout = 9\n"
      "read_timeout = 2.5\n"
      "scale_up_delay = 0.75\n"
      "restart_backoff = 0\n");
  EXPECT_EQ(options.nodes.max, 4);
  EXPECT_EQ(options.workers, 3);
  EXPECT_EQ(options.max_restarts, 5);
  EXPECT_EQ(options.shutdown_timeout, absl::Seconds(1.5));
  EXPECT_EQ(options.kind, LaunchOptions::Program::kModule);
  EXPECT_EQ(options.failure_grace, absl::Seconds(1.25));
  EXPECT_THAT(options.stop_signals, ElementsAre(SIGTERM, SIGINT));
  EXPECT_THAT(options.forwarded_signals, ElementsAre(SIGHUP));
  EXPECT_EQ(options.rendezvous.join_timeout, absl::Seconds(9));
  EXPECT_EQ(options.rendezvous.read_timeout, absl::Seconds(2.5));
  EXPECT_EQ(options.rendezvous.scale_up_delay, absl::Seconds(0.75));
  EXPECT_EQ(options.rendezvous.restart_backoff, absl::ZeroDuration());
}

TEST(SourcesTest, NoSignalIsPassedOnIfAFileHasAnEmptyListOrAVariableSaysNone) {
  EXPECT_THAT(FromConfig("signals-to-forward = []").forwarded_signals, IsEmpty());
  EXPECT_THAT(FromConfig("signals-to-forward = \"\"").forwarded_signals, IsEmpty());
  EXPECT_THAT(ConfigError("signals-to-handle = []"), HasSubstr("has no value"));
  EXPECT_THAT(Good({"a.py"}, {{"SYNCLINE_SIGNALS_TO_FORWARD", "none"}}).forwarded_signals,
              IsEmpty());
  // An empty variable counts as none.
  EXPECT_THAT(Good({"a.py"}, {{"SYNCLINE_SIGNALS_TO_FORWARD", ""}}).forwarded_signals,
              ElementsAre(SIGUSR1, SIGUSR2));
}

TEST(SourcesTest, OfTwoListsOfSignalsTheOneOfTheStrongerSourceCounts) {
  const LaunchOptions stops = Good({"--signals-to-handle=SIGTERM,SIGUSR1", "a.py"},
                                   {{"SYNCLINE_SIGNALS_TO_FORWARD", "SIGUSR1,SIGHUP"}});
  EXPECT_THAT(stops.stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(stops.forwarded_signals, ElementsAre(SIGUSR2));
  EXPECT_THAT(stops.notes,
              ElementsAre(HasSubstr("SYNCLINE_SIGNALS_TO_FORWARD=SIGUSR1,SIGHUP does not count "
                                    "beside --signals-to-handle=SIGTERM,SIGUSR1: SIGUSR1")));
  const LaunchOptions forwards =
      Good({"--signals-to-forward=SIGUSR1", "a.py"}, {{"PET_SIGNALS_TO_HANDLE", "SIGUSR1"}});
  EXPECT_THAT(forwards.stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(forwards.forwarded_signals, ElementsAre(SIGUSR1));
  EXPECT_THAT(forwards.notes, ElementsAre(HasSubstr("PET_SIGNALS_TO_HANDLE=SIGUSR1 does not")));
}

TEST(SourcesTest, AFileIsWeakerThanVariablesAndTheCommandLine) {
  EXPECT_EQ(FromConfig("role = \"f\"", {{"PET_ROLE", "p"}}).role, "p");
  const std::string path = WriteFile("weak.toml", "role = \"f\"");
  EXPECT_EQ(Good({"--config", path, "--role=c", "a.py"}).role, "c");
  EXPECT_EQ(Good({"a.py"}, {{"SYNCLINE_CONFIG", path}}).role, "f");
}

TEST(SourcesTest, MistakesInAFileNameTheLine) {
  EXPECT_THAT(ConfigError("role = \"x\"\nmax-restart = 3\n"),
              AllOf(HasSubstr("job.toml:2"), HasSubstr("Did you mean 'max-restarts'?")));
  EXPECT_THAT(ConfigError("\nrole = \n"), HasSubstr("job.toml:2: not TOML"));
  EXPECT_THAT(ConfigError("help = true"), HasSubstr("there is no option 'help'"));
  EXPECT_THAT(ConfigError("module = 3"), HasSubstr("this is a switch"));
  EXPECT_THAT(ConfigError("[role]\na = 1"), HasSubstr("must be a text, a number"));
  EXPECT_THAT(ConfigError("rdzv-backend = \"c1d\""), HasSubstr("Did you mean 'c10d'?"));
  EXPECT_THAT(Error({"--config", WriteFile("bad.toml", "\n\nmax-restarts = -4"), "a.py"}),
              HasSubstr("bad.toml:3: max-restarts: '-4'"));
  EXPECT_THAT(Error({"--config=/nowhere/x.toml", "a.py"}),
              AllOf(HasSubstr("--config=/nowhere/x.toml"), HasSubstr("No such file")));
}

TEST(SourcesTest, ADryRunExplainsAJobOfOneNode) {
  const Variables variables = {{"PATH", "/usr/bin:/bin"}, {"PET_ROLE", "trainer"}};
  const std::string text =
      Good({"--dry-run", "--nproc-per-node=2", "--log-dir=/logs", "--rdzv-id=j", "-r", "0:1,1:2",
            "--max-restarts=3", "--no-python", "sh", "-c", "echo 'a b'"},
           variables)
          .information;
  EXPECT_THAT(text, HasSubstr("nothing has been started"));
  EXPECT_THAT(text, HasSubstr("this one alone"));
  EXPECT_THAT(text, HasSubstr("sh -c 'echo '\\''a b'\\'''"));
  EXPECT_THAT(text, HasSubstr("/logs/j/attempt_0/0/stdout.log\n"));
  EXPECT_THAT(text, HasSubstr("/logs/j/attempt_0/1/stderr.log\n"));
  EXPECT_THAT(text, Not(HasSubstr("/0/stderr.log")));
  EXPECT_THAT(text, HasSubstr("up to 3 times"));
  EXPECT_THAT(text, HasSubstr("waits for 1s, each further one twice as long, up to 30s"));
  EXPECT_THAT(text, HasSubstr("SIGTERM, and SIGKILL after 1s\n"));
  EXPECT_THAT(
      text, HasSubstr("stopped by SIGTERM, SIGINT, SIGHUP, SIGQUIT; SIGKILL follows after 30s\n"));
  EXPECT_THAT(text, HasSubstr("passed on to the workers: SIGUSR1, SIGUSR2\n"));
  EXPECT_THAT(text, HasSubstr("WORLD_SIZE=2\n"));
  EXPECT_THAT(text, HasSubstr("worker 1: LOCAL_RANK=1 RANK=1 ROLE_RANK=1\n"));
  EXPECT_THAT(text, HasSubstr("MASTER_PORT=<free port>"));
  EXPECT_THAT(text, HasSubstr("role = trainer   from the variable PET_ROLE"));
  EXPECT_THAT(text, HasSubstr("max-restarts = 3   from the command line"));
}

TEST(SourcesTest, ADryRunSaysWhatOnlyTheRendezvousKnows) {
  const std::string text = Good({"--dry-run", "--nnodes=2:3", "--rdzv-endpoint=h:1", "--no-python",
                                 "--nproc-per-node=2", "sh"},
                                {{"PATH", "/usr/bin:/bin"}})
                               .information;
  EXPECT_THAT(text, HasSubstr("2 to 3"));
  EXPECT_THAT(text, HasSubstr("c10d at h:1"));
  EXPECT_THAT(text, HasSubstr("RANK=<from the rendezvous>"));
  EXPECT_THAT(text, HasSubstr("LOCAL_WORLD_SIZE=2"));
}

TEST(SourcesTest, ADryRunShowsTheTimesAndSignalsThatWereChosen) {
  const std::string text =
      Good({"--dry-run", "--nnodes=2:3", "--rdzv-endpoint=h:1", "--max-restarts=2",
            "--rdzv-conf=scale_up_delay=20,restart_backoff=7", "--failure-grace=2.5",
            "--signals-to-handle=SIGTERM", "--signals-to-forward=", "--no-python", "sh"},
           {{"PATH", "/usr/bin:/bin"}})
          .information;
  EXPECT_THAT(text, HasSubstr("one that comes later is taken in after 20s\n"));
  EXPECT_THAT(text, HasSubstr("waits for 7s"));
  EXPECT_THAT(text, HasSubstr("SIGKILL after 2.5s\n"));
  EXPECT_THAT(text, HasSubstr("stopped by SIGTERM; "));
  EXPECT_THAT(text, HasSubstr("passed on to the workers: none\n"));
  EXPECT_THAT(text, HasSubstr("signals-to-forward = ''   from the command line"));
}

TEST(SourcesTest, ADryRunShowsNoPasswordAndSaysWhatWouldFail) {
  const std::string text =
      Good({"--dry-run", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-id=j",
            "--rdzv-conf=user=u,password=secret", "/nowhere/train.py"})
          .information;
  EXPECT_FALSE(absl::StrContains(text, "secret,")) << text;
  EXPECT_THAT(text, HasSubstr("password=***"));
  EXPECT_THAT(text, Not(HasSubstr("password=secret")));
  EXPECT_THAT(text, HasSubstr("It would fail: "));
  EXPECT_THAT(Good({"--dry-run", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h",
                    "--rdzv-id=j", "--rdzv-conf=user=u,password=\"a,secret\"", "sh"})
                  .information,
              Not(HasSubstr("secret")));
}

TEST(SourcesTest, AValueOfATableMayHaveCommas) {
  Settings settings;
  ASSERT_TRUE(
      AddConfigText("[rdzv-conf]\npassword = 'a,\"b\"'\nuser = 'u'\n", "f", &settings).ok());
  RendezvousOptions options;
  options.backend = RendezvousOptions::Backend::kEtcd;
  ASSERT_TRUE(ReadRendezvousConf("f", settings.Text("rdzv-conf", ""), &options).ok());
  EXPECT_EQ(options.etcd.password, "a,\"b\"");
}

}  // namespace
}  // namespace syncline::launch
