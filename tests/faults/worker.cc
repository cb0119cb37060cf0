// A worker of a launcher: joins, meets the others, and ends well, except rank 1 in the first round.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "syncline/status.h"
#include "syncline/world.h"

int main() {
  syncline::WorldOptions options;
  options.timeout = absl::Seconds(10);
  const auto world = syncline::World::Init(options);
  const absl::Status met = world.ok() ? (*world)->group()->Barrier() : world.status();
  if (!met.ok()) {
    std::fprintf(stderr, "%s\n", std::string(met.message()).c_str());
    return 2;
  }
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if ((*world)->rank() == 1 && restarts != nullptr && std::atoi(restarts) == 0) return 1;
  std::printf("rank %d is done\n", static_cast<int>((*world)->rank()));
  (*world)->Close();
  return 0;
}
