#include "python/extension/python_store.h"

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "python/extension/convert.h"
#include "python/extension/gil.h"
#include "python/extension/in_python.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::python {
namespace {

using Strings = std::vector<std::string>;
using Timeout = std::optional<absl::Duration>;

// Arguments of the bridge's methods: text, bytes, lists of both, and times.
struct Text {
  absl::string_view text;
};
struct Octets {
  absl::string_view octets;
};
struct Texts {
  absl::Span<const std::string> texts;
};
struct OctetsList {
  absl::Span<const std::string> list;
};

py::object Argument(Text text) { return ToPython<std::string>(std::string(text.text)); }
py::object Argument(Octets octets) { return ToPython<Bytes>(std::string(octets.octets)); }
py::object Argument(Texts texts) {
  return ToPython<Strings>(Strings(texts.texts.begin(), texts.texts.end()));
}
py::object Argument(OctetsList octets) {
  return ToPython<std::vector<Bytes>>(Strings(octets.list.begin(), octets.list.end()));
}
py::object Argument(int64_t number) { return ToPython<int64_t>(number); }
py::object Argument(absl::Duration duration) { return ToPython<absl::Duration>(duration); }

// A result that nobody looks at.
struct Nothing {
  using Cpp = bool;
  static bool From(py::handle, absl::string_view) { return true; }
};

absl::StatusOr<std::shared_ptr<Store>> CreateTcp(const std::string& host, int64_t port,
                                                 bool is_master, absl::Duration timeout,
                                                 std::optional<int64_t> listen_fd,
                                                 bool multi_tenant) {
  if (port < 0 || port > 65535) {
    return ArgumentError(absl::StrCat("port must be in 0 to 65535, not ", port));
  }
  TCPStore::Options options;
  options.host = host;
  options.port = static_cast<int>(port);
  options.role = is_master ? StoreConfig::Role::kServer : StoreConfig::Role::kClient;
  options.timeout = timeout;
  if (listen_fd.has_value()) options.listen_fd = static_cast<int>(*listen_fd);
  options.multi_tenant = multi_tenant;
  SYNCLINE_ASSIGN_OR_RETURN(options.secret, base::JobSecret());
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<TCPStore> store, TCPStore::Create(options));
  return std::shared_ptr<Store>(std::move(store));
}

// The object that makes the methods of `value` those of a StoreBridge; None if it is no store.
py::object BridgeTo(py::handle value) {
  return py::module_::import("syncline.store_bridge").attr("bridge_to")(value);
}

std::shared_ptr<Store> StoreOf(py::handle value) {
  return FromPython<std::shared_ptr<Store>>(value, "store");
}

template <typename T>
void ConstructFromMade(py::module_& module, const char* name) {
  using Holder = std::shared_ptr<T>;
  auto type = py::reinterpret_borrow<py::class_<T, Store, Holder>>(module.attr(name));
  type.def(py::init([](Holder made) { return made; }), py::arg("store"));
}

}  // namespace

std::shared_ptr<Store> Converter<std::shared_ptr<Store>>::From(py::handle value,
                                                               absl::string_view argument) {
  const bool is_ours = py::isinstance<Store>(value);
  if (is_ours) {
    auto store = value.cast<std::shared_ptr<Store>>();
    // The PythonStore of an object does not keep the object, so C++ gets one that does.
    if (dynamic_cast<const PythonStore*>(store.get()) == nullptr) return store;
  }
  py::object bridge = BridgeTo(value);
  if (bridge.is_none()) RaiseWrongType(argument, "a Store", value);
  return std::make_shared<PythonStore>(DroppedUnderGil(std::move(bridge)));
}

py::object Converter<std::shared_ptr<Store>>::To(std::shared_ptr<Store> value) {
  if (const auto* const in_python = dynamic_cast<const PythonStore*>(value.get())) {
    return in_python->target();
  }
  return py::cast(DroppedWithoutGil(std::move(value)));
}

template <typename T, typename... Arguments>
absl::StatusOr<typename T::Cpp> PythonStore::Call(const char* method,
                                                  const Arguments&... arguments) const {
  std::optional<typename T::Cpp> result;
  SYNCLINE_RETURN_IF_ERROR(InPython(absl::StrCat("a store of Python, ", method), [&] {
    const py::object value = bridge_->attr(method)(Argument(arguments)...);
    result = T::From(value, absl::StrCat("what ", method, " returns"));
    return absl::OkStatus();
  }));
  return *std::move(result);
}

absl::Status PythonStore::Set(absl::string_view key, absl::string_view value) {
  return Call<Nothing>("set", Text{key}, Octets{value}).status();
}

absl::StatusOr<std::string> PythonStore::Get(absl::string_view key, absl::Duration timeout) {
  return Call<Converter<Bytes>>("get", Text{key}, timeout);
}

absl::StatusOr<int64_t> PythonStore::Add(absl::string_view key, int64_t amount) {
  return Call<Converter<int64_t>>("add", Text{key}, amount);
}

// Python says what the value is, not whether this call has set it.
absl::StatusOr<Store::CompareSetResult> PythonStore::CompareSet(absl::string_view key,
                                                                absl::string_view expected,
                                                                absl::string_view desired) {
  CompareSetResult result;
  SYNCLINE_ASSIGN_OR_RETURN(
      result.value,
      Call<Converter<Bytes>>("compare_set", Text{key}, Octets{expected}, Octets{desired}));
  result.swapped = result.value == desired;
  return result;
}

absl::Status PythonStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return Call<Nothing>("wait", Texts{keys}, timeout).status();
}

absl::StatusOr<bool> PythonStore::Check(absl::Span<const std::string> keys) {
  return Call<Converter<bool>>("check", Texts{keys});
}

