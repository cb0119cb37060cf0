// Takes the command line apart, as Python's argparse does for torchrun.
#ifndef SYNCLINE_LAUNCH_OPTIONS_COMMAND_LINE_H_
#define SYNCLINE_LAUNCH_OPTIONS_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/options/settings.h"

namespace syncline::launch {

struct CommandLine {
  Settings settings;
  bool asks_status = false;  // `status ENDPOINT`: `program` is the endpoint.
  std::string program;       // Empty if there is none.
  std::vector<std::string> arguments;
};

// Options end at the program or at "--"; what follows the program is its own. `status` as the
// first word is no program ("./status" or "-- status" is), and options may follow its endpoint.
// Nothing is missing that --help, --version or --print-completion could do without.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_COMMAND_LINE_H_
