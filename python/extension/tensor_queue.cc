#include "python/extension/tensor_queue.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "python/extension/convert.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/method.h"
#include "python/extension/tensor_in.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/tensor_queue.h"

namespace syncline::python {
namespace {

using Class = py::class_<TensorQueue, std::shared_ptr<TensorQueue>>;
using Tensors = absl::InlinedVector<Tensor, 4>;

// From a list or a tuple.
Tensors TensorsIn(py::handle arrays) {
  const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(arrays.ptr(), "arrays"));
  if (!items) throw py::error_already_set();
  Tensors tensors;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    tensors.push_back(TensorFromPython(PySequence_Fast_GET_ITEM(items.ptr(), i), "array"));
  }
  return tensors;
}

absl::string_view NoteIn(py::handle note) {
  if (!PyBytes_Check(note.ptr())) RaiseTypeError("note must be bytes");
  return {PyBytes_AS_STRING(note.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(note.ptr()))};
}

absl::Duration SecondsIn(py::handle seconds) {
  return absl::Seconds(FromPython<double>(seconds, "seconds"));
}

// The result of `wait`, without the GIL; a timeout and the end of the queue are not raised.
template <typename Wait>
auto CallWaiting(Wait wait) {
  auto result = WithoutGil(wait);
  RaiseIfInterrupted();
  return result;
}

bool IsTimeout(const absl::Status& status) { return KindOf(status) == ErrorKind::kTimeout; }

// None or False; raises other errors.
py::object NoMessage(const absl::Status& status) {
  if (IsTimeout(status)) return py::none();
  if (IsEndOfQueue(status)) return py::bool_(false);
  RaiseIfError(status);
  return py::none();
}

py::object Put(TensorQueue& queue, const Values& values) {
  const Tensors tensors = TensorsIn(values[0]);
  const absl::string_view note = NoteIn(values[1]);
  const absl::Duration timeout = SecondsIn(values[2]);
  const absl::Status status = CallWaiting([&] { return queue.Put(tensors, note, timeout); });
  if (IsTimeout(status)) return py::bool_(false);
  RaiseIfError(status);
  return py::bool_(true);
}

py::object Get(TensorQueue& queue, const Values& values) {
  const absl::Duration timeout = SecondsIn(values[0]);
  auto message = CallWaiting([&] { return queue.Get(timeout); });
  if (!message.ok()) return NoMessage(message.status());
  py::list views(message->tensors.size());
  for (size_t i = 0; i < message->tensors.size(); ++i) {
    views[i] = ToPython<Tensor>(std::move(message->tensors[i]));
  }
  return py::make_tuple(std::move(views), ToPython<Bytes>(message->note));
}

py::object GetInto(TensorQueue& queue, const Values& values) {
  const Tensors tensors = TensorsIn(values[0]);
  const absl::Duration timeout = SecondsIn(values[1]);
  const auto note = CallWaiting([&] { return queue.GetInto(tensors, timeout); });
  if (!note.ok()) return NoMessage(note.status());
  return ToPython<Bytes>(*note);
}

py::object StatsOf(const TensorQueue& queue) {
  const TensorQueue::Stats stats = queue.stats();
  return py::make_tuple(stats.messages, stats.bytes, stats.lost_puts, stats.lost_gets);
}

py::object Create(int64_t capacity, int64_t max_messages) {
  if (capacity < 1) RaiseValueError("capacity must be at least 1 byte");
  return Call<std::shared_ptr<TensorQueue>>(
      [&] { return TensorQueue::Create({static_cast<size_t>(capacity), max_messages}); });
}

py::object Open(int descriptor) {
  return Call<std::shared_ptr<TensorQueue>>([&] { return TensorQueue::Open(descriptor); });
}

py::object OpenHandle(py::handle handle) {
  const auto text = FromPython<std::string>(handle, "handle");
  return Call<std::shared_ptr<TensorQueue>>([&] { return TensorQueue::Open(text); });
}

}  // namespace

void DefineTensorQueue(py::module_& module) {
  Class queue(module, "_TensorQueue", "The queue of syncline.TensorQueue.");
  queue.def_static("create", &Create, py::arg("capacity"), py::arg("max_messages"))
      .def_static("open", &Open, py::arg("descriptor"))
      .def_static("open_handle", &OpenHandle, py::arg("handle"));
  // Each body is a lambda, as methods are told apart by its type.
  DefineMethod(queue, "put", "Puts a message.", {{"arrays"}, {"note"}, {"seconds"}},
               [](TensorQueue& queue, const Values& values) { return Put(queue, values); });
  DefineMethod(queue, "get", "Takes a message.", {{"seconds"}},
               [](TensorQueue& queue, const Values& values) { return Get(queue, values); });
  DefineMethod(queue, "get_into", "Takes a message into arrays.", {{"arrays"}, {"seconds"}},
               [](TensorQueue& queue, const Values& values) { return GetInto(queue, values); });
  DefineMethod(queue, "stats", "What is in the queue.", {},
               [](TensorQueue& queue, const Values&) { return StatsOf(queue); });
  DefineMethod(queue, "close", "Ends the queue.", {}, [](TensorQueue& queue, const Values&) {
    return Call<void>([&] { return queue.Close(); });
  });
  DefineMethod(queue, "handle", "By which other processes open the queue.", {},
               [](TensorQueue& queue, const Values&) {
                 return Call<std::string>([&] { return queue.handle(); });
               });
  DefineProperty(queue, "descriptor", "Of the shared memory.",
                 [](TensorQueue& queue) { return ToPython<int64_t>(queue.descriptor()); });
  DefineProperty(queue, "capacity", "In bytes.", [](TensorQueue& queue) {
    return ToPython<int64_t>(static_cast<int64_t>(queue.capacity()));
  });
  DefineProperty(queue, "max_messages", "How many it holds at most.",
                 [](TensorQueue& queue) { return ToPython<int64_t>(queue.max_messages()); });
  DefineProperty(queue, "closed", "Whether it is closed.",
                 [](TensorQueue& queue) { return ToPython<bool>(queue.is_closed()); });
}

}  // namespace syncline::python
