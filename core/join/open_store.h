// From an init method to the store that it leads to.
#ifndef SYNCLINE_CORE_JOIN_OPEN_STORE_H_
#define SYNCLINE_CORE_JOIN_OPEN_STORE_H_

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/join/init_method.h"
#include "core/join/opened_store.h"

namespace syncline {

// Opens, and where it falls to this process hosts, the store of `method`.
//
// tcp with a rank: rank 0 hosts. Without one: whoever can bind the address first, and the others
// connect; who is on another host than the address names cannot bind it. A rank 0 that comes after
// such a host connects too. Multicast: see multicast.h.
absl::StatusOr<OpenedStore> OpenStore(const InitMethod& method, const Deadline& deadline);

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_OPEN_STORE_H_
