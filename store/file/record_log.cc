#include "store/file/record_log.h"

#include <cstdint>
#include <utility>

#include "core/base/hash.h"

namespace syncline::file_store {
namespace {

using store::Change;

constexpr size_t kNumberBytes = 8;
constexpr size_t kHeaderBytes = 2 * kNumberBytes;  // Length and checksum of what follows.

// Little-endian, so that hosts of all kinds can share a file.
void PutNumber(uint64_t number, std::string* out) {
  for (size_t i = 0; i < kNumberBytes; ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

bool TakeNumber(absl::string_view* in, uint64_t* number) {
  if (in->size() < kNumberBytes) return false;
  *number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    *number |= uint64_t{static_cast<unsigned char>((*in)[i])} << (8 * i);
  }
  in->remove_prefix(kNumberBytes);
  return true;
}

void PutBytes(absl::string_view bytes, std::string* out) {
  PutNumber(bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

bool TakeBytes(absl::string_view* in, absl::string_view* bytes) {
  uint64_t size = 0;
  if (!TakeNumber(in, &size) || size > in->size()) return false;
  *bytes = in->substr(0, size);
  in->remove_prefix(size);
  return true;
}

// Finds accidents, not attacks: a process that may write the file may also forge it.
uint64_t Checksum(absl::string_view bytes) { return base::Fnv1a64(bytes); }

bool DecodeChanges(absl::string_view payload, std::vector<Change>* changes) {
  while (!payload.empty()) {
    const auto kind = static_cast<Change::Kind>(payload[0]);
    if (kind < Change::Kind::kSet || kind > Change::Kind::kDelete) return false;
    payload.remove_prefix(1);
    absl::string_view key, value;
    if (!TakeBytes(&payload, &key) || !TakeBytes(&payload, &value)) return false;
    changes->push_back({kind, std::string(key), std::string(value)});
  }
  return true;
}

}  // namespace

std::string EncodeRecord(absl::Span<const Change> changes) {
  std::string payload;
  for (const Change& change : changes) {
    payload.push_back(static_cast<char>(change.kind));
    PutBytes(change.key, &payload);
    PutBytes(change.value, &payload);
  }
  std::string record;
  record.reserve(kHeaderBytes + payload.size());
  PutNumber(payload.size(), &record);
  PutNumber(Checksum(payload), &record);
  record += payload;
  return record;
}

size_t DecodeRecords(absl::string_view bytes, absl::FunctionRef<void(Change)> apply) {
  absl::string_view rest = bytes;
  while (true) {
    const size_t done = bytes.size() - rest.size();
    uint64_t size = 0, checksum = 0;
    if (!TakeNumber(&rest, &size) || !TakeNumber(&rest, &checksum) || size > rest.size()) {
      return done;
    }
    const absl::string_view payload = rest.substr(0, size);
    std::vector<Change> changes;
    if (Checksum(payload) != checksum || !DecodeChanges(payload, &changes)) return done;
    for (Change& change : changes) apply(std::move(change));
    rest.remove_prefix(size);
  }
}

}  // namespace syncline::file_store
