#include "core/base/resolve.h"

#include <netdb.h>

#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/thread.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// What getaddrinfo has found. Empty with an error of 0 until then.
struct Found {
  int error = 0;  // EAI_...
  std::vector<SocketAddress> addresses;
};

Found CallGetaddrinfo(const std::string& host, const ResolveOptions& options, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;  // Each address once.
  hints.ai_flags = flags | AI_NUMERICSERV | (options.is_to_listen ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  Found found;
  found.error = getaddrinfo(host.c_str(), absl::StrCat(options.port).c_str(), &hints, &list);
  if (found.error != 0) return found;
  const auto free_list = absl::MakeCleanup([&] { freeaddrinfo(list); });
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    SocketAddress address;
    address.length = info->ai_addrlen;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    found.addresses.push_back(address);
  }
  return found;
}

// What a call and its thread have in common; the later of the two frees it.
struct Shared {
  absl::Mutex mutex;
  bool is_done ABSL_GUARDED_BY(mutex) = false;
  Found found ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<Found> CallOnThread(const std::string& host, const ResolveOptions& options,
                                   const Deadline& deadline) {
  auto shared = std::make_shared<Shared>();
  auto thread = StartThread("looking up a host", [shared, host, options] {
    Found found = CallGetaddrinfo(host, options, 0);
    absl::MutexLock lock(&shared->mutex);
    shared->found = std::move(found);
    shared->is_done = true;
  });
  if (!thread.ok()) return thread.status();
  thread->detach();
  absl::MutexLock lock(&shared->mutex);
  if (deadline.AwaitInterruptibly(shared->mutex, absl::Condition(&shared->is_done))) {
    return std::move(shared->found);
  }
  SYNCLINE_RETURN_IF_ERROR(Interruption());
  return TimeoutError(absl::StrCat("looking up host '", host, "' has taken ",
                                   absl::FormatDuration(deadline.timeout()),
                                   "; check this host's name servers, or give an address"));
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   const ResolveOptions& options,
                                                   const Deadline& deadline) {
  Found found = CallGetaddrinfo(host, options, AI_NUMERICHOST);
  if (found.error == EAI_NONAME) {
    SYNCLINE_ASSIGN_OR_RETURN(found, CallOnThread(host, options, deadline));
  }
  if (found.error != 0) {
    return NetworkError(absl::StrCat("cannot look up host '", host,
                                     "': ", gai_strerror(found.error),
                                     "; check the name, or give an address"));
  }
  return std::move(found.addresses);
}

}  // namespace syncline::base
