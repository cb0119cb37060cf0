// The native side of io.syncline.CommHookBase.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "io_syncline_CommHookBase.h"
#include "java/convert.h"
#include "java/jvm.h"
#include "syncline/comm_hook.h"
#include "syncline/process_group.h"
#include "syncline/status.h"

namespace syncline::java {
namespace {

// Calls a BucketAverager of Java.
class JavaAverager : public ddp::BucketAverager {
 public:
  JavaAverager(std::string name, std::unique_ptr<GlobalRef> object)
      : name_(std::move(name)), object_(std::move(object)) {}

  std::string name() const override { return name_; }

  // The hook's thread has the bucket's stream as its current one.
  absl::Status SetDevice(const Device&) override { return absl::OkStatus(); }

  absl::Status Attach(const std::shared_ptr<ProcessGroup>& group) override {
    group_ = group;
    return absl::OkStatus();
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup&) override {
    JNIEnv* const env = AttachedEnv();
    if (env == nullptr) return BackendError("the JVM is ending");
    auto copy = std::make_shared<GradBucket>(bucket);
    env->CallStaticVoidMethod(GetJvm().comm_hook, GetJvm().comm_hook_run, object_->get(),
                              Converter<std::shared_ptr<GradBucket>>::To(env, std::move(copy)),
                              Converter<std::shared_ptr<ProcessGroup>>::To(env, group_));
    return env->ExceptionCheck() ? TakeException(env) : absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::unique_ptr<GlobalRef> object_;
  std::shared_ptr<ProcessGroup> group_;  // What Average gets.
};

std::shared_ptr<CommHook> Create(JNIEnv* env, std::string name, jobject object) {
  auto kept = std::make_unique<GlobalRef>(env, object);
  if (kept->get() == nullptr) {
    ThrowOutOfMemory(env, "no memory for a reference to a hook");
    return nullptr;
  }
  return ddp::MakeBlockingHook(std::make_unique<JavaAverager>(std::move(name), std::move(kept)));
}

}  // namespace

extern "C" JNIEXPORT jlong JNICALL Java_io_syncline_CommHookBase_create(JNIEnv* env, jclass,
                                                                        jbyteArray name,
                                                                        jobject averager) {
  return Call<std::shared_ptr<CommHook>>(
      env, [&] { return std::tuple{FromJava<std::string>(env, name)}; },
      [&](const std::string& text) { return Create(env, text, averager); });
}

}  // namespace syncline::java
