#include "backends/common/socket_delivery.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "absl/time/clock.h"
#include "syncline/deadline.h"

namespace syncline::backends {
namespace {

// The bytes that have not been acknowledged; 0 also where none ever will be. A connection that was
// reset still counts those that it has dropped.
int Undelivered(int socket) {
  pollfd entry = {socket, 0, 0};
  if (poll(&entry, 1, 0) > 0) return 0;  // POLLERR, POLLHUP or POLLNVAL.
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace

void AwaitDelivery(std::vector<int> sockets, absl::Duration timeout) {
  int64_t before = -1;
  Deadline deadline(timeout);
  while (!deadline.Expired()) {
    int64_t waiting = 0;
    const auto is_done = [&](int socket) {
      const int bytes = Undelivered(socket);
      waiting += bytes;
      return bytes == 0;
    };
    sockets.erase(std::remove_if(sockets.begin(), sockets.end(), is_done), sockets.end());
    if (sockets.empty()) return;
    if (waiting != before) deadline = Deadline(timeout);
    before = waiting;
    absl::SleepFor(absl::Microseconds(100));
  }
}

void AcknowledgeNow(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
}

}  // namespace syncline::backends
