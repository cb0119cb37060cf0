#include "launch/options/dry_run.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "launch/environment.h"
#include "launch/failure_report.h"
#include "launch/options/option_values.h"
#include "launch/options/rendezvous_conf.h"
#include "launch/program.h"
#include "store/common/listen_address.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

using Backend = RendezvousOptions::Backend;

constexpr absl::string_view kIndent = "             ";  // As wide as a heading.

// As a shell would read it back.
std::string Quoted(const std::string& word) {
  constexpr absl::string_view kPlain = "%+,-./:=@_";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(kPlain, std::string(1, c));
  });
  if (plain) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string WithoutPassword(const std::string& conf) {
  std::vector<absl::string_view> parts;
  for (absl::string_view rest = conf; !rest.empty();) {
    const absl::string_view part = TakeConfEntry(&rest);
    parts.push_back(absl::StrContains(part, "password=") ? "password=***" : part);
  }
  return absl::StrJoin(parts, ",");
}

std::string Names(const std::vector<int>& signals) {
  return absl::StrJoin(signals, ", ", [](std::string* out, int signal) {
    absl::StrAppend(out, SignalName(signal));
  });
}

class Explanation {
 public:
  Explanation(const LaunchOptions& options, const Settings& settings,
              const base::EnvironmentLookup& environment)
      : options_(options), settings_(settings), environment_(environment) {}

  std::string Text();

 private:
  bool several_nodes() const { return options_.nodes.max > 1; }
  // Ranks are known if nodes are numbered, and all alike.
  bool knows_ranks() const {
    return !several_nodes() ||
           (options_.node_rank >= 0 && options_.nodes.min == options_.nodes.max);
  }
  std::string Endpoint() const {
    return JoinHostPort(options_.rendezvous.host, options_.rendezvous.port);
  }

  void Line(absl::string_view heading, absl::string_view text);
  void Nodes();
  void Rendezvous();
  void Command();
  void Workers();
  Environment WorkerEnvironment(int local_rank) const;
  void Failure();
  void Logs();
  void Sources();

  const LaunchOptions& options_;
  const Settings& settings_;
  const base::EnvironmentLookup& environment_;
  std::string out_;
};

void Explanation::Line(absl::string_view heading, absl::string_view text) {
  absl::StrAppend(&out_, heading, kIndent.substr(std::min(kIndent.size(), heading.size())), text,
                  "\n");
}

void Explanation::Nodes() {
  if (!several_nodes()) return Line("Nodes", "this one alone");
  const NodeRange& nodes = options_.nodes;
  Line("Nodes", nodes.min == nodes.max
                    ? absl::StrCat(nodes.min)
                    : absl::StrCat(nodes.min, " to ", nodes.max, ": once ", nodes.min,
                                   " have come, more are waited for during ",
                                   absl::FormatDuration(options_.rendezvous.last_call_timeout)));
  if (nodes.min < nodes.max) {
    Line("", absl::StrCat("one that comes later is taken in after ",
                          absl::FormatDuration(options_.rendezvous.scale_up_delay)));
  }
  Line("", options_.node_rank >= 0 ? absl::StrCat("this is node ", options_.node_rank)
                                   : "the rendezvous gives this node its rank");
}

void Explanation::Rendezvous() {
  const RendezvousOptions& rendezvous = options_.rendezvous;
  if (!several_nodes() && rendezvous.backend != Backend::kEtcd) {
    Line("Rendezvous",
         rendezvous.port == 0
             ? "none is needed; the job's store is served at a free port"
             : absl::StrCat("none is needed; the job's store is served at port ", rendezvous.port));
  } else if (rendezvous.backend == Backend::kStatic) {
    Line("Rendezvous", absl::StrCat("static: node 0 serves the store at ", Endpoint()));
  } else if (rendezvous.backend == Backend::kFile) {
    Line("Rendezvous", absl::StrCat("the file ", rendezvous.path, ", which all nodes must see"));
  } else if (rendezvous.backend == Backend::kEtcd) {
    Line("Rendezvous",
         absl::StrCat("etcd at ", Endpoint(), ", keys below ", rendezvous.etcd.prefix));
  } else {
    Line("Rendezvous",
         absl::StrCat("c10d at ", Endpoint(), ": ",
                      rendezvous.hosting == RendezvousOptions::Hosting::kAlways
                          ? "this node serves the store"
                      : rendezvous.hosting == RendezvousOptions::Hosting::kNever
                          ? "another node serves the store"
                          : "the first node that can open that port serves the store"));
  }
  if (several_nodes()) {
    Line("", absl::StrCat("gives up after ", absl::FormatDuration(rendezvous.join_timeout),
                          " with fewer than ", options_.nodes.min, " nodes"));
  }
  Line("Job", rendezvous.id.empty() ? "a random id" : absl::StrCat("id ", rendezvous.id));
}

