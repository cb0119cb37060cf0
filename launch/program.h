// Finds the program that a worker runs.
#ifndef SYNCLINE_LAUNCH_PROGRAM_H_
#define SYNCLINE_LAUNCH_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/environment.h"
#include "launch/options/options.h"

namespace syncline::launch {

struct Program {
  std::string path;                    // Of an executable file.
  std::vector<std::string> arguments;  // Beginning with the program's name.
};

// Finds the interpreter ($PYTHON_EXEC, or python3 in PATH) or the program, and checks that the
// script exists, so that a mistake is reported once, before any worker starts: ArgumentError.
// Thread-safe.
absl::StatusOr<Program> ResolveProgram(const LaunchOptions& options,
                                       const Environment& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_PROGRAM_H_
