// A store, and whether this process hosts it.
#ifndef SYNCLINE_CORE_JOIN_OPENED_STORE_H_
#define SYNCLINE_CORE_JOIN_OPENED_STORE_H_

#include <memory>
#include <string>

#include "syncline/store.h"

namespace syncline::join {

struct OpenedStore {
  std::shared_ptr<Store> store;
  std::string host;  // The store's host on the network; empty if the store is not on one.
  // kServer: this process hosts the store, which ends with it.
  StoreConfig::Role role = StoreConfig::Role::kClient;
  // What the way to the store has told of this process; -1 where it tells nothing.
  int rank = -1;
  int size = -1;
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_OPENED_STORE_H_
