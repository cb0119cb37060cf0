#include "java/jvm.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::java {
namespace {

constexpr jint kVersion = JNI_VERSION_10;
constexpr jint kInterrupted = 9;  // After the values of ErrorKind.

static_assert(static_cast<int>(ErrorKind::kArgument) == 0);
static_assert(static_cast<int>(ErrorKind::kType) == 1);
static_assert(static_cast<int>(ErrorKind::kTimeout) == 2);
static_assert(static_cast<int>(ErrorKind::kNetwork) == 3);
static_assert(static_cast<int>(ErrorKind::kStore) == 4);
static_assert(static_cast<int>(ErrorKind::kBackend) == 5);
static_assert(static_cast<int>(ErrorKind::kMismatch) == 6);
static_assert(static_cast<int>(ErrorKind::kUnsupported) == 7);
static_assert(static_cast<int>(ErrorKind::kInternal) == 8);

Jvm jvm;  // Written by JNI_OnLoad only, before any other call.

// Looks up classes and methods until one is missing, which leaves its exception pending.
class Finder {
 public:
  explicit Finder(JNIEnv* env) : env_(env) {}

  bool found_all() const { return found_all_; }

  // Valid for ever.
  jclass Class(const char* name) {
    jclass local = found_all_ ? env_->FindClass(name) : nullptr;
    jobject global = local == nullptr ? nullptr : env_->NewGlobalRef(local);
    env_->DeleteLocalRef(local);
    return static_cast<jclass>(Found(global));
  }

  jmethodID Method(jclass in, const char* name, const char* signature) {
    return Found(found_all_ ? env_->GetMethodID(in, name, signature) : nullptr);
  }

  jmethodID StaticMethod(jclass in, const char* name, const char* signature) {
    return Found(found_all_ ? env_->GetStaticMethodID(in, name, signature) : nullptr);
  }

 private:
  template <typename T>
  T Found(T result) {
    found_all_ = found_all_ && result != nullptr;
    return result;
  }

  JNIEnv* const env_;
  bool found_all_ = true;
};

bool FindAll(JNIEnv* env) {
  Finder find(env);
  jvm.byte_array = find.Class("[B");
  jvm.long_array = find.Class("[J");
  jvm.tensor = find.Class("io/syncline/Tensor");
  jvm.dist_exception = find.Class("io/syncline/DistException");
  jvm.out_of_memory = find.Class("java/lang/OutOfMemoryError");
  jvm.thread = find.Class("java/lang/Thread");
  jvm.logging = find.Class("io/syncline/Logging");
  jvm.work_future = find.Class("io/syncline/WorkFuture");
  jvm.comm_hook = find.Class("io/syncline/CommHookBase");
  jvm.tensor_from_native =
      find.StaticMethod(jvm.tensor, "fromNative", "(JJI[J)Lio/syncline/Tensor;");
  jvm.exception_of =
      find.StaticMethod(jvm.dist_exception, "of", "(I[B[I[BJ)Ljava/lang/RuntimeException;");
  jvm.kind_of = find.StaticMethod(jvm.dist_exception, "kindOf", "(Ljava/lang/Throwable;)I");
  jvm.message_of = find.StaticMethod(jvm.dist_exception, "messageOf", "(Ljava/lang/Throwable;)[B");
  jvm.ranks_of = find.StaticMethod(jvm.dist_exception, "ranksOf", "(Ljava/lang/Throwable;)[I");
  jvm.future_settle = find.Method(jvm.work_future, "settle", "(I[B[I[BJ)V");
  jvm.current_thread = find.StaticMethod(jvm.thread, "currentThread", "()Ljava/lang/Thread;");
  jvm.is_interrupted = find.Method(jvm.thread, "isInterrupted", "()Z");
  jvm.logging_from_native = find.StaticMethod(jvm.logging, "fromNative", "(I[B)V");
  jvm.comm_hook_run = find.StaticMethod(jvm.comm_hook, "run", "(Lio/syncline/BucketAverager;JJ)V");
  return find.found_all();
}

// Takes the thread off the JVM when it ends.
struct Detacher {
  ~Detacher() { jvm.vm->DetachCurrentThread(); }
};

}  // namespace

const Jvm& GetJvm() { return jvm; }

JNIEnv* AttachedEnv() {
  void* env = nullptr;
  if (jvm.vm->GetEnv(&env, kVersion) == JNI_OK) return static_cast<JNIEnv*>(env);
  char name[] = "syncline-native";
  JavaVMAttachArgs arguments = {kVersion, name, nullptr};
  if (jvm.vm->AttachCurrentThreadAsDaemon(&env, &arguments) != JNI_OK) return nullptr;
  static thread_local Detacher detacher;
  static_cast<void>(detacher);
  return static_cast<JNIEnv*>(env);
}

GlobalRef::~GlobalRef() {
  JNIEnv* const env = object_ == nullptr ? nullptr : AttachedEnv();
  if (env != nullptr) env->DeleteGlobalRef(object_);
}

std::optional<jsize> ArrayLength(JNIEnv* env, size_t elements) {
  if (elements <= size_t{std::numeric_limits<jsize>::max()}) return static_cast<jsize>(elements);
  Throw(env, UnsupportedError(absl::StrCat(
                 "a result of ", elements, " elements or bytes does not fit into a Java array, ",
                 "which has 2^31 - 1 at most: send it in parts, or as tensors")));
  return std::nullopt;
}

