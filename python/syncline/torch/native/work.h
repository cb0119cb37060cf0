// What operations return: torch's Work over Syncline's.
#ifndef SYNCLINE_TORCH_NATIVE_WORK_H_
#define SYNCLINE_TORCH_NATIVE_WORK_H_

#include <ATen/core/ivalue.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "c_api.h"

namespace syncline_torch {

using Future = c10::ivalue::Future;

// The extension's table; set once, while the module is imported.
inline const SynclineCApi* api = nullptr;
// Python's function that turns an error of Syncline's into one that torch's types match, too. Lives
// as long as the process.
inline PyObject* translate = nullptr;

// Whether a communication hook in Python runs on this thread.
inline thread_local bool is_in_hook = false;
// The group of which a callback runs on this thread, which runs the group's operations.
inline thread_local const SynclineGroup* callbacks_of = nullptr;

// Releases the GIL, where this thread has it: not all of torch's callers do.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Sets the exception of Python that stands for `error`, and drops that. With the GIL.
inline void SetException(SynclineError* error) {
  api->raise(error);
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  PyObject* const translated = PyObject_CallOneArg(translate, value);
  if (translated != nullptr) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(translated)), translated);
    Py_DECREF(translated);
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

[[noreturn]] inline void Throw(SynclineError* error) {
  py::gil_scoped_acquire gil;
  SetException(error);
  throw py::error_already_set();
}

// A wait of torch's in nanoseconds, where zero stands for none; the table's word for none is -1.
inline int64_t NanosecondsOf(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) return -1;
  return std::max<int64_t>(std::chrono::nanoseconds(timeout).count(), 0);
}

inline c10::intrusive_ptr<Future> NewFuture() {
  return c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
}

// Drops an object of Python on whichever thread; leaks it where Python is exiting.
inline void DropObject(py::object object) {
  if (Py_IsInitialized() == 0) {
    object.release();
    return;
  }
  api->with_gil([](void* raw) { Py_DECREF(static_cast<PyObject*>(raw)); }, object.release().ptr());
}

// The Work classes below have in Python what those of syncline/torch/backend have.
class Work : public c10d::Work {
 public:
  // The exception of Python, or None. With the GIL.
  virtual py::object PythonException() = 0;
  virtual py::object PythonFuture() {
    return py::cast(std::make_shared<torch::jit::PythonFutureWrapper>(getFuture()));
  }
};

// An operation that was over, and well, when its call returned.
class FinishedWork : public Work {
 public:
  explicit FinishedWork(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  int sourceRank() const override { return -1; }
  std::vector<at::Tensor> result() override { return tensors_; }
  void synchronize() override {}
  void blockCurrentStream() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<Future> getFuture() override {
    auto future = NewFuture();
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }
  py::object PythonException() override { return py::none(); }

 private:
  const std::vector<at::Tensor> tensors_;
};

// Tensors that an operation writes to, each with the stand-in whose values it is to have.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

inline void CopyBack(const Copies& copies) {
  at::AutoDispatchBelowADInplaceOrView guard;
  // As Syncline writes to memory: autograd does not see it.
  for (const auto& [tensor, copy] : copies) tensor.tensor_data().copy_(copy);
}

// An operation in the background. Callbacks of its future run on the thread that runs the group's
// operations, or at once if it is over; they cannot call operations of the group. Copies are made
// once it is over, before anybody is notified.
class RunningWork : public Work {
 public:
  RunningWork(const SynclineGroup* group, SynclineWork* work, std::vector<at::Tensor> tensors,
              Copies copies)
      : state_(std::make_shared<State>(group, work, std::move(tensors), std::move(copies))) {
    if (state_->copies.empty()) return;
    const auto copy = [](void* argument) {
      (*std::unique_ptr<std::shared_ptr<State>>(static_cast<std::shared_ptr<State>*>(argument)))
          ->FinishCopies();
    };
    api->on_complete(work, copy, new std::shared_ptr<State>(state_));  // Even if nobody asks.
  }

  bool isCompleted() override {
    if (api->is_completed(state_->work) == 0) return false;
    state_->FinishCopies();
    return true;
  }
  bool isSuccess() const override {
    if (api->is_completed(state_->work) == 0) return false;
    SynclineError* const error = api->wait(state_->work, -1);
    if (error != nullptr) api->drop_error(error);
    return error == nullptr;
  }
  std::exception_ptr exception() const override {
    if (api->is_completed(state_->work) == 0) return nullptr;
    SynclineError* const error = api->wait(state_->work, -1);
    if (error == nullptr) return nullptr;
    try {
      Throw(error);
    } catch (...) {
      return std::current_exception();
    }
  }
  py::object PythonException() override {
    if (api->is_completed(state_->work) == 0) return py::none();
    SynclineError* const error = api->wait(state_->work, -1);
    if (error == nullptr) return py::none();
    SetException(error);
    return py::error_already_set().value();
  }
  int sourceRank() const override { return api->source_rank(state_->work); }
  std::vector<at::Tensor> result() override { return state_->tensors; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    SynclineError* error = nullptr;
    {
      const WithoutGil released;
      error = api->wait(state_->work, NanosecondsOf(timeout));
      if (error == nullptr) state_->FinishCopies();
    }
    if (error != nullptr) Throw(error);
    return true;
  }

