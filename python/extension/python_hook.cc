#include "python/extension/python_hook.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "python/extension/convert.h"
#include "python/extension/gil.h"
#include "python/extension/in_python.h"
#include "python/extension/streams.h"
#include "syncline/comm_hook.h"
#include "syncline/device.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/work.h"

namespace syncline::python {
namespace {

class PythonAverager : public ddp::BucketAverager {
 public:
  // `function` is dropped under the GIL.
  PythonAverager(std::string name, std::shared_ptr<py::object> function)
      : name_(std::move(name)), function_(std::move(function)) {}

  std::string name() const override { return name_; }

  absl::Status SetDevice(const Device& device) override {
    device_ = device;
    return absl::OkStatus();
  }

  absl::Status Attach(const std::shared_ptr<ProcessGroup>& group) override {
    group_ = group;
    return absl::OkStatus();
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup&) override {
    return InPython("its function", [&] {
      (*function_)(ToPython<std::shared_ptr<GradBucket>>(std::make_shared<GradBucket>(bucket)),
                   ToPython<std::shared_ptr<ProcessGroup>>(group_));
      return device_.type == DeviceType::kCpu ? absl::OkStatus() : WaitForLibraries();
    });
  }

 private:
  // What the function has queued on the streams of its arrays' libraries belongs to the bucket.
  absl::Status WaitForLibraries() const {
    CallStreams streams;
    AddKnownStreams();
    const CallStreams::All known = streams.Take();
    const Stream current = CurrentStream(device_);
    for (const CallStreams::Streams& some : {known.own, known.others}) {
      for (const Stream& stream : some) {
        if (stream.device != device_ || stream == current) continue;
        SYNCLINE_RETURN_IF_ERROR(Join(stream, current));
      }
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const std::shared_ptr<py::object> function_;
  Device device_;
  std::shared_ptr<ProcessGroup> group_;  // What Average gets.
};

// How a bucket ends that was started: once.
class Completion {
 public:
  explicit Completion(const std::string& what) : work_(std::make_shared<Work>(what)) {
    work_->Start();
  }

  ~Completion() {
    Finish(BackendError("its future was dropped: nobody has said that the bucket is averaged"));
  }

  const std::shared_ptr<Work>& work() const { return work_; }

  // Streams that wait for the work wait for what the libraries' current streams have by now: in a
  // callback of a future of PyTorch's, for its value. For a bucket of a device, under the GIL.
  absl::Status FollowLibraries(const Device& device) {
    CallStreams streams;
    AddKnownStreams();
    const CallStreams::All known = streams.Take();
    std::optional<Stream> last;
    for (const CallStreams::Streams& some : {known.own, known.others}) {
      for (const Stream& stream : some) {
        if (stream.device != device) continue;
        if (last.has_value()) SYNCLINE_RETURN_IF_ERROR(Join(*last, stream));
        last = stream;
      }
    }
    if (!last.has_value()) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<device::Event> event, runtime->Record(*last));
    work_->Enqueued(device, std::make_shared<device::StreamHandle>(event));
    return absl::OkStatus();
  }

  void Finish(const absl::Status& status) {
    if (is_finished_.exchange(true)) return;
    std::optional<GilReleased> released;  // What waits for the Work may want the GIL.
    if (HoldsGil()) released.emplace();
    work_->Finish(status);
  }

 private:
  const std::shared_ptr<Work> work_;
  std::atomic<bool> is_finished_{false};
};

[[noreturn]] void Raise(const py::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

// done(error) for Python.
py::cpp_function DoneFunction(std::shared_ptr<Completion> completion, const Device& device) {
  return py::cpp_function(
      [completion = std::move(completion), device](const py::object& error) {
        absl::Status status;
        if (!error.is_none()) {
          status = InPython("its future", [&]() -> absl::Status { Raise(error); });
        } else if (device.type != DeviceType::kCpu) {
          status = InPython("its future", [&] { return completion->FollowLibraries(device); });
        }
        completion->Finish(status);
      },
      py::arg("error"));
}

class StarterHook : public CommHook {
 public:
  // `function` is dropped under the GIL.
  StarterHook(std::string name, std::shared_ptr<py::object> function)
      : name_(std::move(name)), function_(std::move(function)) {}

  std::string name() const override { return name_; }

  // The function knows where to communicate.
  absl::Status Attach(std::shared_ptr<ProcessGroup>) override { return absl::OkStatus(); }

  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    auto completion = std::make_shared<Completion>(absl::StrCat(
        "communication hook '", name_, "', bucket ", bucket->index, " of ", bucket->count));
    std::shared_ptr<Work> work = completion->work();
    SYNCLINE_RETURN_IF_ERROR(InPython("its function", [&] {
      const Device device = bucket->buffer.device();
      const py::object argument = ToPython<std::shared_ptr<GradBucket>>(std::move(bucket));
      const py::object begun = (*function_)(argument, DoneFunction(completion, device));
      // For a Work of the device's streams no host need wait.
      if (device.type != DeviceType::kCpu && py::isinstance<Work>(begun)) {
        work = FromPython<std::shared_ptr<Work>>(begun, "work");
        completion->Finish(absl::OkStatus());
      }
      return absl::OkStatus();
    }));
    return work;
  }

 private:
  const std::string name_;
  const std::shared_ptr<py::object> function_;
};

py::object FromFunction(py::handle name, py::object function) {
  const auto text = FromPython<std::string>(name, "name");
  return ToPython<std::shared_ptr<CommHook>>(ddp::MakeBlockingHook(
      std::make_unique<PythonAverager>(text, DroppedUnderGil(std::move(function)))));
}

py::object FromStarter(py::handle name, py::object function) {
  const auto text = FromPython<std::string>(name, "name");
  return ToPython<std::shared_ptr<CommHook>>(
      std::make_shared<StarterHook>(text, DroppedUnderGil(std::move(function))));
}

}  // namespace

void DefineCommHooks(py::module_& module) {
  module.def("_comm_hook_from_function", &FromFunction, py::arg("name"), py::arg("function"));
  module.def("_comm_hook_from_starter", &FromStarter, py::arg("name"), py::arg("function"));
}

}  // namespace syncline::python
