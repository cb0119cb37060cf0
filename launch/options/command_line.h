// Splits the command line into options, program and arguments, as argparse does for torchrun. Pure.
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

// Options end at the program or at "--"; everything after the program is its own. `status` as the
// first word is a command, not a program ("./status" and "-- status" are programs), and options may
// follow its endpoint. ArgumentError for an unknown option, a missing value or a missing program;
// --help, --version and --print-completion need no program.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_COMMAND_LINE_H_
