// Several hosts on this machine, network namespaces that a switch joins, and programs on them.
//
//   on_hosts make COUNT MEGABITS             Prints a line, "ADDRESS=DOOR" of each host. They end
//                                            with the standard input. 0 megabits: no limit.
//   on_hosts enter ADDRESS PROGRAM ...       Runs a program on a host, which is named by its
//                                            address too, as mpirun's daemons find each other by
//                                            names. $ON_HOSTS is that line.
//   on_hosts agent ADDRESS COMMAND ...       The same with a shell's command, as ssh has it.
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/hosts.h"

namespace syncline::benchmarks {
namespace {

int Fail(const std::string& text) {
  std::fprintf(stderr, "on_hosts: %s\n", text.c_str());
  return 1;
}

int Make(int count, int megabits) {
  if (!EnterNewNetwork()) return Fail("this user may not make network namespaces");
  const Hosts hosts(count);
  std::vector<std::string> doors;
  for (int host = 0; host < count; ++host) {
    if (megabits > 0) hosts.LimitRate(host, megabits);
    doors.push_back(absl::StrCat(AddressOfHost(host), "=", hosts.door(host)));
  }
  std::cout << absl::StrJoin(doors, " ") << std::endl;
  while (std::cin.get() != EOF) continue;
  return 0;
}

int Enter(const std::string& address, std::vector<char*> command) {
  const char* const hosts = std::getenv("ON_HOSTS");
  if (hosts == nullptr) return Fail("ON_HOSTS is not set");
  for (const absl::string_view host : absl::StrSplit(hosts, ' ')) {
    const std::vector<std::string> parts = absl::StrSplit(host, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0] != address) continue;
    EnterHost(parts[1]);
    if (unshare(CLONE_NEWUTS) != 0 || sethostname(address.data(), address.size()) != 0) {
      return Fail(absl::StrCat("cannot name a host: ", std::strerror(errno)));
    }
    command.push_back(nullptr);
    execv(command[0], command.data());
    return Fail(absl::StrCat(command[0], ": ", std::strerror(errno)));
  }
  return Fail(absl::StrCat("there is no host ", address));
}

int Main(int argc, char** argv) {
  if (const auto status = WorkAsHost(argc, argv)) return *status;
  const std::vector<std::string> words(argv, argv + argc);
  int count = 0, megabits = 0;
  if (argc == 4 && words[1] == "make" && absl::SimpleAtoi(words[2], &count) &&
      absl::SimpleAtoi(words[3], &megabits)) {
    return Make(count, megabits);
  }
  if (argc > 3 && words[1] == "enter") return Enter(words[2], {argv + 3, argv + argc});
  if (argc > 3 && words[1] == "agent") {
    std::string shell = "/bin/sh", flag = "-c", text = absl::StrJoin(argv + 3, argv + argc, " ");
    return Enter(words[2], {shell.data(), flag.data(), text.data()});
  }
  return Fail("make COUNT MEGABITS, enter ADDRESS PROGRAM ... or agent ADDRESS COMMAND ...");
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
