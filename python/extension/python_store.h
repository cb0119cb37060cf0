// Stores that are written in Python, and what stores of C++ have in Python alone.
#ifndef SYNCLINE_PYTHON_EXTENSION_PYTHON_STORE_H_
#define SYNCLINE_PYTHON_EXTENSION_PYTHON_STORE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "syncline/extended_store.h"

namespace syncline::python {

// Calls the methods of a StoreBridge (syncline/store_bridge.py), which has one for each of Store,
// with keys as str and values as bytes. What they raise is an error of the kind that fits the
// exception's type. Any thread.
class PythonStore final : public ExtendedStore {
 public:
  // `bridge` is dropped under the GIL.
  explicit PythonStore(std::shared_ptr<pybind11::object> bridge) : bridge_(std::move(bridge)) {}

  // The object behind the bridge. Requires the GIL.
  pybind11::object target() const { return bridge_->attr("target")(); }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override;
  absl::Status Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override;
  absl::Duration timeout() const override;
  std::string ToString() const override;
  void set_timeout(absl::Duration timeout) override;
  absl::StatusOr<std::shared_ptr<Store>> Clone() override;
  absl::Status QueuePush(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> QueuePop(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::optional<std::string>> QueueTryPop(absl::string_view key) override;
  absl::StatusOr<int64_t> QueueLength(absl::string_view key) override;

 private:
  template <typename T, typename... Arguments>
  absl::StatusOr<typename T::Cpp> Call(const char* method, const Arguments&... arguments) const;

  const std::shared_ptr<pybind11::object> bridge_;
};

// Adds to `module`, where DefineApi has been, constructors by which classes of Python can be
// derived from stores:
//
//   Store.__init__(bridge)            a PythonStore
//   HashStore.__init__(store), ...    the store of C++ that `store` is
//
// and what the description of the API does not have:
//
//   _create_tcp_store(host, port, is_master, timeout, listen_fd, multi_tenant)
//                                     TCPStore::Create
//   _store_set_timeout(store, timeout), _store_clone(store), _queue_push(store, key, value),
//   _queue_pop(store, key, timeout), _queue_try_pop(store, key), _queue_len(store, key)
//                                     see ExtendedStore; a timeout of None is the store's own
void DefineStores(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PYTHON_STORE_H_
