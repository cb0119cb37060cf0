// The JVM, seen from native calls and from threads of C++.
#ifndef SYNCLINE_JAVA_JVM_H_
#define SYNCLINE_JAVA_JVM_H_

#include <jni.h>

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline::java {

// Classes and methods of io.syncline and of the JDK that native code uses; valid from JNI_OnLoad
// on.
struct Jvm {
  JavaVM* vm = nullptr;
  jclass byte_array = nullptr;      // byte[]
  jclass long_array = nullptr;      // long[]
  jclass tensor = nullptr;          // Tensor
  jclass dist_exception = nullptr;  // DistException
  jclass out_of_memory = nullptr;   // OutOfMemoryError
  jclass thread = nullptr;          // Thread
  jclass logging = nullptr;         // Logging
  jclass work_future = nullptr;     // WorkFuture
  jclass comm_hook = nullptr;       // CommHookBase
  jmethodID tensor_from_native = nullptr;
  jmethodID exception_of = nullptr;
  jmethodID kind_of = nullptr;
  jmethodID message_of = nullptr;
  jmethodID ranks_of = nullptr;
  jmethodID future_settle = nullptr;
  jmethodID current_thread = nullptr;
  jmethodID is_interrupted = nullptr;
  jmethodID logging_from_native = nullptr;
  jmethodID comm_hook_run = nullptr;
};
const Jvm& GetJvm();

// The environment of this thread. A thread of C++ becomes a daemon of the JVM, until it ends. Null
// if the JVM does not take it, which it does not do any more once it ends.
JNIEnv* AttachedEnv();

// An object of Java that C++ keeps. Thread-safe.
class GlobalRef {
 public:
  GlobalRef(JNIEnv* env, jobject object) : object_(env->NewGlobalRef(object)) {}
  ~GlobalRef();
  GlobalRef(const GlobalRef&) = delete;
  GlobalRef& operator=(const GlobalRef&) = delete;

  jobject get() const { return object_; }  // Null if there was no memory.

 private:
  const jobject object_;
};

// The length of a Java array of so many elements. Nothing, with an UnsupportedOperationException
// pending, if they are more than such an array can have.
std::optional<jsize> ArrayLength(JNIEnv* env, size_t elements);

// A byte[]; null, with an exception pending, if it is too long or there is no room for it.
jbyteArray NewByteArray(JNIEnv* env, absl::string_view bytes);

// The number of the Java exception for an error: see DistException.of. Requires !status.ok().
jint ExceptionKind(const absl::Status& status);

// The ErrorOrigin of a status as DistException takes it: without one all is null. If there is no
// memory for it, an exception is pending. Lives on the stack of a call.
class ExceptionOrigin {
 public:
  ExceptionOrigin(JNIEnv* env, const absl::Status& status);
  ~ExceptionOrigin();
  ExceptionOrigin(const ExceptionOrigin&) = delete;
  ExceptionOrigin& operator=(const ExceptionOrigin&) = delete;

  jintArray ranks() const { return ranks_; }
  jbyteArray operation() const { return operation_; }  // Its name.
  jlong sequence() const { return sequence_; }

 private:
  JNIEnv* const env_;
  jintArray ranks_ = nullptr;
  jbyteArray operation_ = nullptr;
  jlong sequence_ = 0;
};

// Makes the error the pending exception, unless there is one.
void Throw(JNIEnv* env, const absl::Status& status);
void ThrowOutOfMemory(JNIEnv* env, const char* message);
void ThrowForeign(JNIEnv* env, const char* message);  // A DistException. Needs no memory of C++.

// The other way round, for code of Java that native code has called: the kind that fits the pending
// exception, a BackendError if none does, what it says, and its ranks. Clears it.
absl::Status TakeException(JNIEnv* env);

// An InterruptScope::Check: an InterruptedError if Thread.interrupt was called on this thread,
// whose interrupted status stays set.
class ThreadInterrupt {
 public:
  explicit ThreadInterrupt(JNIEnv* env) : env_(env) {}
  absl::Status operator()() const;

 private:
  JNIEnv* const env_;
};

}  // namespace syncline::java

#endif  // SYNCLINE_JAVA_JVM_H_
