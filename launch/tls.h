// Encrypted connections of a job: what the launcher and its workers find in the environment.
#ifndef SYNCLINE_LAUNCH_TLS_H_
#define SYNCLINE_LAUNCH_TLS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/environment.h"
#include "launch/options/options.h"

namespace syncline::launch {

// Sets SYNCLINE_TLS and the variables that belong to it for this process and in `environment`,
// which is that of workers; unsets those that do not count. Makes the certificates of
// --tls=throw-away in `folder`. `has_secret`: whether the job has a secret that nobody can guess.
// ArgumentError if --tls=secret lacks it; errors of tls::Context::Create and NewCertificates.
//
// Changes the environment of the process, so no other thread may use it meanwhile.
absl::Status UseTls(const LaunchOptions& options, const std::string& folder, bool has_secret,
                    Environment* environment);

// --make-certificates. Returns what to tell the user.
absl::StatusOr<std::string> MakeCertificates(const std::string& folder);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_TLS_H_
