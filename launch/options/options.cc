#include "launch/options/options.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/tls/settings.h"
#include "launch/failure_report.h"
#include "launch/options/cluster.h"
#include "launch/options/command_line.h"
#include "launch/options/config_file.h"
#include "launch/options/dry_run.h"
#include "launch/options/help.h"
#include "launch/options/man_page.h"
#include "launch/options/node_options.h"
#include "launch/options/option_values.h"
#include "launch/options/settings.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

class Parser {
 public:
  Parser(const base::EnvironmentLookup& environment, const HostResources& host)
      : environment_(environment), host_(host) {}

  absl::StatusOr<LaunchOptions> Parse(const std::vector<std::string>& arguments);

 private:
  absl::Status AddSources();
  absl::Status AddCluster();
  bool IsProposalWelcome(const OptionProposal& proposal) const;

  absl::Status ReadAll();
  absl::Status ReadProgram();
  absl::Status ReadTlsOptions();
  absl::Status ReadFailureOptions();
  absl::Status ReadSignalOptions();
  absl::Status ReadOutputOptions();
  absl::Status ReadLogFileOptions();
  absl::Status ReadMonitoringOptions();
  void NoteWithoutEffect();

  // The value of an option; null if none was given.
  const Setting* Find(absl::string_view name) const { return settings().Find(name); }
  const Settings& settings() const { return line_.settings; }

  const base::EnvironmentLookup& environment_;
  HostResources host_;
  CommandLine line_;
  LaunchOptions options_;
};

absl::Status Parser::AddSources() {
  Settings& settings = line_.settings;
  SYNCLINE_RETURN_IF_ERROR(settings.AddEnvironment(environment_));
  if (const Setting* config = settings.Find("config")) {
    SYNCLINE_RETURN_IF_ERROR(AddConfigFile(std::string(config->text), &settings));
  }
  if (line_.asks_status) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(ResolveStandalone(&settings, &options_.notes));
  return AddCluster();
}

// A user who gives the rendezvous does not want the cluster's.
bool Parser::IsProposalWelcome(const OptionProposal& proposal) const {
  if (proposal.flag != "rdzv-backend" && proposal.flag != "rdzv-endpoint") return true;
  if (settings().Given("master-addr") != nullptr) return false;
  const Setting* backend = settings().Given("rdzv-backend");
  return proposal.flag == "rdzv-backend" || backend == nullptr || backend->text == "c10d" ||
         backend->text == "static";
}

