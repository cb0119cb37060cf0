#include "launch/environment.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncline {

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

void DescribeJob(const JobFacts& job, int local_rank, const std::string& error_file,
                 Environment* environment) {
  const std::string rank = absl::StrCat(local_rank);  // On a single node.
  const std::string world_size = absl::StrCat(job.workers);
  Environment& env = *environment;
  env["LOCAL_RANK"] = rank;
  env["RANK"] = rank;
  env["GROUP_RANK"] = "0";
  env["ROLE_RANK"] = rank;
  env["ROLE_NAME"] = job.role;
  env["LOCAL_WORLD_SIZE"] = world_size;
  env["WORLD_SIZE"] = world_size;
  env["GROUP_WORLD_SIZE"] = "1";
  env["ROLE_WORLD_SIZE"] = world_size;
  env["MASTER_ADDR"] = job.master_addr;
  env["MASTER_PORT"] = absl::StrCat(job.master_port);
  env["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(job.attempt);
  env["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(job.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = job.run_id;
  // The port of MASTER_PORT is nobody's yet: rank 0 is to open it.
  env["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  env["TORCHELASTIC_ERROR_FILE"] = error_file;
  env["SYNCLINE_SECRET_FILE"] = job.secret_file;
  env.erase("SYNCLINE_STORE");
  if (!job.store_address.empty()) env["SYNCLINE_STORE"] = job.store_address;
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

}  // namespace syncline
