#include "launch/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "launch/worker.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// Runs the program's main as if Python had been given the program itself: its arguments are
// sys.argv, its folder is searched for modules (unless Python runs with -P).
constexpr char kRunPath[] =
    "import os, runpy, sys\n"
    "del sys.argv[0]\n"
    "if sys.path[:1] == ['']:\n"
    "    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n";

std::string Lookup(const Environment& environment, const std::string& name,
                   const std::string& default_value) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? default_value : found->second;
}

absl::Status CheckScript(const std::string& script) {
  if (access(script.c_str(), R_OK) == 0) return absl::OkStatus();
  std::error_code error;
  const std::string message =
      absl::StrCat("the script '", script, "' cannot be read: ", std::strerror(errno), " (in ",
                   std::filesystem::current_path(error).string(), ")");
  return ArgumentError(absl::StrCat(
      message, ". Give a path relative to that folder; for a module add -m, for another program ",
      "--no-python"));
}

}  // namespace

absl::StatusOr<Program> ResolveProgram(const LaunchOptions& options,
                                       const Environment& environment) {
  const std::string path = Lookup(environment, "PATH", "/usr/local/bin:/usr/bin:/bin");
  Program program;
  if (options.kind == LaunchOptions::Program::kExecutable) {
    SYNCLINE_ASSIGN_OR_RETURN(program.path, FindProgram(options.program, path));
    program.arguments = {options.program};
  } else {
    const std::string python = Lookup(environment, "PYTHON_EXEC", "python3");
    absl::StatusOr<std::string> interpreter = FindProgram(python, path);
    if (!interpreter.ok()) {
      return Annotate(interpreter.status(), "no Python interpreter (set PYTHON_EXEC to one)");
    }
    program.path = *std::move(interpreter);
    program.arguments = {python, "-u"};
    if (options.kind == LaunchOptions::Program::kModule) {
      program.arguments.push_back("-m");
    } else {
      SYNCLINE_RETURN_IF_ERROR(CheckScript(options.program));
      if (options.kind == LaunchOptions::Program::kRunPath) {
        program.arguments.insert(program.arguments.end(), {"-c", kRunPath});
      }
    }
    program.arguments.push_back(options.program);
  }
  program.arguments.insert(program.arguments.end(), options.arguments.begin(),
                           options.arguments.end());
  return program;
}

}  // namespace syncline::launch