absl::Status Parser::AddCluster() {
  if (settings().IsOn("standalone")) return absl::OkStatus();
  const std::optional<Cluster> cluster = DetectCluster(environment_);
  if (!cluster.has_value()) return absl::OkStatus();
  if (cluster->max_cpus.has_value()) host_.cpus = std::min(host_.cpus, *cluster->max_cpus);
  if (const Setting* nodes = Find("nnodes")) {
    SYNCLINE_ASSIGN_OR_RETURN(const NodeRange range, ParseNodes(nodes->name, nodes->text));
    if (range.max == 1) return absl::OkStatus();
  }
  if (!cluster->missing.empty() && settings().Given(cluster->missing_flag) == nullptr) {
    return ArgumentError(cluster->missing);
  }
  for (const OptionProposal& proposal : cluster->proposals) {
    if (!IsProposalWelcome(proposal)) continue;
    SYNCLINE_RETURN_IF_ERROR(line_.settings.Set(
        FlagNamed(proposal.flag),
        Setting{proposal.text, Layer::kCluster,
                absl::StrCat(cluster->name, " (", proposal.reason, "): ", proposal.flag)}));
  }
  const Setting* endpoint = Find("rdzv-endpoint");
  if (!cluster->note.empty() && endpoint != nullptr && endpoint->layer == Layer::kCluster) {
    options_.notes.push_back(cluster->note);
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadProgram() {
  const std::pair<absl::string_view, LaunchOptions::Program> kinds[] = {
      {"module", LaunchOptions::Program::kModule},
      {"no-python", LaunchOptions::Program::kExecutable},
      {"run-path", LaunchOptions::Program::kRunPath},
  };
  absl::string_view chosen;
  for (const auto& [name, kind] : kinds) {
    if (!settings().IsOn(name)) continue;
    if (!chosen.empty()) {
      SYNCLINE_RETURN_IF_ERROR(line_.settings.ResolveConflict(
          chosen, name, "they are different ways to run the script", &options_.notes));
      if (!settings().IsOn(name)) continue;
    }
    chosen = name;
    options_.kind = kind;
  }
  if (line_.program.empty()) {
    return ArgumentError(absl::StrCat("no script was given. ", Usage()));
  }
  options_.program = line_.program;
  options_.arguments = line_.arguments;
  return absl::OkStatus();
}

// The library reads the same variables, and would say the same of them in each worker.
absl::Status Parser::ReadTlsOptions() {
  constexpr char kMode[] = "SYNCLINE_TLS";
  const std::string mode = settings().Text("tls", "off");
  options_.makes_own_certificates = mode == "throw-away";
  const std::map<std::string, std::string> values = {
      {kMode, options_.makes_own_certificates ? "off" : mode},
      {"SYNCLINE_TLS_CERT", settings().Text("tls-cert", "")},
      {"SYNCLINE_TLS_KEY", settings().Text("tls-key", "")},
      {"SYNCLINE_TLS_CA", settings().Text("tls-ca", "")},
      {"SYNCLINE_TLS_PEER_NAME", settings().Text("tls-peer-name", "")}};
  const auto tls =
      tls::SettingsFromEnvironment([&](absl::string_view name) -> std::optional<std::string> {
        const auto found = values.find(std::string(name));
        return found == values.end() ? std::nullopt : std::optional(found->second);
      });
  if (!tls.ok()) return Annotate(tls.status(), "--tls and the options that belong to it");
  options_.tls = *tls;
  if (mode == "off") return absl::OkStatus();
  const RendezvousOptions& rendezvous = options_.rendezvous;
  if (options_.makes_own_certificates && options_.nodes.max > 1) {
    return ArgumentError(
        "--tls=throw-away is for one node: on several, make certificates with "
        "--make-certificates=DIR, copy the folder to all nodes, and name its files by --tls-cert, "
        "--tls-key and --tls-ca; or use --tls=secret");
  }
  if (rendezvous.backend == RendezvousOptions::Backend::kEtcd && rendezvous.etcd.ca_cert.empty()) {
    return ArgumentError(absl::StrCat("--tls=", mode,
                                      " needs an encrypted way to etcd as well: "
                                      "--rdzv-conf=protocol=https,ca_cert=FILE"));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadFailureOptions() {
  if (const Setting* restarts = Find("max-restarts")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.max_restarts,
                              ParseNumber(restarts->name, restarts->text, 0, 1000000000));
  }
  if (const Setting* timeout = Find("shutdown-timeout")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.shutdown_timeout,
                              ParseSeconds(timeout->name, timeout->text));
  }
  if (const Setting* timeout = Find("health-timeout")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.health_timeout, ParseSeconds(timeout->name, timeout->text));
    if (options_.health_timeout == absl::ZeroDuration()) {
      return ArgumentError(absl::StrCat(timeout->Describe(), ": must be more than 0. Leave it out ",
                                        "to watch no heartbeats"));
    }
  }
  if (const Setting* grace = Find("failure-grace")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.failure_grace, ParseSeconds(grace->name, grace->text));
    if (options_.failure_grace > options_.shutdown_timeout) {
      options_.notes.push_back(absl::StrCat(grace->Describe(), " counts as --shutdown-timeout, ",
                                            absl::FormatDuration(options_.shutdown_timeout)));
    }
  }
  options_.failure_grace = std::min(options_.failure_grace, options_.shutdown_timeout);
  SYNCLINE_RETURN_IF_ERROR(ReadSignalOptions());
  if (const Setting* interval = Find("monitor-interval")) {
    return ParseSeconds(interval->name, interval->text).status();
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadSignalOptions() {
  const LaunchOptions defaults;
  std::vector<int>& stops = options_.stop_signals = defaults.stop_signals;
  std::vector<int>& forwarded = options_.forwarded_signals = defaults.forwarded_signals;
  const Setting* stop_setting = Find("signals-to-handle");
  const Setting* forward_setting = Find("signals-to-forward");
  if (stop_setting != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(stops, ParseSignals(stop_setting->name, stop_setting->text));
    if (stops.empty()) {
      return ArgumentError(absl::StrCat(stop_setting->Describe(), ": no signal is named"));
    }
  }
  if (forward_setting == nullptr) {
    // Signals that users have chosen to stop the job are not passed on by default.
    forwarded = SignalsWithout(forwarded, stops);
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(forwarded,
                            ParseForwardedSignals(forward_setting->name, forward_setting->text));
  const std::vector<int> rest = SignalsWithout(stops, forwarded);
  if (rest.size() == stops.size()) return absl::OkStatus();
  const int both = *std::find_if(stops.begin(), stops.end(), [&](int signal) {
    return std::find(forwarded.begin(), forwarded.end(), signal) != forwarded.end();
  });
  if (stop_setting == nullptr) {
    return ArgumentError(absl::StrCat(
        forward_setting->Describe(), ": ", SignalName(both), " stops the job unless ",
        "--signals-to-handle names others, as in --signals-to-handle=",
        rest.empty() ? "SIGUSR1" : absl::StrJoin(rest, ",", [](std::string* out, int signal) {
          absl::StrAppend(out, SignalName(signal));
        })));
  }
  SYNCLINE_RETURN_IF_ERROR(line_.settings.ResolveConflict(
      "signals-to-handle", "signals-to-forward",
      absl::StrCat(SignalName(both), " cannot both stop the job and be passed on"),
      &options_.notes));
  return ReadSignalOptions();  // With one of the two.
}

absl::Status Parser::ReadOutputOptions() {
  if (const Setting* redirects = Find("redirects")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.redirects, ParseStreams(redirects->name, redirects->text));
  }
  if (const Setting* tee = Find("tee")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.tee, ParseStreams(tee->name, tee->text));
  }
  options_.log_dir = settings().Text("log-dir", "");
  // A user who names a folder for logs wants logs in it.
  if (!options_.log_dir.empty() && !options_.redirects.any() && !options_.tee.any()) {
    options_.tee.others = Streams::kBoth;
  }
  if (const Setting* ranks = Find("local-ranks-filter")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.console_ranks,
                              ParseLocalRanks(ranks->name, ranks->text, options_.workers));
  }
  options_.prefix_template = settings().Text("log-line-prefix-template", "");
  if (settings().IsOn("no-prefix")) {
    const Setting* text = Find("log-line-prefix-template");
    if (text != nullptr && !text->text.empty()) {
      return ArgumentError(absl::StrCat(Find("no-prefix")->Describe(), " contradicts ",
                                        text->Describe(), "; leave out one of them"));
    }
    options_.prefix = LaunchOptions::Prefix::kNone;
  }
  if (const Setting* rank = Find("interactive")) {
    SYNCLINE_ASSIGN_OR_RETURN(
        options_.interactive_rank,
        ParseNumber(rank->name, rank->text, 0, std::numeric_limits<int>::max()));
  }
  return ReadLogFileOptions();
}

