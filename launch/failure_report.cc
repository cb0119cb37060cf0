#include "launch/failure_report.h"

#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace syncline::launch {
namespace {

constexpr size_t kMaxErrorFile = 1 << 20;
constexpr int kPythonError = 1;  // The exit code after an uncaught exception.

std::string ReadFile(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[4096];
  while (text.size() < limit && (file.read(buffer, sizeof(buffer)) || file.gcount() > 0)) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
  }
  return text;
}

std::string DescribeKill(const HostEvidence& evidence) {
  if (evidence.oom_kills.value_or(0) > 0) {
    return absl::StrCat("the kernel's out-of-memory killer: it killed ", *evidence.oom_kills,
                        " process(es) of this cgroup during the job. Use less memory per worker, "
                        "fewer workers, or raise the limit");
  }
  if (evidence.oom_kills.has_value()) {
    return "`kill -9` or another process's kill(): this cgroup's memory.events count no "
           "out-of-memory kill during the job (see `dmesg` for one on the whole host)";
  }
  return "probably the out-of-memory killer (see `dmesg` and the cgroup's memory.events) or "
         "`kill -9`";
}

std::string DescribeBusError(const HostEvidence& evidence) {
  const std::string free =
      evidence.shm_free_bytes.has_value()
          ? absl::StrFormat(" (%d MiB are free now)", *evidence.shm_free_bytes >> 20)
          : "";
  return absl::StrCat("memory that is backed by a file could not be provided; is /dev/shm full",
                      free, "? Enlarge it (docker: --shm-size)");
}

// `text` with every line behind `indent`.
std::string Indented(absl::string_view text, absl::string_view indent) {
  return absl::StrCat(indent,
                      absl::StrJoin(absl::StrSplit(text, '\n'), absl::StrCat("\n", indent)));
}

// "rank 3 (exit code 1)", in the order of ranks.
std::vector<std::string> DescribeAll(std::vector<WorkerExit> exits, int first_rank) {
  std::sort(exits.begin(), exits.end(),
            [](const WorkerExit& a, const WorkerExit& b) { return a.local_rank < b.local_rank; });
  std::vector<std::string> described;
  for (const WorkerExit& exit : exits) {
    described.push_back(
        absl::StrCat("rank ", first_rank + exit.local_rank, " (", DescribeExit(exit), ")"));
  }
  return described;
}

std::string HowItEnded(const FailureRecord& failure) {
  WorkerExit exit;
  exit.code = failure.code;
  exit.signal = failure.signal;
  return DescribeExit(exit);
}

// Version 2: one hierarchy, memory.events. Version 1: memory.oom_control of the memory controller.
// Within a container the path may begin above what is mounted: then its root is meant.
std::optional<int64_t> ReadOomKills(const std::string& folder, const std::string& path,
                                    absl::string_view name) {
  for (const std::string& below : {path, std::string()}) {
    std::ifstream counters(absl::StrCat(folder, below, "/", name));
    std::string key;
    int64_t count = 0;
    while (counters >> key >> count) {
      if (key == "oom_kill") return count;
    }
  }
  return std::nullopt;
}

// Whether the line, without its indent, tells where in a file a frame of Python is.
bool IsFrame(absl::string_view line) {
  const absl::string_view frame = absl::StripLeadingAsciiWhitespace(line);
  return frame.size() < line.size() && absl::StartsWith(frame, "File \"") &&
         absl::StrContains(frame, "\", line ");
}

// "ValueError: x", "KeyboardInterrupt", "package.Error: text".
bool IsException(absl::string_view line) {
  const absl::string_view name = line.substr(0, line.find(':'));
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_'; });
}

// Seconds since 1970 that a double holds to the microsecond; nothing for others, which no clock
// has shown.
std::optional<absl::Time> TimeOfSeconds(double seconds) {
  if (!(seconds > 0 && seconds < 1e10)) return std::nullopt;
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// The time in `info`, of either precision.
std::optional<absl::Time> ReadTime(const nlohmann::json& info) {
  if (const auto precise = info.find("syncline_time");
      precise != info.end() && precise->is_number()) {
    return TimeOfSeconds(precise->get<double>());
  }
  const auto coarse = info.find("timestamp");
  if (coarse == info.end()) return std::nullopt;
  double seconds = 0;
  if (coarse->is_number()) {
    seconds = coarse->get<double>();
  } else if (!coarse->is_string() || !absl::SimpleAtod(coarse->get<std::string>(), &seconds)) {
    return std::nullopt;
  }
  return TimeOfSeconds(std::floor(seconds) + 1);  // It was rounded down.
}

}  // namespace

std::optional<int64_t> CountOomKills(const std::string& root) {
  std::ifstream membership(absl::StrCat(root, "/proc/self/cgroup"));
  std::optional<int64_t> kills;
  for (std::string line; std::getline(membership, line) && !kills.has_value();) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      kills = ReadOomKills(absl::StrCat(root, "/sys/fs/cgroup"), parts[2], "memory.events");
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::count(controllers.begin(), controllers.end(), "memory") > 0) {
      kills =
          ReadOomKills(absl::StrCat(root, "/sys/fs/cgroup/memory"), parts[2], "memory.oom_control");
    }
  }
  return kills;
}

