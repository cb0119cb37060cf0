#include "launch/options/options.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/env.h"
#include "core/status.h"
#include "launch/options/option_values.h"

namespace syncline {
namespace {

constexpr absl::string_view kVersion = SYNCLINE_VERSION;  // From bazel/version.bzl.

// Options of torchrun that this version does not have: said so, instead of "unknown".
constexpr absl::string_view kNotYet[] = {
    "--run-path",          "--start-method",
    "--rdzv-conf",         "--local-addr",
    "--event-log-handler", "--duplicate-stdout-filters",
    "--logs-specs",        "--duplicate-stderr-filters",
    "--numa-binding",      "--log-line-prefix-template",
    "--signals-to-handle", "--virtual-local-rank",
    "--print-completion",
};

constexpr absl::string_view kUsage =
    "Usage: syncline-run [options] script [arguments of the script]";

// Help with one spelling of each option.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return absl::StrCat(kUsage, "\n");
  }
  std::string make_option_name(const CLI::Option* option, bool /*is_positional*/) const override {
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) {
      if (!absl::StrContains(name, '_')) names.push_back("--" + name);
    }
    return absl::StrJoin(names, ", ");
  }
};

// The options as text, before any of them is understood.
struct RawOptions {
  bool standalone = false;
  bool module = false;
  bool no_python = false;
  std::string nnodes = "1";
  std::string workers = "1";
  int node_rank = 0;
  double monitor_interval = 0.1;
  double shutdown_timeout = 30;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;
};

class Parser {
 public:
  Parser(const EnvironmentLookup& environment, const HostResources& host)
      : environment_(environment), host_(host) {
    app_.formatter(std::make_shared<Formatter>());
    app_.footer("Each option can also be set by the environment variable PET_<OPTION>.");
    app_.set_help_flag("-h,--help", "Print this and exit");
    app_.set_version_flag("--version", absl::StrCat("syncline-run ", kVersion),
                          "Print the version and exit");
    app_.prefix_command();
    AddJobOptions();
    AddOutputOptions();
  }

  absl::StatusOr<LaunchOptions> Parse(const std::vector<std::string>& arguments);

 private:
  void AddJobOptions();
  void AddOutputOptions();

  template <typename T>
  CLI::Option* Add(const std::string& names, T& value, const std::string& help) {
    return Remember(app_.add_option(WithUnderscores(names), value, help)->take_last());
  }
  void AddFlag(const std::string& names, bool& value, const std::string& help) {
    Remember(app_.add_flag(WithUnderscores(names), value, help)->take_last());
  }
  CLI::Option* Remember(CLI::Option* option) {
    names_.push_back("--" + option->get_lnames().front());
    return option;
  }
  static std::string WithUnderscores(const std::string& names);

  std::vector<std::string> ArgumentsFromEnvironment();
  absl::Status RefuseUnknown(absl::string_view option) const;
  absl::Status TakeProgram(const std::vector<std::string>& rest);
  absl::Status Interpret();
  absl::Status InterpretRendezvous();

  const EnvironmentLookup& environment_;
  const HostResources& host_;
  CLI::App app_{"Starts the workers of a Syncline job on this host and watches over them."};
  std::vector<std::string> names_;             // "--nproc-per-node", ...
  std::vector<std::string> from_environment_;  // The PET_ variables that are set.
  RawOptions raw_;
  LaunchOptions options_;
};

std::string Parser::WithUnderscores(const std::string& names) {
  std::vector<std::string> all = absl::StrSplit(names, ',');
  const std::string& dashed = all.back();
  const std::string underscored =
      absl::StrCat("--", absl::StrReplaceAll(dashed.substr(2), {{"-", "_"}}));
  if (underscored != dashed) all.push_back(underscored);
  return absl::StrJoin(all, ",");
}

