// Several hosts for tests that are not in C++:
//
//   network COUNT COMMAND...  runs the command in a network of so many hosts (see hosts.h), whose
//                             doors and addresses are in SYNCLINE_TEST_HOSTS: "door=address,..."
//   network --on DOOR COMMAND...  runs the command on a host of that network
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/hosts.h"

namespace syncline {
namespace {

[[noreturn]] void Become(char** command) {
  execvp(command[0], command);
  std::perror(command[0]);
  _exit(127);
}

int RunInNetwork(int count, char** command) {
  if (!EnterNewNetwork()) {
    std::perror("this user may not make network namespaces");
    return 1;
  }
  const Hosts hosts(count);
  std::vector<std::string> described;
  for (int host = 0; host < count; ++host) {
    described.push_back(absl::StrCat(hosts.door(host), "=", AddressOfHost(host)));
  }
  setenv("SYNCLINE_TEST_HOSTS", absl::StrJoin(described, ",").c_str(), 1);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Become(command);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int Main(int argc, char** argv) {
  if (const auto kept = WorkAsHost(argc, argv)) return *kept;
  int count = 0;
  if (argc > 3 && std::string(argv[1]) == "--on") {
    EnterHost(argv[2]);
    Become(argv + 3);
  }
  if (argc > 2 && absl::SimpleAtoi(argv[1], &count)) return RunInNetwork(count, argv + 2);
  std::fprintf(stderr, "usage: network COUNT COMMAND... | network --on DOOR COMMAND...\n");
  return 2;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) { return syncline::Main(argc, argv); }