absl::Status Parser::ReadLogFileOptions() {
  if (const Setting* filters = Find("duplicate-stdout-filters")) {
    options_.stdout_filters = absl::StrSplit(filters->text, ',', absl::SkipEmpty());
  }
  if (const Setting* filters = Find("duplicate-stderr-filters")) {
    options_.stderr_filters = absl::StrSplit(filters->text, ',', absl::SkipEmpty());
  }
  if (const Setting* size = Find("log-rotate-size")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.log_rotate_bytes, ParseBytes(size->name, size->text));
  }
  if (const Setting* keep = Find("log-rotate-keep")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.log_rotate_keep,
                              ParseNumber(keep->name, keep->text, 0, 100000));
    if (options_.log_rotate_bytes == 0) {
      return ArgumentError(absl::StrCat(keep->Describe(), " needs --log-rotate-size: without it a ",
                                        "log stays one file"));
    }
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadMonitoringOptions() {
  if (const Setting* json = Find("json"); json != nullptr && settings().IsOn("json")) {
    return ArgumentError(absl::StrCat(json->Describe(), " is for the question status HOST:PORT"));
  }
  const std::string status_line = settings().Text("status-line", "auto");
  options_.status_line = status_line == "always"  ? LaunchOptions::StatusLine::kAlways
                         : status_line == "never" ? LaunchOptions::StatusLine::kNever
                                                  : LaunchOptions::StatusLine::kAuto;
  // The line would be drawn over what the worker shows.
  if (options_.interactive_rank >= 0 && Find("status-line") == nullptr) {
    options_.status_line = LaunchOptions::StatusLine::kNever;
  }
  options_.event_log = settings().Text("event-log", "");
  if (settings().Text("event-log-handler", "null") == "console" && options_.event_log.empty()) {
    options_.event_log = "/dev/stderr";
  }
  if (const Setting* port = Find("metrics-port")) {
    SYNCLINE_ASSIGN_OR_RETURN(options_.metrics_port, ParseNumber(port->name, port->text, 0, 65535));
  }
  return absl::OkStatus();
}

