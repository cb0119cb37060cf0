// What every backend must do with data, as a list of cases that ranks run together, in threads or
// in processes: tests/backends/conformance_collectives.cc and tests/backends/conformance_p2p.cc.
#ifndef SYNCLINE_TESTS_BACKENDS_CONFORMANCE_DATA_H_
#define SYNCLINE_TESTS_BACKENDS_CONFORMANCE_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/store.h"

namespace syncline {

inline constexpr absl::Duration kTimeout = absl::Seconds(60);  // For what must happen.

// How a backend finds the receive for a message.
enum class MessageMatching {
  kByTagAndSource,
  kInOrder,  // Of each pair of ranks: there are no tags but 0, and no receives from any rank.
};

// One rank of a group under test.
class Member {
 public:
  // Collective, as BackendRegistry::Make. `backend` is a name in the registry.
  static absl::StatusOr<std::unique_ptr<Member>> Join(
      const std::string& backend, std::shared_ptr<Store> store, int rank, int size,
      MismatchCheck check = MismatchCheck::kOn,
      MessageMatching matching = MessageMatching::kByTagAndSource);

  Backend& backend() { return *backend_; }
  const Capabilities& capabilities() const { return capabilities_; }
  Store& store() { return *store_; }  // Where the ranks may meet otherwise.
  int rank() const { return rank_; }
  int size() const { return size_; }

  // `tag`, or 0 where there are no others.
  int Tag(int tag) const { return matching_ == MessageMatching::kInOrder ? 0 : tag; }

  // A collective call's context: they are numbered.
  CallContext Next() { return {sequence_++, Deadline(kTimeout)}; }

  // Makes the collective call.
  absl::Status Run(const Collective& operation);

  // Says that these bytes are the same on all ranks. Whoever runs the ranks compares the digests.
  void AddToDigest(const Tensor& tensor);
  uint64_t digest() const { return digest_; }

  // A further group of these ranks of the same backend; all of them call it. Null if not in it.
  absl::StatusOr<std::unique_ptr<Member>> Group(const std::string& name,
                                                const std::vector<int>& ranks);

 private:
  Member(std::string backend_name, Capabilities capabilities, std::shared_ptr<Backend> backend,
         std::shared_ptr<Store> store, int rank, int size, MessageMatching matching);

  const std::string backend_name_;
  const Capabilities capabilities_;
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const MessageMatching matching_;
  uint64_t sequence_ = 0;
  uint64_t digest_ = 0;
};

struct DataCase {
  std::string name;
  std::vector<OpKind> covers;  // The kinds whose results it checks.
  std::function<absl::Status(Member& member)> run;
  bool matches = false;  // Is about tags, or receives from any rank.
};

const std::vector<DataCase>& DataCases();  // All of them.
const DataCase& FindDataCase(absl::string_view name);

// The two halves of the list.
std::vector<DataCase> CollectiveCases();
std::vector<DataCase> P2pCases();

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_CONFORMANCE_DATA_H_
