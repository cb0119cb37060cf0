// Several hosts on this machine, network namespaces that a switch joins, and programs on them.
//
//   on_hosts make COUNT MEGABITS             Prints a line, "ADDRESS=DOOR" of each host. They end
//                                            with the standard input. 0 megabits: no limit.
//   on_hosts enter ADDRESS PROGRAM ...       Runs a program on a host, which is named by its
//                                            address too, as mpirun's daemons find each other by
//                                            names. $ON_HOSTS is that line. The program has the
//                                            host's cores alone, as hosts share none, if there are
//                                            enough.
//   on_hosts agent ADDRESS COMMAND ...       The same with a shell's command, as ssh has it.
#include <sched.h>
#include <unistd.h>

#include <cstddef>
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

// Of the machine's cores those of host number `host` of `count`. Not of those of this process:
// mpirun starts its daemons on other hosts from the first.
void UseCoresOfHost(size_t host, size_t count) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const auto online = static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN));
  for (size_t core = host; core < online && online >= count; core += count) CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);  // No cores: an error, and nothing changes.
}

int Enter(const std::string& address, std::vector<char*> command) {
  const char* const hosts = std::getenv("ON_HOSTS");
  if (hosts == nullptr) return Fail("ON_HOSTS is not set");
  const std::vector<std::string> all = absl::StrSplit(hosts, ' ');
  for (size_t host = 0; host < all.size(); ++host) {
    const std::vector<std::string> parts = absl::StrSplit(all[host], absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0] != address) continue;
    EnterHost(parts[1]);
    UseCoresOfHost(host, all.size());
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