void Explanation::Command() {
  Environment environment;
  for (const char* name : {"PATH", "PYTHON_EXEC"}) {
    const std::optional<std::string> value = environment_(name);
    if (value.has_value()) environment[name] = *value;
  }
  const absl::StatusOr<Program> program = ResolveProgram(options_, environment);
  if (!program.ok()) {
    Line("Command", absl::StrCat("It would fail: ", std::string(program.status().message())));
    return;
  }
  std::vector<std::string> words;
  for (const std::string& word : program->arguments) words.push_back(Quoted(word));
  Line("Command", absl::StrJoin(words, " "));
  if (program->path != program->arguments.front()) {
    Line("", absl::StrCat(program->arguments.front(), " is ", program->path));
  }
}

Environment Explanation::WorkerEnvironment(int local_rank) const {
  const int node = std::max(0, options_.node_rank);
  const int world = options_.workers * options_.nodes.max;
  JobFacts job;
  job.max_restarts = options_.max_restarts;
  job.run_id = options_.rendezvous.id.empty() ? "<random>" : options_.rendezvous.id;
  job.workers = options_.workers;
  job.first_rank = job.first_role_rank = node * options_.workers;
  job.world_size = job.role_world_size = world;
  job.group_rank = node;
  job.group_world_size = options_.nodes.max;
  job.role = options_.role;
  job.master_addr = !options_.master_addr.empty() ? options_.master_addr
                    : several_nodes()             ? "<node 0>"
                                                  : "127.0.0.1";
  job.master_port = options_.master_port;
  job.store_address = several_nodes() ? "<node 0>:<port>" : "127.0.0.1:<port>";
  job.secret_file = "<temporary file>";
  WorkerFacts worker;
  worker.local_rank = local_rank;
  worker.error_file = "<temporary file>";
  if (options_.health_timeout != absl::InfiniteDuration())
    worker.heartbeat_file = "<temporary file>";
  Environment environment;
  DescribeJob(job, worker, &environment);
  if (options_.master_port == 0) environment["MASTER_PORT"] = "<free port>";
  if (options_.local_rank == LaunchOptions::LocalRank::kVirtual) environment["LOCAL_RANK"] = "0";
  if (!knows_ranks()) {
    for (const char* name :
         {"RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"}) {
      environment[name] = "<from the rendezvous>";
    }
  }
  // Set only where the user has not.
  for (const char* name :
       {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}) {
    if (environment_(name).has_value()) environment.erase(name);
  }
  return environment;
}

// What all workers see once, and what differs for each.
void Explanation::Workers() {
  Line("Workers", absl::StrCat(options_.workers, " on this node, role ", options_.role));
  std::vector<Environment> environments;
  for (int i = 0; i < options_.workers; ++i) environments.push_back(WorkerEnvironment(i));
  std::vector<std::string> common;
  std::vector<std::string> different;
  for (const auto& [name, value] : environments.front()) {
    const bool same = std::all_of(
        environments.begin(), environments.end(),
        [&, &name = name, &value = value](const Environment& e) { return e.at(name) == value; });
    (same ? common : different).push_back(name);
  }
  absl::StrAppend(&out_, "\nEnvironment of the workers in round 0",
                  several_nodes() && knows_ranks() ? ", if all nodes start as many" : "", ":\n");
  for (const std::string& name : common) {
    absl::StrAppend(&out_, "  ", name, "=", environments.front().at(name), "\n");
  }
  for (int i = 0; i < options_.workers && !different.empty(); ++i) {
    absl::StrAppend(&out_, "  worker ", i, ":");
    for (const std::string& name : different) {
      absl::StrAppend(&out_, " ", name, "=", environments[i].at(name));
    }
    absl::StrAppend(&out_, "\n");
  }
}

