// A job's store, as one of its processes has it.
#ifndef SYNCLINE_CORE_JOIN_OPENED_STORE_H_
#define SYNCLINE_CORE_JOIN_OPENED_STORE_H_

#include <memory>
#include <string>

#include "core/store/store.h"

namespace syncline {

struct OpenedStore {
  enum class Part { kHost, kGuest };

  std::shared_ptr<Store> store;
  std::string host;          // Where it is on the network; empty if it is not.
  Part part = Part::kGuest;  // kHost: the store ends with this process.
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_OPENED_STORE_H_
