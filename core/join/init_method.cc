#include "core/join/init_method.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/env.h"
#include "core/base/host.h"
#include "core/join/cluster_store.h"
#include "core/join/cluster_task.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr absl::string_view kForms =
    "env://, tcp://host:port, file:///path, etcd://host:port/prefix or mpi://";
// For etcd://: the keys of a job are gone so long after its last process died.
constexpr absl::Duration kEtcdTtl = absl::Seconds(30);

absl::Status ParseHostPort(absl::string_view text, absl::string_view what, StoreConfig& store) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &store.port) || store.port < 1 ||
      store.port > 65535) {
    return ArgumentError(
        absl::StrCat(what, " must be host:port with a port in 1 to 65535, not '", text, "'"));
  }
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");  // IPv6
  store.host = std::string(host);
  return absl::OkStatus();
}

// Reads "rank=1&world_size=2&group_name=job" into what is not given yet.
absl::Status ParseQuery(absl::string_view query, InitMethod& method) {
  for (absl::string_view item : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (entry.first == "group_name") {
      method.group_name = std::string(entry.second);
      continue;
    }
    if (entry.first != "rank" && entry.first != "world_size") {
      return ArgumentError(absl::StrCat("init method: unknown parameter '", entry.first,
                                        "'; known are rank, world_size and group_name"));
    }
    int value = 0;
    if (!absl::SimpleAtoi(entry.second, &value) || value < 0) {
      return ArgumentError(absl::StrCat("init method: ", entry.first, " must be a number in 0 to ",
                                        kMaxRanks, ", not '", entry.second, "'"));
    }
    int& target = entry.first == "rank" ? method.rank : method.size;
    if (target < 0) target = value;
  }
  return absl::OkStatus();
}

// The prefix that keeps apart the worlds of one job that share a store. An elastic job counts its
// rounds, some of which follow no failure; torchrun counts restarts.
std::string JobPrefix() {
  if (const std::optional<std::string> round = base::GetEnv("SYNCLINE_ROUND")) {
    return absl::StrCat("round/", *round);
  }
  return absl::StrCat("attempt/", base::GetEnv("TORCHELASTIC_RESTART_COUNT").value_or("0"));
}