absl::StatusOr<bool> PythonStore::Delete(absl::string_view key) {
  return Call<Converter<bool>>("delete_key", Text{key});
}

absl::StatusOr<std::vector<std::string>> PythonStore::Keys(absl::string_view prefix) {
  return Call<Converter<Strings>>("list_keys", Text{prefix});
}

absl::Status PythonStore::Append(absl::string_view key, absl::string_view value) {
  return Call<Nothing>("append", Text{key}, Octets{value}).status();
}

absl::StatusOr<std::vector<std::string>> PythonStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  return Call<Converter<std::vector<Bytes>>>("multi_get", Texts{keys}, timeout);
}

absl::Status PythonStore::MultiSet(absl::Span<const std::string> keys,
                                   absl::Span<const std::string> values) {
  return Call<Nothing>("multi_set", Texts{keys}, OctetsList{values}).status();
}

absl::Duration PythonStore::timeout() const {
  const auto timeout = Call<Converter<absl::Duration>>("timeout");
  return timeout.ok() ? *timeout : kDefaultStoreTimeout;
}

std::string PythonStore::ToString() const {
  const auto text = Call<Converter<std::string>>("describe");
  return text.ok() ? *text : "of Python";
}

void PythonStore::set_timeout(absl::Duration timeout) {
  Call<Nothing>("set_timeout", timeout).status().IgnoreError();
}

absl::StatusOr<std::shared_ptr<Store>> PythonStore::Clone() {
  return Call<Converter<std::shared_ptr<Store>>>("clone");
}

absl::Status PythonStore::QueuePush(absl::string_view key, absl::string_view value) {
  return Call<Nothing>("queue_push", Text{key}, Octets{value}).status();
}

absl::StatusOr<std::string> PythonStore::QueuePop(absl::string_view key, absl::Duration timeout) {
  return Call<Converter<Bytes>>("queue_pop", Text{key}, timeout);
}

absl::StatusOr<std::optional<std::string>> PythonStore::QueueTryPop(absl::string_view key) {
  return Call<Converter<std::optional<Bytes>>>("queue_try_pop", Text{key});
}

absl::StatusOr<int64_t> PythonStore::QueueLength(absl::string_view key) {
  return Call<Converter<int64_t>>("queue_len", Text{key});
}

void DefineStores(py::module_& module) {
  auto store =
      py::reinterpret_borrow<py::class_<Store, std::shared_ptr<Store>>>(module.attr("Store"));
  store.def(py::init([](py::object bridge) {
              return std::shared_ptr<Store>(
                  std::make_shared<PythonStore>(DroppedUnderGil(std::move(bridge))));
            }),
            py::arg("bridge"));
  ConstructFromMade<HashStore>(module, "HashStore");
  ConstructFromMade<FileStore>(module, "FileStore");
  ConstructFromMade<TCPStore>(module, "TCPStore");
  ConstructFromMade<PrefixStore>(module, "PrefixStore");

  module.def("_create_tcp_store",
             [](py::handle host, py::handle port, py::handle is_master, py::handle timeout,
                py::handle listen_fd, py::handle multi_tenant) {
               const auto name = FromPython<std::string>(host, "host_name");
               const auto number = FromPython<int64_t>(port, "port");
               const auto serves = FromPython<bool>(is_master, "is_master");
               const auto limit = FromPython<absl::Duration>(timeout, "timeout");
               const auto fd = FromPython<std::optional<int64_t>>(listen_fd, "master_listen_fd");
               const auto shares = FromPython<bool>(multi_tenant, "multi_tenant");
               return Call<std::shared_ptr<Store>>(
                   [&] { return CreateTcp(name, number, serves, limit, fd, shares); });
             });
  module.def("_store_set_timeout", [](py::handle py_store, py::handle timeout) {
    const auto store = StoreOf(py_store);
    const auto limit = FromPython<absl::Duration>(timeout, "timeout");
    return Call<void>([&]() -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      extended->set_timeout(limit);
      return absl::OkStatus();
    });
  });
  module.def("_store_clone", [](py::handle py_store) {
    const auto store = StoreOf(py_store);
    return Call<std::shared_ptr<Store>>([&]() -> absl::StatusOr<std::shared_ptr<Store>> {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      return extended->Clone();
    });
  });
  module.def("_queue_push", [](py::handle py_store, py::handle py_key, py::handle py_value) {
    const auto store = StoreOf(py_store);
    const auto key = FromPython<std::string>(py_key, "key");
    const auto value = FromPython<Bytes>(py_value, "value");
    return Call<void>([&]() -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      return extended->QueuePush(key, value);
    });
  });
  module.def("_queue_pop", [](py::handle py_store, py::handle py_key, py::handle py_timeout) {
    const auto store = StoreOf(py_store);
    const auto key = FromPython<std::string>(py_key, "key");
    const auto timeout = FromPython<Timeout>(py_timeout, "timeout");
    return Call<Bytes>([&]() -> absl::StatusOr<std::string> {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      return extended->QueuePop(key, timeout.value_or(store->timeout()));
    });
  });
  module.def("_queue_try_pop", [](py::handle py_store, py::handle py_key) {
    const auto store = StoreOf(py_store);
    const auto key = FromPython<std::string>(py_key, "key");
    return Call<std::optional<Bytes>>([&]() -> absl::StatusOr<std::optional<std::string>> {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      return extended->QueueTryPop(key);
    });
  });
  module.def("_queue_len", [](py::handle py_store, py::handle py_key) {
    const auto store = StoreOf(py_store);
    const auto key = FromPython<std::string>(py_key, "key");
    return Call<int64_t>([&]() -> absl::StatusOr<int64_t> {
      SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const extended, ExtendedStore::Of(*store));
      return extended->QueueLength(key);
    });
  });
}

}  // namespace syncline::python