  c10::intrusive_ptr<Future> getFuture() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future_ = NewFuture();
    api->on_complete(state_->work, &Completion::Run, new Completion{state_, future_});
    return future_;
  }

 private:
  // What callbacks need, which may come when the Work has been forgotten.
  struct State {
    State(const SynclineGroup* group, SynclineWork* work, std::vector<at::Tensor> tensors,
          Copies copies)
        : group(group), work(work), tensors(std::move(tensors)), copies(std::move(copies)) {}
    ~State() { api->drop_work(work); }

    // Of an operation that is over; once, where it has not failed.
    void FinishCopies() {
      const std::lock_guard<std::mutex> lock(mutex);
      if (copies.empty()) return;
      if (SynclineError* const error = api->wait(work, -1)) {
        api->drop_error(error);
        return;
      }
      CopyBack(copies);
      copies.clear();
    }

    const SynclineGroup* const group;
    SynclineWork* const work;
    const std::vector<at::Tensor> tensors;
    std::mutex mutex;
    Copies copies;  // Under the mutex.
  };

  struct Completion {
    std::shared_ptr<State> state;
    c10::intrusive_ptr<Future> future;

    static void Run(void* argument) {
      const std::unique_ptr<Completion> own(static_cast<Completion*>(argument));
      const SynclineGroup* const before = std::exchange(callbacks_of, own->state->group);
      own->state->FinishCopies();
      if (SynclineError* const error = api->wait(own->state->work, -1)) {
        // No exception of Python: it could be raised once only, and this thread may get no GIL.
        const c10::DistBackendError failed({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                           api->message(error));
        api->drop_error(error);
        own->future->setError(std::make_exception_ptr(failed));
      } else {
        own->future->markCompleted(c10::IValue(own->state->tensors));
      }
      callbacks_of = before;
    }
  };

  const std::shared_ptr<State> state_;
  std::mutex mutex_;
  c10::intrusive_ptr<Future> future_;  // Under mutex_.
};

// A Work of Python's, which it keeps alive.
class PythonWork : public Work {
 public:
  // With the GIL.
  explicit PythonWork(py::object work) : work_(std::move(work)) {}
  ~PythonWork() override { DropObject(std::move(work_)); }

  bool isCompleted() override { return Ask("is_completed"); }
  bool isSuccess() const override { return Ask("is_success"); }
  std::exception_ptr exception() const override {
    py::gil_scoped_acquire gil;
    const py::object error = work_.attr("exception")();
    if (error.is_none()) return nullptr;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    return std::make_exception_ptr(py::error_already_set());
  }
  py::object PythonException() override { return work_.attr("exception")(); }
  py::object PythonFuture() override { return work_.attr("get_future")(); }
  int sourceRank() const override {
    py::gil_scoped_acquire gil;
    return work_.attr("source_rank")().cast<int>();
  }
  std::vector<at::Tensor> result() override {
    py::gil_scoped_acquire gil;
    return work_.attr("result")().cast<std::vector<at::Tensor>>();
  }
  void synchronize() override {
    py::gil_scoped_acquire gil;
    work_.attr("synchronize")();
  }
  void blockCurrentStream() override {
    py::gil_scoped_acquire gil;
    work_.attr("block_current_stream")();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    py::gil_scoped_acquire gil;
    return work_.attr("wait")(timeout).cast<bool>();
  }
  c10::intrusive_ptr<Future> getFuture() override {
    py::gil_scoped_acquire gil;
    return work_.attr("get_future")().cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
  }

 private:
  bool Ask(const char* question) const {
    py::gil_scoped_acquire gil;
    return work_.attr(question)().cast<bool>();
  }

  py::object work_;
};

// Several operations as one.
class AllWork : public Work {
 public:
  explicit AllWork(std::vector<c10::intrusive_ptr<c10d::Work>> works) : works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }
  py::object PythonException() override {
    for (const auto& work : works_) {
      auto* const own = dynamic_cast<Work*>(work.get());
      if (own == nullptr) continue;
      py::object error = own->PythonException();
      if (!error.is_none()) return error;
    }
    return py::none();
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) {
      for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + timeout;
    for (const auto& work : works_) {
      auto left = timeout;
      if (timeout != kNoTimeout) {
        left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        left = std::max(left, std::chrono::milliseconds(1));  // Zero would be none.
      }
      work->wait(left);
    }
    return true;
  }
  c10::intrusive_ptr<Future> getFuture() override {
    c10::List<c10::intrusive_ptr<Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [](Future& all) {
          std::vector<at::Tensor> tensors;
          for (const c10::IValue& each : all.value().toListRef()) {
            const auto future = each.toFuture();
            if (future->hasError()) std::rethrow_exception(future->exception_ptr());
            for (const at::Tensor& tensor : future->value().toTensorVector()) {
              tensors.push_back(tensor);
            }
          }
          return c10::IValue(std::move(tensors));
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace syncline_torch

#endif  // SYNCLINE_TORCH_NATIVE_WORK_H_