// torchrun's agent serves torch's own store at MASTER_PORT, unless it says that it does not.
bool IsMasterPortTaken() {
  return base::GetEnv("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
}

// Jobs that run at the same time differ in it, as two agents cannot have one MASTER_PORT on one
// host. The prefix has the attempt: the processes of the one before may not all have ended.
std::string TorchrunJob(const InitMethod& method) {
  return absl::StrCat("torchrun/", base::GetEnv("TORCHELASTIC_RUN_ID").value_or(""), "/",
                      method.store.port, "/", method.prefix);
}

// The task that this process is, if there are others.
std::optional<ClusterTask> DetectTaskOfSeveral() {
  std::optional<ClusterTask> task = DetectTask(base::GetEnv);
  if (task.has_value() && task->size == 1 && task->defect.empty()) return std::nullopt;
  return task;
}

// Takes rank and size from `task` where they are not given; what is given must fit. `rank_name` and
// `size_name` say, in messages, who has given them.
absl::Status TakeRanks(const ClusterTask& task, absl::string_view rank_name,
                       absl::string_view size_name, InitMethod& method) {
  constexpr absl::string_view kAdvice =
      "; to have a world of your own, pass rank, world_size and init_method";
  if (!task.defect.empty()) {
    return ArgumentError(absl::StrCat(task.launcher,
                                      " has started this process, perhaps as one of ",
                                      "several, but ", task.defect, kAdvice));
  }
  const auto differs = [&](absl::string_view name, int given, int said,
                           absl::string_view variable) {
    return ArgumentError(absl::StrCat(name, " is ", given, ", but ", task.launcher, " says ", said,
                                      " (", variable, ")", kAdvice));
  };
  if (method.rank >= 0 && method.rank != task.rank) {
    return differs(rank_name, method.rank, task.rank, task.rank_from);
  }
  if (method.size >= 0 && method.size != task.size) {
    return differs(size_name, method.size, task.size, task.size_from);
  }
  method.rank = task.rank;
  method.size = task.size;
  method.from = absl::StrCat("rank and world_size by ", task.launcher, " (", task.rank_from, ", ",
                             task.size_from, ")");
  return absl::OkStatus();
}

// Takes the store from `task`.
absl::Status TakeStore(const ClusterTask& task, InitMethod& method) {
  SYNCLINE_ASSIGN_OR_RETURN(ClusterStore found, StoreOfTask(task, base::GetEnv));
  method.scheme = std::move(found.scheme);
  method.store = std::move(found.store);
  method.any_rank_serves = found.any_rank_serves;
  method.advice = std::move(found.advice);
  if (method.scheme == "tcp" && method.rank == 0 && !method.any_rank_serves) {
    method.store.role = StoreConfig::Role::kServer;
  }
  absl::StrAppend(&method.from, ", the store by ", found.from);
  return absl::OkStatus();
}

absl::Status ReadEnvironment(InitMethod& method) {
  std::string rank_name = "rank";
  std::string size_name = "world_size";
  if (method.rank < 0 && base::GetEnv("RANK").has_value()) {
    rank_name = "RANK";
    SYNCLINE_ASSIGN_OR_RETURN(method.rank, base::RequireEnvInt("RANK", 0, kMaxRanks));
  }
  if (method.size < 0 && base::GetEnv("WORLD_SIZE").has_value()) {
    size_name = "WORLD_SIZE";
    SYNCLINE_ASSIGN_OR_RETURN(method.size, base::RequireEnvInt("WORLD_SIZE", 1, kMaxRanks));
  }
  const bool has_store =
      base::GetEnv("SYNCLINE_STORE").has_value() ||
      (base::GetEnv("MASTER_ADDR").has_value() && base::GetEnv("MASTER_PORT").has_value());
  if (method.rank < 0 || method.size < 0 || !has_store) {
    if (const std::optional<ClusterTask> task = DetectTaskOfSeveral()) {
      SYNCLINE_RETURN_IF_ERROR(TakeRanks(*task, rank_name, size_name, method));
      if (!has_store) return TakeStore(*task, method);
    }
  }
  if (method.rank < 0) SYNCLINE_RETURN_IF_ERROR(base::RequireEnv("RANK").status());
  if (method.size < 0) SYNCLINE_RETURN_IF_ERROR(base::RequireEnv("WORLD_SIZE").status());
  method.scheme = "tcp";
  method.prefix = JobPrefix();
  if (std::optional<std::string> launcher = base::GetEnv("SYNCLINE_STORE")) {
    return ParseHostPort(*launcher, "environment variable SYNCLINE_STORE", method.store);
  }
  SYNCLINE_ASSIGN_OR_RETURN(method.store.host, base::RequireEnv("MASTER_ADDR"));
  SYNCLINE_ASSIGN_OR_RETURN(method.store.port, base::RequireEnvInt("MASTER_PORT", 1, 65535));
  if (IsMasterPortTaken()) method.torchrun_job = TorchrunJob(method);
  if (method.rank == 0) method.store.role = StoreConfig::Role::kServer;
  return absl::OkStatus();
}

absl::Status CheckRanks(const InitMethod& method, absl::string_view url) {
  if (method.size < 0) {
    return ArgumentError(
        absl::StrCat("init method '", url,
                     "' needs world_size, the number of processes: pass it as an argument, or in "
                     "the URL as ?world_size=N"));
  }
  if (method.size < 1 || method.size > kMaxRanks || method.rank >= method.size) {
    return ArgumentError(absl::StrCat("rank ", method.rank, " is not in a world of ", method.size,
                                      ": ranks go from 0 to world_size - 1"));
  }
  return absl::OkStatus();
}

absl::Status ReadTcp(absl::string_view address, InitMethod& method) {
  SYNCLINE_RETURN_IF_ERROR(ParseHostPort(address, "init method: tcp://", method.store));
  if (base::IsMulticastAddress(method.store.host)) {
    method.scheme = std::string(kMulticastScheme);
  } else if (method.rank == 0) {
    method.store.role = StoreConfig::Role::kServer;
  }
  return absl::OkStatus();
}

absl::Status ReadFile(absl::string_view path, InitMethod& method) {
  if (!absl::StartsWith(path, "/")) {
    return ArgumentError(absl::StrCat(
        "init method: file:// needs an absolute path, as in file:///tmp/job, not '", path, "'"));
  }
  method.store.path = std::string(path);
  return absl::OkStatus();
}

// Reads "host1:2379,host2:2379/prefix".
absl::Status ReadEtcd(absl::string_view address, InitMethod& method) {
  const size_t slash = address.find('/');
  if (slash == absl::string_view::npos || slash + 1 == address.size()) {
    return ArgumentError(absl::StrCat(
        "init method: etcd:// needs a prefix of the job's own, as in etcd://host:2379/job7, not '",
        address, "'"));
  }
  for (absl::string_view endpoint : absl::StrSplit(address.substr(0, slash), ',')) {
    SYNCLINE_RETURN_IF_ERROR(ParseHostPort(endpoint, "init method: etcd://", method.store));
  }
  method.store.etcd.endpoints = std::string(address.substr(0, slash));
  method.store.etcd.prefix = std::string(address.substr(slash));
  method.store.etcd.ttl = kEtcdTtl;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InitMethod> ParseInitMethod(absl::string_view url, int rank, int size) {
  const size_t colon = url.find("://");
  if (colon == absl::string_view::npos) {
    return ArgumentError(absl::StrCat("init method '", url, "' is not a URL; use ", kForms));
  }
  InitMethod method;
  method.scheme = std::string(url.substr(0, colon));
  method.rank = rank;
  method.size = size;
  const std::pair<absl::string_view, absl::string_view> rest =
      absl::StrSplit(url.substr(colon + 3), absl::MaxSplits('?', 1));
  SYNCLINE_RETURN_IF_ERROR(ParseQuery(rest.second, method));
  if (method.scheme == "env") {
    SYNCLINE_RETURN_IF_ERROR(ReadEnvironment(method));
  } else if (method.scheme == "tcp") {
    SYNCLINE_RETURN_IF_ERROR(ReadTcp(rest.first, method));
  } else if (method.scheme == "file") {
    SYNCLINE_RETURN_IF_ERROR(ReadFile(rest.first, method));
  } else if (method.scheme == "etcd") {
    SYNCLINE_RETURN_IF_ERROR(ReadEtcd(rest.first, method));
  } else if (method.scheme == kMpiScheme) {
    if (rest.first.empty()) return method;  // Rank and size are MPI's.
    return ArgumentError(absl::StrCat(
        "init method: mpi:// stands alone, as MPI knows the processes; got '", url, "'"));
  } else {
    return ArgumentError(
        absl::StrCat("unknown init method '", method.scheme, "://'; use ", kForms));
  }
  if (method.size < 0) {
    if (const std::optional<ClusterTask> task = DetectTaskOfSeveral()) {
      SYNCLINE_RETURN_IF_ERROR(TakeRanks(*task, "rank", "world_size", method));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckRanks(method, url));
  return method;
}

bool HasLauncher() {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SYNCLINE_STORE"}) {
    if (base::GetEnv(name).has_value()) return true;
  }
  return false;
}

}  // namespace syncline::join
