// Who connects to ranks and is none of them, and what a rank sends that no rank would: ranks of
// these tests run in this process, so a test can write to their sockets.
#ifndef SYNCLINE_TESTS_BACKENDS_STRANGERS_H_
#define SYNCLINE_TESTS_BACKENDS_STRANGERS_H_

#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"

namespace syncline {

// The inodes of this process's sockets with their descriptors.
std::vector<std::pair<std::string, int>> OwnSockets();

// Sends `bytes` through each of this process's sockets that is not among `before`. Returns through
// how many.
int WriteToNewSockets(const std::vector<std::pair<std::string, int>>& before,
                      const std::string& bytes);

// Sends `bytes` through each connection that a listener of this process at `port` has accepted, as
// if the rank that listened there did. Returns through how many.
int WriteToAccepted(int port, const std::string& bytes);

// Connects to a port of 127.0.0.1. Invalid if nobody listens there any more.
base::UniqueFd TryToConnect(int port);

// The other side may have closed it already.
void SendText(const base::UniqueFd& socket, const std::string& text);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_STRANGERS_H_
