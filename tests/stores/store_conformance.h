// What every store must do, as one suite: tests/stores/store_conformance.cc holds it, and
// tests/stores/store_conformance_test.cc lists the stores.
#ifndef SYNCLINE_TESTS_STORES_STORE_CONFORMANCE_H_
#define SYNCLINE_TESTS_STORES_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "syncline/store.h"

namespace syncline {

// One store under test. Differences are stated here as data; the suite never asks for the name.
struct StoreCase {
  std::string name;           // Of the case, in letters, digits and underscores.
  std::string registered_as;  // In the StoreRegistry; for a wrapper, that of the store within.

  // What it can of ExtendedStore: nothing, all but queues, or all.
  enum class Extension { kNone, kClones, kQueues } extension = Extension::kNone;

  // `n` clients of one new store, of which some may be the same object.
  std::function<std::vector<std::shared_ptr<Store>>(int n)> open;
};

inline std::ostream& operator<<(std::ostream& os, const StoreCase& c) { return os << c.name; }

class StoreConformance : public testing::TestWithParam<StoreCase> {
 protected:
  static std::vector<std::shared_ptr<Store>> Open(int n) { return GetParam().open(n); }
  static std::shared_ptr<Store> Open() { return Open(1)[0]; }
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_STORES_STORE_CONFORMANCE_H_
