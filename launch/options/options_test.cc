#include "launch/options/options.h"

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/flags.h"
#include "launch/options/option_values.h"
#include "launch/options/parse_for_tests.h"

namespace syncline::launch {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_THAT(Error({"-m", "--no-python", "x"}),
              HasSubstr("--module and --no-python exclude each other"));
  EXPECT_EQ(Good({"--run-path", "a.py"}).kind, LaunchOptions::Program::kRunPath);
  EXPECT_THAT(Error({"--run-path", "--no-python", "x"}), HasSubstr("exclude each other"));
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

TEST(OptionsTest, AnUnknownOptionIsRefusedWithTheNearestMatch) {
  EXPECT_THAT(Error({"--nprocs-per-node=2", "a.py"}),
              HasSubstr("unknown option --nprocs-per-node. Did you mean --nproc-per-node?"));
  EXPECT_THAT(Error({"--max_restartz", "2", "a.py"}), HasSubstr("Did you mean --max-restarts?"));
  EXPECT_THAT(Error({"--zzzzzzzzzz", "a.py"}), HasSubstr("See --help"));
  EXPECT_THAT(Error({"-x", "a.py"}), HasSubstr("unknown option -x"));
  EXPECT_THAT(Error({"-mr", "a.py"}), HasSubstr("Did you mean -m?"));
}

TEST(OptionsTest, OptionsMayBeShortenedWhileTheyMeanOneThing) {
  EXPECT_EQ(Good({"--nproc", "2", "a.py"}).workers, 2);
  EXPECT_EQ(Good({"--nproc_per=2", "a.py"}).workers, 2);
  EXPECT_EQ(Good({"--max=2", "a.py"}).max_restarts, 2);
  EXPECT_THAT(Error({"--rdzv=1", "a.py"}),
              HasSubstr("--rdzv may mean --rdzv-backend or --rdzv-endpoint or --rdzv-id"));
}

TEST(OptionsTest, ValuesStandBehindTheOptionOrAfterAnEqualsSign) {
  for (const Arguments& arguments : {Arguments{"-r", "2", "a.py"},
                                     {"-r2", "a.py"},
                                     {"-r=2", "a.py"},
                                     {"--redirects=2", "a.py"},
                                     {"--redirects", "2", "a.py"},
                                     {"-r", "1", "-r", "2", "a.py"}}) {
    EXPECT_EQ(Good(arguments).redirects.For(0), Streams::kStderr);
  }
  EXPECT_THAT(Error({"--role"}), HasSubstr("--role needs a value"));
  EXPECT_THAT(Error({"--role", "--standalone", "a.py"}),
              HasSubstr("'--standalone' looks like an option"));
  EXPECT_THAT(Error({"--role", "", "a.py"}), HasSubstr("the value of --role is empty"));
  EXPECT_THAT(Error({"--max-restarts", "-1", "a.py"}), HasSubstr("'-1' is not a number"));
  EXPECT_THAT(Error({"--standalone=perhaps", "a.py"}), HasSubstr("this is a switch"));
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

TEST(OptionsTest, HelpFitsOnATerminalAndNamesEveryOption) {
  const std::string help = Good({"-h"}).information;
  for (absl::string_view line : absl::StrSplit(help, '\n')) EXPECT_LE(line.size(), 100u) << line;
  for (const Flag& flag : AllFlags()) EXPECT_THAT(help, HasSubstr(absl::StrCat("--", flag.name)));
}

TEST(OptionsTest, TheManualPageHasEveryOptionAndOnlyKnownMacros) {
  const std::string page = Good({"--print-manual"}).information;
  for (const Flag& flag : AllFlags()) {
    const std::string name = absl::StrReplaceAll(flag.name, {{"-", "\\-"}});
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\\fB\\-\\-", name, "\\fR"))) << flag.name;
  }
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, ".")) continue;
    EXPECT_THAT(std::string(line.substr(0, line.find(' '))),
                AnyOf(".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".RB", ".br"));
  }
}

TEST(OptionsTest, CompletionsKnowOptionsAndTheirValues) {
  for (const char* shell : {"bash", "zsh", "tcsh", "fish"}) {
    const std::string script = Good({"--print-completion", shell}).information;
    for (const Flag& flag : AllFlags()) EXPECT_THAT(script, HasSubstr(std::string(flag.name)));
    EXPECT_THAT(script, HasSubstr("static c10d etcd etcd-v2 file"));
  }
  EXPECT_THAT(Error({"--print-completion=bsh"}), HasSubstr("Did you mean 'bash'?"));
}

TEST(OptionsTest, SignalsThatStopTheJobAreChosenByName) {
  EXPECT_THAT(Good({"a.py"}).stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(Good({"--signals-to-handle=SIGUSR1,term,USR1", "a.py"}).stop_signals,
              ElementsAre(SIGUSR1, SIGTERM));
  EXPECT_THAT(Error({"--signals-to-handle=,", "a.py"}), HasSubstr("no signal is named"));
}

TEST(OptionsTest, SignalsThatArePassedOnAreChosenByName) {
  EXPECT_THAT(Good({"a.py"}).forwarded_signals, ElementsAre(SIGUSR1, SIGUSR2));
  const LaunchOptions options =
      Good({"--signals-to-handle=SIGTERM", "--signals-to-forward=SIGHUP, usr1,WINCH", "a.py"});
  EXPECT_THAT(options.stop_signals, ElementsAre(SIGTERM));
  EXPECT_THAT(options.forwarded_signals, ElementsAre(SIGHUP, SIGUSR1, SIGWINCH));
  for (const Arguments& none : std::vector<Arguments>{{"--signals-to-forward="},
                                                      {"--signals-to-forward", ""},
                                                      {"--signals-to-forward=None"}}) {
    Arguments arguments = none;
    arguments.push_back("a.py");
    const LaunchOptions without = Good(arguments);
    EXPECT_THAT(without.forwarded_signals, IsEmpty());
    EXPECT_EQ(without.program, "a.py");
  }
}

TEST(OptionsTest, SignalsThatTheLauncherCannotTakeAreRefusedInBothLists) {
  for (const std::string option : {"--signals-to-handle=", "--signals-to-forward="}) {
    for (const char* name : {"SIGFOO", "10", "none,USR1", "SIG"}) {
      EXPECT_THAT(Error({option + name, "a.py"}),
                  AllOf(HasSubstr(option.substr(0, option.size() - 1)),
                        HasSubstr("no signal is called '")));
    }
    for (const char* name : {"SIGKILL", "stop"}) {
      EXPECT_THAT(Error({option + name, "a.py"}),
                  HasSubstr(absl::StrCat(name, " cannot be used: no process can handle it")));
    }
    for (const char* name : {"SIGCHLD", "SIGPIPE", "SIGALRM", "SIGXFSZ"}) {
      EXPECT_THAT(Error({option + "SIGUSR1," + name, "a.py"}),
                  HasSubstr(absl::StrCat(name, " cannot be used: the launcher needs it itself")));
    }
    for (const char* name : {"SIGSEGV", "SIGABRT", "SIGTRAP"}) {
      EXPECT_THAT(Error({option + name, "a.py"}), HasSubstr("cannot be used: it means that"));
    }
  }
}

TEST(OptionsTest, ASignalCannotBothStopTheJobAndBePassedOn) {
  EXPECT_THAT(
      Error({"--signals-to-handle=SIGTERM,USR1", "--signals-to-forward=SIGHUP,SIGUSR1", "a.py"}),
      HasSubstr("--signals-to-handle=SIGTERM,USR1 and --signals-to-forward=SIGHUP,SIGUSR1 exclude "
                "each other: SIGUSR1 cannot both stop the job and be passed on"));
  // Of the defaults only those that are passed on give way.
  EXPECT_THAT(Good({"--signals-to-handle=SIGTERM,SIGUSR1", "a.py"}).forwarded_signals,
              ElementsAre(SIGUSR2));
  EXPECT_THAT(Error({"--signals-to-forward=SIGUSR1,SIGHUP", "a.py"}),
              HasSubstr("SIGHUP stops the job unless --signals-to-handle names others, as in "
                        "--signals-to-handle=SIGTERM,SIGINT,SIGQUIT"));
  EXPECT_THAT(Error({"--signals-to-forward=QUIT,HUP,INT,TERM", "a.py"}),
              HasSubstr("SIGTERM stops the job unless --signals-to-handle names others"));
}

TEST(OptionsTest, TheGraceAfterAFailureIsAtMostTheShutdownTimeout) {
  EXPECT_EQ(Good({"a.py"}).failure_grace, absl::Seconds(1));
  EXPECT_EQ(Good({"--failure-grace=2.5", "a.py"}).failure_grace, absl::Seconds(2.5));
  EXPECT_EQ(Good({"--failure-grace=0", "a.py"}).failure_grace, absl::ZeroDuration());
  const LaunchOptions bounded = Good({"--failure-grace=60", "a.py"});
  EXPECT_EQ(bounded.failure_grace, absl::Seconds(30));
  EXPECT_THAT(bounded.notes, ElementsAre("--failure-grace=60 counts as --shutdown-timeout, 30s"));
  const LaunchOptions both = Good({"--failure-grace=60", "--shutdown-timeout=60", "a.py"});
  EXPECT_EQ(both.failure_grace, absl::Seconds(60));
  EXPECT_THAT(both.notes, IsEmpty());
  const LaunchOptions less = Good({"--shutdown-timeout=0.5", "a.py"});
  EXPECT_EQ(less.failure_grace, absl::Seconds(0.5));
  EXPECT_THAT(less.notes, IsEmpty());
  for (const char* bad : {"-1", "soon", "inf", "1s"}) {
    EXPECT_THAT(Error({absl::StrCat("--failure-grace=", bad), "a.py"}),
                HasSubstr("is no number of seconds"));
  }
}

TEST(OptionsTest, LogsAreFilteredRotatedAndPrefixed) {
  const LaunchOptions options =
      Good({"--duplicate-stdout-filters=loss,ERROR", "--duplicate-stderr-filters=warn",
            "--log-line-prefix-template=[${rank}] ", "--log-rotate-size=64M", "--log-rotate-keep=2",
            "a.py"});
  EXPECT_THAT(options.stdout_filters, ElementsAre("loss", "ERROR"));
  EXPECT_THAT(options.stderr_filters, ElementsAre("warn"));
  EXPECT_EQ(options.prefix_template, "[${rank}] ");
  EXPECT_EQ(options.log_rotate_bytes, 64 << 20);
  EXPECT_EQ(options.log_rotate_keep, 2);
  EXPECT_EQ(Good({"--log-rotate-size=3kib", "a.py"}).log_rotate_bytes, 3072);
  EXPECT_EQ(Good({"--log-rotate-size=7", "a.py"}).log_rotate_bytes, 7);
  for (const char* bad : {"0", "-1", "M", "64X", "9999999999T", "1.5G"}) {
    EXPECT_THAT(Error({"--log-rotate-size", bad, "a.py"}), HasSubstr("is no size"));
  }
  EXPECT_THAT(Error({"--log-rotate-keep=2", "a.py"}), HasSubstr("needs --log-rotate-size"));
}

TEST(OptionsTest, MonitoringIsOffUnlessAskedFor) {
  const LaunchOptions none = Good({"a.py"});
  EXPECT_EQ(none.metrics_port, -1);
  EXPECT_EQ(none.event_log, "");
  EXPECT_EQ(none.status_line, LaunchOptions::StatusLine::kAuto);
  EXPECT_EQ(none.health_timeout, absl::InfiniteDuration());
  const LaunchOptions all = Good({"--metrics-port=0", "--event-log=e.json", "--status-line=never",
                                  "--health-timeout=2.5", "a.py"});
  EXPECT_EQ(all.metrics_port, 0);
  EXPECT_EQ(all.event_log, "e.json");
  EXPECT_EQ(all.status_line, LaunchOptions::StatusLine::kNever);
  EXPECT_EQ(all.health_timeout, absl::Seconds(2.5));
  EXPECT_EQ(Good({"--event-log-handler=console", "a.py"}).event_log, "/dev/stderr");
  EXPECT_THAT(Error({"--health-timeout=0", "a.py"}), HasSubstr("must be more than 0"));
}

TEST(OptionsTest, BindingAndLocalRanksAreChosenByName) {
  EXPECT_EQ(Good({"--numa-binding=core-complex", "a.py"}).numa, LaunchOptions::Numa::kCoreComplex);
  EXPECT_EQ(Good({"--numa_binding=node", "a.py"}).numa, LaunchOptions::Numa::kNode);
  EXPECT_EQ(Good({"a.py"}).numa, LaunchOptions::Numa::kNone);
  EXPECT_EQ(Good({"--virtual-local-rank", "a.py"}).local_rank, LaunchOptions::LocalRank::kVirtual);
  EXPECT_THAT(Error({"--numa-binding=nodes", "a.py"}), HasSubstr("Did you mean 'node'?"));
}

TEST(OptionsTest, OptionsWithoutEffectAreAcceptedAndSaidOnce) {
  EXPECT_TRUE(Good({"--monitor-interval=0.5", "--logs-specs=default", "a.py"}).notes.empty());
  EXPECT_THAT(Good({"--start-method=fork", "a.py"}).notes,
              ElementsAre(HasSubstr("--start-method=fork changes nothing")));
  EXPECT_THAT(Error({"--start-method=thread", "a.py"}), HasSubstr("'thread' is not known"));
  EXPECT_THAT(Error({"--monitor-interval=often", "a.py"}), HasSubstr("--monitor-interval"));
  EXPECT_THAT(Error({"--logs-specs=mine", "a.py"}), HasSubstr("It is one of default"));
}

TEST(OptionsTest, NearestMatchIsEmptyForStrangers) {
  EXPECT_EQ(NearestMatch("--role", {"--role", "--tee"}), "--role");
  EXPECT_EQ(NearestMatch("--rolle", {"--role", "--tee"}), "--role");
  EXPECT_EQ(NearestMatch("--learning-rate", {"--role", "--tee"}), "");
}

}  // namespace
}  // namespace syncline::launch