void Explanation::Failure() {
  std::string text = options_.max_restarts == 0 ? "the first one ends the job"
                                                : absl::StrCat("all workers are restarted, up to ",
                                                               options_.max_restarts, " times");
  if (options_.health_timeout != absl::InfiniteDuration()) {
    absl::StrAppend(&text, "; no heartbeat for ", absl::FormatDuration(options_.health_timeout),
                    " is a failure");
  }
  Line("Failures", text);
  const absl::Duration backoff = options_.rendezvous.restart_backoff;
  if (options_.max_restarts > 1 && backoff > absl::ZeroDuration()) {
    Line("", absl::StrCat("a second restart soon after the first waits for ",
                          absl::FormatDuration(backoff), ", each further one twice as long, up to ",
                          absl::FormatDuration(std::max(backoff, absl::Seconds(30)))));
  }
  Line("", absl::StrCat("the other workers get SIGTERM, and SIGKILL after ",
                        absl::FormatDuration(options_.failure_grace)));
  Line("Signals",
       absl::StrCat("the job is stopped by ", Names(options_.stop_signals),
                    "; SIGKILL follows after ", absl::FormatDuration(options_.shutdown_timeout)));
  Line("", absl::StrCat("passed on to the workers: ", options_.forwarded_signals.empty()
                                                          ? "none"
                                                          : Names(options_.forwarded_signals)));
}

void Explanation::Logs() {
  if (!options_.redirects.any() && !options_.tee.any()) {
    return Line("Logs", "none: output goes to the console");
  }
  const std::string folder = options_.log_dir.empty() ? "<temporary folder>" : options_.log_dir;
  const std::string id = options_.rendezvous.id.empty() ? "<random>" : options_.rendezvous.id;
  std::string streams;
  for (int i = 0; i < options_.workers; ++i) {
    for (const auto& [stream, name] : {std::make_pair(Streams::kStdout, "stdout.log"),
                                       std::make_pair(Streams::kStderr, "stderr.log")}) {
      const bool teed = Includes(options_.tee.For(i), stream);
      if (!teed && !Includes(options_.redirects.For(i), stream)) continue;
      Line(streams.empty() ? "Logs" : "", absl::StrCat(folder, "/", id, "/attempt_0/", i, "/", name,
                                                       teed ? " (and the console)" : ""));
      streams = name;
    }
  }
}

std::string SourceOf(const Setting& setting) {
  switch (setting.layer) {
    case Layer::kCommandLine:
      return "the command line";
    case Layer::kVariable:
    case Layer::kPetVariable:
      return absl::StrCat("the variable ", setting.name);
    case Layer::kConfigFile:
    case Layer::kCluster:
      return setting.name.substr(0, setting.name.rfind(": "));
  }
  return "";
}

void Explanation::Sources() {
  absl::StrAppend(&out_, "\nOptions that are not at their defaults:\n");
  for (const auto& [name, setting] : settings_.all()) {
    if (name == "dry-run") continue;
    const std::string text =
        name == "rdzv-conf" ? WithoutPassword(setting.text) : Quoted(setting.text);
    absl::StrAppend(&out_, "  ", name, " = ", text, "   from ", SourceOf(setting), "\n");
  }
}

std::string Explanation::Text() {
  out_ = "This would run; nothing has been started.\n\n";
  Nodes();
  Rendezvous();
  Command();
  Failure();
  Logs();
  Workers();
  Sources();
  for (const std::string& note : options_.notes) absl::StrAppend(&out_, "\nNote: ", note, "\n");
  return out_;
}

}  // namespace

std::string ExplainLaunch(const LaunchOptions& options, const Settings& settings,
                          const base::EnvironmentLookup& environment) {
  return Explanation(options, settings, environment).Text();
}

}  // namespace syncline::launch