jbyteArray NewByteArray(JNIEnv* env, absl::string_view bytes) {
  const std::optional<jsize> size = ArrayLength(env, bytes.size());
  jbyteArray array = size.has_value() ? env->NewByteArray(*size) : nullptr;
  if (array == nullptr) return nullptr;
  env->SetByteArrayRegion(array, 0, *size, reinterpret_cast<const jbyte*>(bytes.data()));
  return array;
}

jint ExceptionKind(const absl::Status& status) {
  SYNCLINE_DCHECK(!status.ok());
  if (IsInterrupted(status)) return kInterrupted;
  return static_cast<jint>(KindOf(status));
}

ExceptionOrigin::ExceptionOrigin(JNIEnv* env, const absl::Status& status) : env_(env) {
  const absl::optional<ErrorOrigin> origin = OriginOf(status);
  if (!origin.has_value()) return;
  const auto count = static_cast<jsize>(origin->ranks.size());
  ranks_ = env->NewIntArray(count);
  if (ranks_ == nullptr) return;
  env->SetIntArrayRegion(ranks_, 0, count, origin->ranks.data());
  if (origin->operations.empty()) return;
  operation_ = NewByteArray(env, origin->operations[0].name);
  sequence_ = static_cast<jlong>(origin->operations[0].sequence);
}

ExceptionOrigin::~ExceptionOrigin() {
  if (ranks_ != nullptr) env_->DeleteLocalRef(ranks_);
  if (operation_ != nullptr) env_->DeleteLocalRef(operation_);
}

void Throw(JNIEnv* env, const absl::Status& status) {
  if (env->ExceptionCheck()) return;
  jbyteArray message = NewByteArray(env, status.message());
  if (message == nullptr) return;
  const ExceptionOrigin origin(env, status);
  if (env->ExceptionCheck()) return;  // One of memory.
  jobject exception =
      env->CallStaticObjectMethod(jvm.dist_exception, jvm.exception_of, ExceptionKind(status),
                                  message, origin.ranks(), origin.operation(), origin.sequence());
  if (env->ExceptionCheck()) return;  // One of making it.
  env->DeleteLocalRef(message);
  env->Throw(static_cast<jthrowable>(exception));
  env->DeleteLocalRef(exception);
}

void ThrowOutOfMemory(JNIEnv* env, const char* message) {
  if (!env->ExceptionCheck()) env->ThrowNew(jvm.out_of_memory, message);
}

void ThrowForeign(JNIEnv* env, const char* message) {
  if (!env->ExceptionCheck()) env->ThrowNew(jvm.dist_exception, message);
}

absl::Status TakeException(JNIEnv* env) {
  jthrowable exception = env->ExceptionOccurred();
  env->ExceptionClear();
  const jint kind = env->CallStaticIntMethod(jvm.dist_exception, jvm.kind_of, exception);
  auto* const message = static_cast<jbyteArray>(
      env->CallStaticObjectMethod(jvm.dist_exception, jvm.message_of, exception));
  std::string text = "an exception that cannot say what it is";
  if (env->ExceptionCheck() || message == nullptr) {
    env->ExceptionClear();
  } else {
    text.resize(static_cast<size_t>(env->GetArrayLength(message)));
    env->GetByteArrayRegion(message, 0, static_cast<jsize>(text.size()),
                            reinterpret_cast<jbyte*>(text.data()));
  }
  env->DeleteLocalRef(message);
  auto* const array = static_cast<jintArray>(
      env->CallStaticObjectMethod(jvm.dist_exception, jvm.ranks_of, exception));
  std::vector<int> ranks;
  if (env->ExceptionCheck() || array == nullptr) {
    env->ExceptionClear();
  } else {
    ranks.resize(static_cast<size_t>(env->GetArrayLength(array)));
    env->GetIntArrayRegion(array, 0, static_cast<jsize>(ranks.size()), ranks.data());
  }
  env->DeleteLocalRef(array);
  env->DeleteLocalRef(exception);
  absl::Status status = ErrorOfKind(static_cast<ErrorKind>(kind), text);
  return ranks.empty() ? status : WithRanks(std::move(status), std::move(ranks));
}

absl::Status ThreadInterrupt::operator()() const {
  jobject thread = env_->CallStaticObjectMethod(jvm.thread, jvm.current_thread);
  const bool failed = env_->ExceptionCheck();
  const bool interrupted =
      failed || env_->CallBooleanMethod(thread, jvm.is_interrupted) == JNI_TRUE;
  if (!interrupted && !env_->ExceptionCheck()) {
    env_->DeleteLocalRef(thread);
    return absl::OkStatus();
  }
  return InterruptedError("interrupted by Thread.interrupt");
}

}  // namespace syncline::java

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void*) {
  using namespace syncline::java;  // NOLINT: the one function outside the namespace.
  void* env = nullptr;
  if (vm->GetEnv(&env, kVersion) != JNI_OK) return JNI_ERR;
  jvm.vm = vm;
  return FindAll(static_cast<JNIEnv*>(env)) ? kVersion : JNI_ERR;
}