std::optional<int64_t> SharedMemoryFree() {
  struct statvfs info;
  if (statvfs("/dev/shm", &info) != 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string DescribeExit(const WorkerExit& exit) {
  return exit.signal != 0 ? SignalName(exit.signal) : absl::StrCat("exit code ", exit.code);
}

std::string ExplainSignal(int signal, const HostEvidence& evidence) {
  switch (signal) {
    case SIGKILL:
      return DescribeKill(evidence);
    case SIGSEGV:
      return "native code used memory that is not its own; PYTHONFAULTHANDLER=1 shows where";
    case SIGBUS:
      return DescribeBusError(evidence);
    case SIGABRT:
      return "native code gave up (abort, a failed assertion, an uncaught C++ exception); its "
             "last lines say why";
    case SIGILL:
      return "an instruction that this CPU does not have: a library was built for another one";
    case SIGFPE:
      return "an integer division by zero in native code";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "another process stopped this worker; the launcher had received no signal";
    default:
      return "";
  }
}

RecordedError ReadErrorFile(const std::string& path) {
  RecordedError recorded;
  const nlohmann::json error = nlohmann::json::parse(ReadFile(path, kMaxErrorFile), nullptr,
                                                     /*allow_exceptions=*/false);
  if (!error.is_object() || !error.contains("message")) return recorded;
  const nlohmann::json& message = error["message"];
  if (message.is_string()) recorded.message = message.get<std::string>();
  if (!message.is_object()) return recorded;
  if (message.contains("message") && message["message"].is_string()) {
    recorded.message = message["message"].get<std::string>();
  }
  const auto info = message.find("extraInfo");
  if (info == message.end() || !info->is_object()) return recorded;
  recorded.time = ReadTime(*info);
  recorded.is_peer_error = info->value("syncline_peer_error", nlohmann::json(false)) == true;
  return recorded;
}

std::string MessageOfTraceback(const std::vector<std::string>& lines) {
  const auto frame = std::find_if(lines.rbegin(), lines.rend(), IsFrame).base();
  if (frame == lines.begin()) return "";
  // The source and its marks are indented.
  const auto last = std::find_if(frame, lines.end(), [](const std::string& line) {
    return !line.empty() && !absl::ascii_isspace(line[0]);
  });
  return last != lines.end() && IsException(*last) ? *last : "";
}

FailureRecord MakeRecord(const FailureFacts& facts, absl::Time time) {
  FailureRecord failure;
  failure.rank = facts.rank;
  failure.local_rank = facts.cause.local_rank;
  failure.host = facts.host;
  failure.pid = facts.pid;
  failure.code = facts.cause.code;
  failure.signal = facts.cause.signal;
  failure.record = facts.cause.record;
  failure.time = absl::FromUnixMillis(absl::ToUnixMillis(time));  // As other nodes see it.
  failure.after = facts.after;
  failure.round = facts.round;
  failure.restarts = facts.attempt;
  failure.max_restarts = facts.max_restarts;
  failure.explanation = facts.reason;
  if (facts.reason.empty() && facts.cause.signal != 0) {
    failure.explanation = ExplainSignal(facts.cause.signal, facts.evidence);
  }
  failure.message = facts.message;
  if (failure.message.empty() && facts.cause.signal == 0 && facts.cause.code == kPythonError) {
    failure.message = MessageOfTraceback(facts.last_lines);
  }
  failure.last_lines = facts.last_lines;
  failure.log = facts.log;
  failure.also_failed = DescribeAll(facts.also_failed, facts.first_rank);
  failure.stopped = DescribeAll(facts.stopped, facts.first_rank);
  return failure;
}

std::string SummarizeFailure(const FailureRecord& failure) {
  return absl::StrFormat("rank %d (pid %d, host %s) failed %.1f s after its start: %s",
                         failure.rank, failure.pid, failure.host,
                         absl::ToDoubleSeconds(failure.after), HowItEnded(failure));
}

std::string ReportFailure(const FailureRecord& failure) {
  std::vector<std::string> lines = {SummarizeFailure(failure)};
  lines.push_back(absl::StrFormat(
      "  rank %d (local rank %d), pid %d, host %s, after %d of %d restarts", failure.rank,
      failure.local_rank, failure.pid, failure.host, failure.restarts, failure.max_restarts));
  const std::string why =
      failure.explanation.empty() ? "" : absl::StrCat(": ", failure.explanation);
  if (failure.signal != 0) {
    lines.push_back(
        absl::StrCat("  killed by signal ", failure.signal, " (", HowItEnded(failure), ")", why));
  } else if (!failure.explanation.empty()) {
    lines.push_back(absl::StrCat("  ", failure.explanation));
  }
  if (!failure.message.empty()) {
    const bool recorded = failure.record != WorkerExit::Record::kNone;
    lines.push_back(recorded ? "  the error it recorded:" : "  its error:");
    lines.push_back(Indented(failure.message, "    "));
  }
  if (failure.last_lines.empty()) {
    lines.push_back("  it wrote nothing to stderr");
  } else {
    lines.push_back("  last lines of its stderr:");
    for (const std::string& line : failure.last_lines) lines.push_back(absl::StrCat("    ", line));
  }
  if (!failure.log.empty()) lines.push_back(absl::StrCat("  all of its stderr: ", failure.log));
  if (!failure.also_failed.empty()) {
    lines.push_back(absl::StrCat("  also failed: ", absl::StrJoin(failure.also_failed, ", ")));
  }
  if (!failure.stopped.empty()) {
    lines.push_back(
        absl::StrCat("  stopped because of it: ", absl::StrJoin(failure.stopped, ", ")));
  }
  lines.push_back(absl::StrCat("  exit code ", failure.ShellCode()));
  return absl::StrJoin(lines, "\n");
}

std::string SummarizeFailure(const FailureFacts& facts) {
  return SummarizeFailure(MakeRecord(facts, absl::UnixEpoch()));
}

std::string ReportFailure(const FailureFacts& facts) {
  return ReportFailure(MakeRecord(facts, absl::UnixEpoch()));
}

}  // namespace syncline::launch
