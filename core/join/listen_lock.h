// A lock that serialises attempts of this host's processes to listen on one address.
#ifndef SYNCLINE_CORE_JOIN_LISTEN_LOCK_H_
#define SYNCLINE_CORE_JOIN_LISTEN_LOCK_H_

#include "absl/strings/string_view.h"

namespace syncline::join {

// Tries to take the lock when it is made; does not wait. Two processes that bound one address at
// the same time could both fail, and gRPC would log it; so a process that would serve a store takes
// this lock first. The lock is released with the object, or when the process ends. It is an
// abstract Unix socket name, so it reaches as far as the network namespace, as the address itself
// does.
//
//   const ListenLock lock(host, port);
//   if (lock.is_held()) server = Listen(host, port);
class ListenLock {
 public:
  ListenLock(absl::string_view host, int port);
  ~ListenLock();

  ListenLock(const ListenLock&) = delete;
  ListenLock& operator=(const ListenLock&) = delete;

  // False if another process holds it, or if this one has no descriptor left.
  bool is_held() const { return is_held_; }

 private:
  const int fd_;
  bool is_held_;
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_LISTEN_LOCK_H_
