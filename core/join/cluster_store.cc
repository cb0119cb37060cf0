#include "core/join/cluster_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/hmac.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/join/init_method.h"
#include "core/tls/settings.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

// Names the nearest ancestor of this process that runs `program`; empty if there is none. All tasks
// of the job on this host have it in common, and its start time tells it from a later process of
// its pid.
std::string NameAncestor(absl::string_view program) {
  int pid = getpid();
  while (true) {
    const absl::StatusOr<base::ProcessState> process = base::ReadProcess(pid);
    if (!process.ok()) break;
    if (process->program == program) return absl::StrCat(program, "-", pid, "-", process->started);
    pid = process->parent;
  }
  return "";
}

// In a folder of another user, that user could put a file of its own in place of the store's.
absl::Status CheckOwnFolder(const std::string& folder) {
  constexpr absl::string_view kAdvice = "; to meet elsewhere, set MASTER_ADDR and MASTER_PORT";
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return StoreError(absl::StrCat("the ranks of this host cannot meet, as the folder '", folder,
                                   "' cannot be created: ", std::strerror(errno), kAdvice));
  }
  struct stat info = {};
  if (lstat(folder.c_str(), &info) != 0) {
    return StoreError(absl::StrCat("the ranks of this host cannot meet in '", folder,
                                   "': ", std::strerror(errno), kAdvice));
  }
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0) {
    return absl::OkStatus();
  }
  return StoreError(
      absl::StrFormat("the ranks of this host cannot meet in '%s': it must be a "
                      "folder of user %d with mode 0700, but user %d owns it, and "
                      "its mode is %04o%s",
                      folder, geteuid(), info.st_uid, info.st_mode & 07777, kAdvice));
}

std::string NotEnoughSaid(const ClusterTask& task, absl::string_view missing) {
  return absl::StrCat(task.launcher, " started this process as rank ", task.rank, " of ", task.size,
                      " and does not tell where the ranks can meet. Set ", missing,
                      " for all of them, or pass init_method");
}

// For tasks whose variables do not lead to a store.
ClusterStore StoreOverMpi(const ClusterTask& task, absl::string_view missing) {
  ClusterStore found;
  found.scheme = std::string(kMpiScheme);
  found.from = "MPI_Bcast";
  found.advice = NotEnoughSaid(task, missing);
  return found;
}

absl::StatusOr<ClusterStore> FileStoreOf(const ClusterTask& task) {
  const std::string job = task.job.empty() ? NameAncestor(task.ancestor) : task.job;
  if (job.empty()) return StoreOverMpi(task, "MASTER_ADDR=127.0.0.1 and MASTER_PORT");
  ClusterStore found;
  found.scheme = "file";
  SYNCLINE_ASSIGN_OR_RETURN(found.store.path, JobFile(job));
  found.from = absl::StrCat(task.hosts_from, ": all ranks on this host");
  return found;
}

}  // namespace

absl::StatusOr<std::string> JobFile(absl::string_view job, absl::string_view parent) {
  const std::string folder = absl::StrCat(parent, "/syncline-", geteuid());
  SYNCLINE_RETURN_IF_ERROR(CheckOwnFolder(folder));
  std::string name;
  for (const char c : job.substr(0, 100)) {
    name += absl::ascii_isalnum(c) || c == '.' || c == '-' ? c : '_';
  }
  SYNCLINE_ASSIGN_OR_RETURN(const Peer self, base::IdentifyThisProcess());
  const std::string hash = absl::BytesToHexString(base::HmacSha256(self.identity, job));
  return absl::StrCat(folder, "/", name, "-", hash.substr(0, 16));
}

absl::StatusOr<ClusterStore> StoreOfTask(const ClusterTask& task,
                                         const base::EnvironmentLookup& environment) {
  const std::string master = environment("MASTER_ADDR").value_or("");
  const std::string port = environment("MASTER_PORT").value_or("");
  if (master.empty() && task.hosts == 1) return FileStoreOf(task);
  ClusterStore found;
  found.scheme = "tcp";
  found.any_rank_serves = master.empty();
  found.store.host = master.empty() ? task.host : master;
  found.from = master.empty() ? task.host_from : "MASTER_ADDR";
  const bool lacks_port = port.empty() && task.job.empty();
  if (found.store.host.empty()) {
    return StoreOverMpi(task,
                        absl::StrCat("MASTER_ADDR to the host of rank 0",
                                     lacks_port ? ", and MASTER_PORT to a free port there," : ""));
  }
  if (lacks_port) {
    if (master.empty()) return StoreOverMpi(task, "MASTER_ADDR and MASTER_PORT");
    return ArgumentError(NotEnoughSaid(task, "MASTER_PORT to a free port of MASTER_ADDR"));
  }
  found.store.port = PortOfJob(task.job);
  if (!port.empty() && (!absl::SimpleAtoi(port, &found.store.port) || found.store.port < 1 ||
                        found.store.port > 65535)) {
    return ArgumentError(absl::StrCat("environment variable MASTER_PORT is '", port,
                                      "'; it must be an integer from 1 to 65535"));
  }
  if (!environment("SYNCLINE_SECRET_FILE").has_value() && !task.job.empty()) {
    SYNCLINE_RETURN_IF_ERROR(tls::CheckSecretMayBeWeak(environment));
    found.store.secret = SecretOfJob(task.job);
  }
  return found;
}

}  // namespace syncline::join
