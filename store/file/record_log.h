// The records of a file store's log, as bytes.
#ifndef SYNCLINE_STORE_FILE_RECORD_LOG_H_
#define SYNCLINE_STORE_FILE_RECORD_LOG_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "store/common/contents.h"

namespace syncline::file_store {

// One record: changes that are made in one step. Length, checksum, then the changes; so a record
// that its writer did not finish differs from a whole one.
std::string EncodeRecord(absl::Span<const store::Change> changes);

// Calls `apply` for the changes of all whole records that `bytes` begins with, in order, and
// returns how many bytes those records take. Accepts any bytes.
size_t DecodeRecords(absl::string_view bytes, absl::FunctionRef<void(store::Change)> apply);

}  // namespace syncline::file_store

#endif  // SYNCLINE_STORE_FILE_RECORD_LOG_H_