void Parser::AddJobOptions() {
  AddFlag("--standalone", raw_.standalone, "A job of this host alone (so far always the case)");
  Add("--nnodes", raw_.nnodes, "Number of nodes: 1 or 1:1 in this version");
  Add("--nproc-per-node", raw_.workers,
      "Workers to start: a number, auto (GPUs if any, otherwise CPUs), cpu or gpu");
  Add("--node-rank", raw_.node_rank, "Rank of this node: 0 in this version");
  AddFlag("-m,--module", raw_.module, "The script is the name of a Python module (python -m)");
  AddFlag("--no-python", raw_.no_python, "The script is a program to run without Python");
  Add("--max-restarts", options_.max_restarts,
      "How often all workers are started anew after a failure")
      ->check(CLI::NonNegativeNumber);
  Add("--monitor-interval", raw_.monitor_interval,
      "Accepted for compatibility: workers are watched without an interval")
      ->check(CLI::NonNegativeNumber);
  Add("--shutdown-timeout", raw_.shutdown_timeout,
      "Seconds that workers have between a stop signal and SIGKILL")
      ->check(CLI::NonNegativeNumber);
  Add("--role", options_.role, "Name of the workers' role, for ROLE_NAME");
  Add("--master-addr", options_.master_addr, "MASTER_ADDR of the workers");
  Add("--master-port", options_.master_port, "MASTER_PORT of the workers; 0: a free one")
      ->check(CLI::Range(0, 65535));
  Add("--rdzv-id", options_.rendezvous.id, "The job's name; otherwise a random one");
  Add("--rdzv-backend", raw_.rdzv_backend, "static or c10d, the same thing on one node");
  Add("--rdzv-endpoint", raw_.rdzv_endpoint,
      "localhost[:port], where the launcher serves the job's store");
}

void Parser::AddOutputOptions() {
  Add("--log-dir", options_.log_dir,
      "Write the workers' output to DIR/<id>/attempt_<n>/<local rank>/{stdout,stderr}.log; "
      "without -r and -t: as well as to the console");
  Add("-r,--redirects", raw_.redirects,
      "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; per rank: 0:1,1:2");
  Add("-t,--tee", raw_.tee, "Streams that go to files and to the console; values as for -r");
  Add("--local-ranks-filter", raw_.local_ranks_filter,
      "Show only these local ranks on the console: 0,2");
}

