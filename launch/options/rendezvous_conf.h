// Parses --rdzv-conf. Errors are ArgumentError. Pure functions.
#ifndef SYNCLINE_LAUNCH_OPTIONS_RENDEZVOUS_CONF_H_
#define SYNCLINE_LAUNCH_OPTIONS_RENDEZVOUS_CONF_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/options/options.h"

namespace syncline::launch {

// One key, with its help text and the backends that have it ("c10d", "etcd").
struct RendezvousKey {
  absl::string_view name;
  absl::string_view backends;  // "" for all.
  absl::string_view help;
};
absl::Span<const RendezvousKey> RendezvousKeys();

// Takes the next entry of "key=value,key=value" from the beginning of `rest`. A comma in a quoted
// value, as in key="a,b", is part of it.
absl::string_view TakeConfEntry(absl::string_view* rest);

// The value as it must be written after "key=": in quotes, with quotes inside doubled, if it needs
// them.
std::string QuoteConfValue(absl::string_view value);

// Applies "key=value,key=value" to `options`, whose backend and endpoint are known. An unknown key
// is an error with the nearest match; a key that the backend does not use is an error too. `where`
// names the option in messages.
absl::Status ReadRendezvousConf(absl::string_view where, absl::string_view text,
                                RendezvousOptions* options);

// Whether `text` contains store_type=file: c10d over a file, whose path is the endpoint.
bool AsksForFile(absl::string_view text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_RENDEZVOUS_CONF_H_
