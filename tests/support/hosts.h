// Several hosts on this one: network namespaces, each with one interface to a switch between them.
#ifndef SYNCLINE_TESTS_SUPPORT_HOSTS_H_
#define SYNCLINE_TESTS_SUPPORT_HOSTS_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace syncline {

// Makes this process the administrator of a network namespace of its own, where the switches will
// be. False if this user may not. Once, before there are threads.
bool EnterNewNetwork();

// The address of host 0, 1, ..., reachable from all others.
std::string AddressOfHost(int host);
std::string Ipv6AddressOfHost(int host);

// A program that makes Hosts is also their keeper: the exit status of one, nothing if the arguments
// are not those of a keeper. Call it from main().
std::optional<int> WorkAsHost(int argc, char** argv);

// Hosts of one network. Those of two objects do not reach each other, and have the same addresses.
// Ends with the object, and takes the network away from who is still in there.
class Hosts {
 public:
  explicit Hosts(int count);
  ~Hosts();

  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // From then on nothing comes to the host, or from it; its own interface stays up.
  void CutOff(int host) const;

  // From then on what is sent to the host is lost, and what it sends still comes through.
  void LoseTo(int host) const;

  // From then on the host gets so many megabits a second at most, from all others together. What
  // the switch cannot hold it drops, as a real one does.
  void LimitRate(int host, int megabits) const;

  // For EnterHost, as an argument of a Process.
  std::string door(int host) const;

 private:
  std::string PortOf(size_t host) const;  // The name of the switch's end of its cable.

  std::string switch_;
  std::vector<std::unique_ptr<Process>> keepers_;
};

// Puts this process, which must not have threads yet, on the host. Ends the program if it cannot.
void EnterHost(const std::string& door);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_HOSTS_H_
