#include "store/tcp/answers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "store/common/errors.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using Body = wire::ServerMessage::BodyCase;
using store::AnnotateStore;

std::vector<std::string> Take(google::protobuf::RepeatedPtrField<std::string>* strings) {
  return {std::make_move_iterator(strings->begin()), std::make_move_iterator(strings->end())};
}

absl::Status WrongAnswer(absl::string_view store) {
  return AnnotateStore(NetworkError("the server's answer is not to the question; see whether all "
                                    "processes run the same version"),
                       store);
}

}  // namespace

absl::Status CheckAnswer(absl::string_view store, absl::Duration timeout, Body expected,
                         wire::ServerMessage& answer) {
  if (answer.body_case() == expected) return absl::OkStatus();
  switch (answer.body_case()) {
    case Body::kNotSet:
      return store::NotSetError(store, Take(answer.mutable_not_set()->mutable_keys()), timeout);
    case Body::kError: {
      const wire::Error& error = answer.error();
      return AnnotateStore(error.kind() == wire::Error::ARGUMENT ? ArgumentError(error.message())
                                                                 : StoreError(error.message()),
                           store);
    }
    default:
      return WrongAnswer(store);
  }
}

absl::StatusOr<std::vector<std::string>> TakeValues(absl::string_view store, size_t count,
                                                    wire::ServerMessage& answer) {
  std::vector<std::string> values = Take(answer.mutable_values()->mutable_values());
  if (values.size() != count) return WrongAnswer(store);
  return values;
}

// Whoever lists keys takes the prefix off them, and relies on its being there.
absl::StatusOr<std::vector<std::string>> TakeKeys(absl::string_view store, absl::string_view prefix,
                                                  wire::ServerMessage& answer) {
  std::vector<std::string> keys = Take(answer.mutable_values()->mutable_values());
  const bool all_fit = std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return absl::StartsWith(key, prefix);
  });
  if (!all_fit) return WrongAnswer(store);
  return keys;
}

}  // namespace syncline::tcp_store
