// Makes certificates for one job, to be thrown away with it.
#ifndef SYNCLINE_CORE_TLS_CERTIFICATES_H_
#define SYNCLINE_CORE_TLS_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncline::tls {

struct CertificateRequest {
  // What its owners are called: host names and addresses.
  std::vector<std::string> names;
  absl::Duration begins = -absl::Hours(1);  // From now; clocks of hosts differ.
  absl::Duration ends = absl::Hours(24 * 30);
  absl::Duration authority_outlives = absl::ZeroDuration();  // For so long after that.
};

// The files that NewCertificates writes into a folder.
inline constexpr char kCertificateFile[] = "cert.pem", kKeyFile[] = "key.pem",
                      kAuthoritiesFile[] = "ca.pem";

// Makes an authority, and a certificate that it signs for both ends of connections, with elliptic
// curves (P-256). The authority's key is forgotten, so that it signs nothing else. The files are
// for their owner alone (mode 0600). ArgumentError if there is no name, if one of the files exists,
// before any is written, or if the folder cannot be written to; BackendError if OpenSSL fails.
absl::Status NewCertificates(const std::string& folder, const CertificateRequest& request);

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_CERTIFICATES_H_
