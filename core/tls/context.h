// What the TLS connections of a process prove, and what they ask of others.
#ifndef SYNCLINE_CORE_TLS_CONTEXT_H_
#define SYNCLINE_CORE_TLS_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "core/tls/session.h"
#include "core/tls/settings.h"

namespace syncline::tls {

// TLS 1.3 alone, without tickets or early data. With certificates, both sides prove theirs; files
// that have changed are read again for the next connection, so that certificates can be renewed
// while a job runs. With a secret, both sides prove a key that follows from it, and agree on
// another by Diffie and Hellman's exchange: who learns the secret later cannot read what was sent
// before.
//
// Thread-safe.
class Context {
 public:
  // So many records are encrypted with one key.
  static constexpr uint64_t kRecordsPerKey = 1 << 23;

  // nullptr with Mode::kOff. `secret` is the job's, for Mode::kSecret. An ArgumentError if that is
  // empty; otherwise one that names a file which cannot be read, or what is wrong with it: a
  // certificate that has expired, a key that is not the certificate's, or that others can read.
  static absl::StatusOr<std::shared_ptr<Context>> Create(Settings settings, std::string secret,
                                                         uint64_t records_per_key = kRecordsPerKey);
  // With SettingsFromEnvironment. An empty `secret`: that of base::JobSecret.
  static absl::StatusOr<std::shared_ptr<Context>> FromEnvironment(std::string secret = "");

  Mode mode() const { return settings_.mode; }

  // One end of a connection. `purpose`, which both ends prove to each other, must be the same: with
  // Mode::kSecret the key follows from it too. What can be guessed of it is not hidden. `host`,
  // with certificates: what this process connects to, a name or an address. BackendError if memory
  // is short.
  absl::StatusOr<std::unique_ptr<Session>> Connect(absl::string_view purpose,
                                                   const std::string& host);
  absl::StatusOr<std::unique_ptr<Session>> Accept(absl::string_view purpose);

 private:
  using ContextPointer = std::shared_ptr<ssl_ctx_st>;

  Context(Settings settings, std::string secret, uint64_t records_per_key);

  absl::StatusOr<ContextPointer> Load() const;
  // When each of the files was changed.
  std::vector<int64_t> FileVersions() const;
  ContextPointer Current();
  absl::StatusOr<std::unique_ptr<Session>> NewSession(Session::Role role, absl::string_view purpose,
                                                      const std::string& peer_name);

  const Settings settings_;
  const std::string secret_;
  const uint64_t records_per_key_;
  absl::Mutex mutex_;
  ContextPointer context_ ABSL_GUARDED_BY(mutex_);
  // Of the files that were read, and of those that could not be, the last time.
  std::vector<int64_t> versions_ ABSL_GUARDED_BY(mutex_), refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_CONTEXT_H_
