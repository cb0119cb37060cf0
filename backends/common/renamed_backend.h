// A backend under another name than its own.
#ifndef SYNCLINE_BACKENDS_COMMON_RENAMED_BACKEND_H_
#define SYNCLINE_BACKENDS_COMMON_RENAMED_BACKEND_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/backend.h"

namespace syncline::backends {

// For a backend that is made of others: users see the name that they gave.
class RenamedBackend final : public Backend {
 public:
  RenamedBackend(std::string name, std::shared_ptr<Backend> backend)
      : name_(std::move(name)), backend_(std::move(backend)) {}

  absl::string_view name() const override { return name_; }

  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override {
    return backend_->Run(collectives, context);
  }
  absl::StatusOr<int> RunAndWait(const Collective& collective,
                                 const CallContext& context) override {
    return backend_->RunAndWait(collective, context);
  }
  bool MayKeepTensors() const override { return backend_->MayKeepTensors(); }
  void Leave(const absl::Status& cause, const Deadline& deadline) override {
    backend_->Leave(cause, deadline);
  }
  void Abort(const absl::Status& cause) override { backend_->Abort(cause); }

 private:
  const std::string name_;
  const std::shared_ptr<Backend> backend_;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_RENAMED_BACKEND_H_
