#include "launch/report.h"

#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr size_t kMaxErrorFile = 1 << 20;

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

std::string DescribeOthers(absl::string_view what, std::vector<WorkerExit> others) {
  std::sort(others.begin(), others.end(),
            [](const WorkerExit& a, const WorkerExit& b) { return a.local_rank < b.local_rank; });
  const auto describe = [](std::string* out, const WorkerExit& exit) {
    absl::StrAppend(out, "rank ", exit.local_rank, " (", DescribeExit(exit), ")");
  };
  return absl::StrCat("  ", what, ": ", absl::StrJoin(others, ", ", describe));
}

// The time in `info`, of either precision.
std::optional<absl::Time> ReadTime(const nlohmann::json& info) {
  if (const auto precise = info.find("syncline_time");
      precise != info.end() && precise->is_number()) {
    return absl::UnixEpoch() + absl::Seconds(precise->get<double>());
  }
  const auto coarse = info.find("timestamp");
  if (coarse == info.end()) return std::nullopt;
  int64_t seconds = 0;
  if (coarse->is_number()) {
    seconds = coarse->get<int64_t>();
  } else if (!coarse->is_string() || !absl::SimpleAtoi(coarse->get<std::string>(), &seconds)) {
    return std::nullopt;
  }
  return absl::FromUnixSeconds(seconds + 1);  // It was rounded down.
}

}  // namespace

std::optional<int64_t> CountOomKills() {
  std::ifstream membership("/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::")) continue;
    std::ifstream events(absl::StrCat("/sys/fs/cgroup", path, "/memory.events"));
    std::string name;
    int64_t count = 0;
    while (events >> name >> count) {
      if (name == "oom_kill") return count;
    }
  }
  return std::nullopt;
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

std::string SummarizeFailure(const FailureFacts& facts) {
  return absl::StrFormat("rank %d (pid %d) failed %.1f s after its start: %s", facts.rank,
                         facts.pid, absl::ToDoubleSeconds(facts.after), DescribeExit(facts.cause));
}

std::string ReportFailure(const FailureFacts& facts) {
  std::vector<std::string> lines = {SummarizeFailure(facts)};
  lines.push_back(absl::StrFormat(
      "  rank %d (local rank %d), pid %d, host %s, after %d of %d restarts", facts.rank,
      facts.cause.local_rank, facts.pid, facts.host, facts.attempt, facts.max_restarts));
  if (facts.cause.signal != 0) {
    const std::string why = ExplainSignal(facts.cause.signal, facts.evidence);
    lines.push_back(absl::StrCat("  killed by signal ", facts.cause.signal, " (",
                                 SignalName(facts.cause.signal), ")", why.empty() ? "" : ": ",
                                 why));
  }
  if (!facts.message.empty()) {
    lines.push_back("  the error it recorded:");
    lines.push_back(Indented(facts.message, "    "));
  }
  if (facts.last_lines.empty()) {
    lines.push_back("  it wrote nothing to stderr");
  } else {
    lines.push_back("  last lines of its stderr:");
    for (const std::string& line : facts.last_lines) lines.push_back(absl::StrCat("    ", line));
  }
  if (!facts.log.empty()) lines.push_back(absl::StrCat("  all of its stderr: ", facts.log));
  if (!facts.also_failed.empty()) {
    lines.push_back(DescribeOthers("also failed", facts.also_failed));
  }
  if (!facts.stopped.empty()) {
    lines.push_back(DescribeOthers("stopped because of it", facts.stopped));
  }
  lines.push_back(absl::StrCat("  exit code ", facts.cause.ShellCode()));
  return absl::StrJoin(lines, "\n");
}

}  // namespace syncline