void Parser::NoteWithoutEffect() {
  if (const Setting* method = Find("start-method")) {
    options_.notes.push_back(absl::StrCat(
        method->Describe(), " changes nothing: a worker is a program of its own, as with spawn"));
  }
}

absl::Status Parser::ReadAll() {
  SYNCLINE_RETURN_IF_ERROR(ReadNodeOptions(settings(), &options_));
  SYNCLINE_ASSIGN_OR_RETURN(options_.workers,
                            ParseWorkers(settings().Name("nproc-per-node"),
                                         settings().Text("nproc-per-node", "1"), host_));
  options_.role = settings().Text("role", "default");
  if (settings().IsOn("virtual-local-rank")) {
    options_.local_rank = LaunchOptions::LocalRank::kVirtual;
  }
  const std::string numa = settings().Text("numa-binding", "");
  options_.numa = numa == "node"           ? LaunchOptions::Numa::kNode
                  : numa == "socket"       ? LaunchOptions::Numa::kSocket
                  : numa == "exclusive"    ? LaunchOptions::Numa::kExclusive
                  : numa == "core-complex" ? LaunchOptions::Numa::kCoreComplex
                                           : LaunchOptions::Numa::kNone;
  NoteWithoutEffect();
  SYNCLINE_RETURN_IF_ERROR(ReadTlsOptions());
  SYNCLINE_RETURN_IF_ERROR(ReadFailureOptions());
  SYNCLINE_RETURN_IF_ERROR(ReadOutputOptions());
  return ReadMonitoringOptions();
}

absl::StatusOr<LaunchOptions> Parser::Parse(const std::vector<std::string>& arguments) {
  SYNCLINE_ASSIGN_OR_RETURN(line_, ReadCommandLine(arguments));
  if (settings().IsOn("help")) {
    options_.information = Help();
  } else if (settings().IsOn("version")) {
    options_.information = Version();
  } else if (settings().IsOn("print-manual")) {
    options_.information = ManPage();
  } else if (const Setting* shell = Find("print-completion")) {
    options_.information = Completion(shell->text);
  }
  if (!options_.information.empty()) return options_;
  SYNCLINE_RETURN_IF_ERROR(AddSources());
  if (line_.asks_status) {
    if (line_.program.empty()) {
      return ArgumentError("status: of which job? Write status HOST:PORT, its --rdzv-endpoint");
    }
    SYNCLINE_RETURN_IF_ERROR(ReadStatusOptions(settings(), line_.program, &options_));
    SYNCLINE_RETURN_IF_ERROR(ReadTlsOptions());
    return options_;
  }
  options_.certificates_folder = settings().Text("make-certificates", "");
  if (!options_.certificates_folder.empty()) return options_;
  SYNCLINE_RETURN_IF_ERROR(ReadProgram());
  SYNCLINE_RETURN_IF_ERROR(ReadAll());
  if (settings().IsOn("dry-run")) {
    options_.information = ExplainLaunch(options_, settings(), environment_);
  }
  return options_;
}

}  // namespace

absl::StatusOr<LaunchOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const base::EnvironmentLookup& environment,
                                           const HostResources& host) {
  return Parser(environment, host).Parse(arguments);
}

}  // namespace syncline::launch