absl::StatusOr<LaunchOptions> Parser::Parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = ArgumentsFromEnvironment();
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::reverse(all.begin(), all.end());  // As CLI11 wants them.
  try {
    app_.parse(std::move(all));
  } catch (const CLI::CallForHelp&) {
    options_.information = app_.help();
    return options_;
  } catch (const CLI::CallForVersion& version) {
    options_.information = absl::StrCat(version.what(), "\n");
    return options_;
  } catch (const CLI::ParseError& error) {
    std::string message(absl::StripSuffix(error.what(), "."));
    if (!from_environment_.empty()) {
      absl::StrAppend(&message, " (the environment sets ", absl::StrJoin(from_environment_, ", "),
                      ")");
    }
    return ArgumentError(absl::StrCat(message, ". See --help"));
  }
  const std::vector<std::string> rest = app_.remaining();
  // CLI11 reads "--role= a.py" as "--role=a.py".
  for (size_t i = 0; i + rest.size() < arguments.size(); ++i) {
    if (absl::StartsWith(arguments[i], "--") && absl::EndsWith(arguments[i], "=")) {
      return ArgumentError(absl::StrCat(arguments[i], " has no value"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(TakeProgram(rest));
  SYNCLINE_RETURN_IF_ERROR(Interpret());
  return options_;
}

std::vector<std::string> Parser::ArgumentsFromEnvironment() {
  std::vector<std::string> arguments;
  for (const std::string& name : names_) {
    const std::string variable = absl::StrCat(
        "PET_", absl::AsciiStrToUpper(absl::StrReplaceAll(name.substr(2), {{"-", "_"}})));
    const std::optional<std::string> value = environment_(variable);
    if (value.has_value() && !value->empty()) {
      arguments.push_back(absl::StrCat(name, "=", *value));
      from_environment_.push_back(absl::StrCat(variable, "=", *value));
    }
  }
  return arguments;
}

absl::Status Parser::RefuseUnknown(absl::string_view option) const {
  const absl::string_view given = option.substr(0, option.find('='));
  const std::string dashed =
      absl::StartsWith(given, "--") ? absl::StrReplaceAll(given, {{"_", "-"}}) : std::string(given);
  if (std::find(std::begin(kNotYet), std::end(kNotYet), dashed) != std::end(kNotYet)) {
    return UnsupportedError(absl::StrCat(given, " is not supported yet by this version"));
  }
  const std::string nearest = NearestMatch(dashed, names_);
  const std::string hint =
      nearest.empty() ? "See --help" : absl::StrCat("Did you mean ", nearest, "?");
  return ArgumentError(absl::StrCat("unknown option ", given, ". ", hint,
                                    " (Options of the script go behind the script.)"));
}

absl::Status Parser::TakeProgram(const std::vector<std::string>& rest) {
  size_t first = 0;
  if (!rest.empty() && rest[0] == "--") {
    first = 1;
  } else if (!rest.empty() && absl::StartsWith(rest[0], "-") && rest[0].size() > 1) {
    return RefuseUnknown(rest[0]);
  }
  if (first == rest.size()) {
    return ArgumentError(absl::StrCat("no script was given. ", kUsage));
  }
  options_.program = rest[first];
  options_.arguments.assign(rest.begin() + first + 1, rest.end());
  return absl::OkStatus();
}

absl::Status Parser::Interpret() {
  if (raw_.module && raw_.no_python) {
    return ArgumentError("--module and --no-python exclude each other: leave one out");
  }
  if (raw_.module) options_.kind = LaunchOptions::Program::kModule;
  if (raw_.no_python) options_.kind = LaunchOptions::Program::kExecutable;
  SYNCLINE_RETURN_IF_ERROR(CheckNodes(raw_.nnodes));
  if (raw_.node_rank != 0) {
    return ArgumentError(
        absl::StrCat("--node-rank=", raw_.node_rank, ": with one node its rank is 0"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(options_.workers, ParseWorkers(raw_.workers, host_));
  options_.shutdown_timeout = absl::Seconds(raw_.shutdown_timeout);
  if (!std::isfinite(raw_.shutdown_timeout) ||
      options_.shutdown_timeout == absl::InfiniteDuration()) {
    return ArgumentError(absl::StrCat("--shutdown-timeout: ", raw_.shutdown_timeout,
                                      " is no number of seconds. Give a finite one, 0 or more"));
  }
  SYNCLINE_RETURN_IF_ERROR(InterpretRendezvous());
  SYNCLINE_ASSIGN_OR_RETURN(options_.redirects, ParseStreams("--redirects", raw_.redirects));
  SYNCLINE_ASSIGN_OR_RETURN(options_.tee, ParseStreams("--tee", raw_.tee));
  // Someone who names a folder for logs wants logs in it.
  if (!options_.log_dir.empty() && !options_.redirects.any() && !options_.tee.any()) {
    options_.tee.others = Streams::kBoth;
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      options_.console_ranks,
      ParseLocalRanks("--local-ranks-filter", raw_.local_ranks_filter, options_.workers));
  return absl::OkStatus();
}

absl::Status Parser::InterpretRendezvous() {
  if (raw_.rdzv_backend != "static" && raw_.rdzv_backend != "c10d") {
    return UnsupportedError(absl::StrCat("--rdzv-backend=", raw_.rdzv_backend, " is not supported ",
                                         "yet by this version. Use --standalone"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(options_.rendezvous.port, ParseLocalEndpoint(raw_.rdzv_endpoint));
  if (absl::StrContains(options_.rendezvous.id, '/') || options_.rendezvous.id == "." ||
      options_.rendezvous.id == "..") {
    return ArgumentError(absl::StrCat("--rdzv-id: '", options_.rendezvous.id, "' cannot be the name of a ",
                                      "folder for logs: choose one without '/'"));
  }
  return absl::OkStatus();
}

int CountVisibleGpus(int gpus) {
  const std::optional<std::string> visible = GetEnv("CUDA_VISIBLE_DEVICES");
  if (!visible.has_value()) return gpus;
  int count = 0;
  for (absl::string_view device : absl::StrSplit(*visible, ',', absl::SkipWhitespace())) {
    if (absl::StartsWith(device, "-")) break;  // As CUDA reads it: the list ends here.
    ++count;
  }
  return std::min(count, gpus);
}

}  // namespace

HostResources DetectHostResources() {
  HostResources host;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    host.cpus = CPU_COUNT(&cpus);
  } else {  // More CPUs than the set can hold.
    host.cpus = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  while (access(absl::StrCat("/dev/nvidia", host.gpus).c_str(), F_OK) == 0) ++host.gpus;
  host.gpus = CountVisibleGpus(host.gpus);
  return host;
}

absl::StatusOr<LaunchOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const EnvironmentLookup& environment,
                                           const HostResources& host) {
  return Parser(environment, host).Parse(arguments);
}

}  // namespace syncline
