#include "syncline/backend.h"

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline {

Capabilities Capabilities::All() {
  Capabilities all;
  for (OpKind kind : AllOpKinds()) all.ops.insert(kind);
  for (DType dtype : AllDTypes()) all.move_dtypes.insert(dtype);
  for (DType dtype : AllDTypes()) {
    if (!IsFloat8(dtype)) all.reduce_dtypes.insert(dtype);
  }
  return all;
}

Capabilities Capabilities::AllThroughHost() {
  Capabilities all = All();
  all.staged_devices.insert(DeviceType::kCuda);
  return all;
}

absl::StatusOr<int> Backend::RunAndWait(const Collective& collective, const CallContext& context) {
  const absl::StatusOr<Completion> completion = Run(absl::MakeConstSpan(&collective, 1), context);
  if (!completion.ok()) return completion.status();
  return WaitFor(*completion, collective, context.deadline);
}

absl::StatusOr<std::shared_ptr<ChildCommunicator>> Backend::Split(const SplitPlace&,
                                                                  const CallContext&) {
  return UnsupportedError(absl::StrCat("backend ", name(), " splits no communicators"));
}

absl::StatusOr<int> WaitFor(const Completion& completion, const Collective& collective,
                            const Deadline& deadline) {
  if (completion.handle() == nullptr) return completion.source();
  absl::StatusOr<int> outcome = completion.handle()->Wait(deadline);
  if (outcome.ok()) return outcome;
  Collective held = collective;
  held.Own();
  completion.handle()->OnDone([held](const absl::StatusOr<int>&) {});
  return outcome;
}

}  // namespace syncline
