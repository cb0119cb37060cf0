// What a client of a tcp store makes of the server's answers.
#ifndef SYNCLINE_STORE_TCP_ANSWERS_H_
#define SYNCLINE_STORE_TCP_ANSWERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "store/tcp/store.pb.h"

namespace syncline::tcp_store {

// OK if `answer` is of the `expected` sort. Else the error that it holds, which names `store`; the
// TimeoutError of keys that were not set within `timeout`; or a NetworkError for an answer to
// something else. The answer is taken apart then.
absl::Status CheckAnswer(absl::string_view store, absl::Duration timeout,
                         wire::ServerMessage::BodyCase expected, wire::ServerMessage& answer);

// These take what they return out of an answer of the sort `values`, and return a NetworkError for
// one that is not to the question: with another number of values, or with a key that does not begin
// with `prefix`.
absl::StatusOr<std::vector<std::string>> TakeValues(absl::string_view store, size_t count,
                                                    wire::ServerMessage& answer);
absl::StatusOr<std::vector<std::string>> TakeKeys(absl::string_view store, absl::string_view prefix,
                                                  wire::ServerMessage& answer);

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_ANSWERS_H_
