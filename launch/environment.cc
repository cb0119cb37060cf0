#include "launch/environment.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncline::launch {

Environment InheritedEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

void DescribeJob(const JobFacts& job, const WorkerFacts& worker, Environment* environment) {
  Environment& env = *environment;
  env["LOCAL_RANK"] = absl::StrCat(worker.local_rank);
  env["RANK"] = absl::StrCat(job.first_rank + worker.local_rank);
  env["GROUP_RANK"] = absl::StrCat(job.group_rank);
  env["ROLE_RANK"] = absl::StrCat(job.first_role_rank + worker.local_rank);
  env["ROLE_NAME"] = job.role;
  env["LOCAL_WORLD_SIZE"] = absl::StrCat(job.workers);
  env["WORLD_SIZE"] = absl::StrCat(job.world_size);
  env["GROUP_WORLD_SIZE"] = absl::StrCat(job.group_world_size);
  env["ROLE_WORLD_SIZE"] = absl::StrCat(job.role_world_size);
  env["MASTER_ADDR"] = job.master_addr;
  env["MASTER_PORT"] = absl::StrCat(job.master_port);
  const std::pair<const char*, std::string> twins[] = {
      {"RESTART_COUNT", absl::StrCat(job.restarts)},
      {"MAX_RESTARTS", absl::StrCat(job.max_restarts)},
      {"RUN_ID", job.run_id},
      // Nobody listens on MASTER_PORT yet: rank 0 opens it.
      {"USE_AGENT_STORE", "False"},
      {"ERROR_FILE", worker.error_file},
  };
  for (const auto& [name, value] : twins) {
    env[absl::StrCat("TORCHELASTIC_", name)] = value;
    env[absl::StrCat("SYNCLINE_", name)] = value;
  }
  // Only the launcher uses the rendezvous, so workers do not get its password.
  for (const char* name : {"SYNCLINE_RDZV_CONF", "PET_RDZV_CONF"}) {
    const auto conf = env.find(name);
    if (conf != env.end() && absl::StrContains(conf->second, "password=")) env.erase(conf);
  }
  env["SYNCLINE_ROUND"] = absl::StrCat(job.round);
  env["SYNCLINE_SECRET_FILE"] = job.secret_file;
  env.erase("SYNCLINE_STORE");
  if (!job.store_address.empty()) env["SYNCLINE_STORE"] = job.store_address;
  env["SYNCLINE_STALL_FILE"] = worker.stall_file;
  env.erase("SYNCLINE_HEARTBEAT_FILE");
  if (!worker.heartbeat_file.empty()) env["SYNCLINE_HEARTBEAT_FILE"] = worker.heartbeat_file;
  env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!job.host_address.empty()) env.emplace("SYNCLINE_HOST_ADDRESS", job.host_address);
  if (job.workers > 1) env.emplace("OMP_NUM_THREADS", "1");
  env.emplace("PYTHONUNBUFFERED", "1");
}

std::vector<std::string> Assignments(const Environment& environment) {
  std::vector<std::string> assignments;
  for (const auto& [name, value] : environment) {
    assignments.push_back(absl::StrCat(name, "=", value));
  }
  return assignments;
}

}  // namespace syncline::launch
