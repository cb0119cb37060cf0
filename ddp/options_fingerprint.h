// The options of a reducer that all its ranks must share, and the check that they do.
#ifndef SYNCLINE_DDP_OPTIONS_FINGERPRINT_H_
#define SYNCLINE_DDP_OPTIONS_FINGERPRINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ddp/host_exchange.h"

namespace syncline::ddp {

// One option: "parameter 'bias' (index 3)" is "float32[10] on cpu".
struct OptionValue {
  std::string name;
  std::string value;
};

// All options that ranks compare, in one order. Ranks exchange a hash of it first, and the texts
// only if the hashes differ.
using OptionsFingerprint = std::vector<OptionValue>;

// Collective over the exchange's group: returns OK if all ranks bring the same options. Otherwise a
// MismatchError on all ranks that names the first option that differs, and which ranks have which
// value. A rank that cannot go on brings its `own` error instead of options: it gets this error
// back, and the others get a MismatchError that quotes it. Errors of the group are returned as they
// are.
//
// core/store/check_same.h has the form that works through a store, before there is a group.
absl::Status CheckSameOnAllRanks(const HostExchange& exchange, const OptionsFingerprint& options,
                                 const absl::Status& own = absl::OkStatus());

// For messages: "parameter 3", or "'bias' (index 3)" where there are names.
std::string ParameterName(const std::vector<std::string>& names, int64_t index);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_OPTIONS_FINGERPRINT_H_
