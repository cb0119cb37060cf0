// A JVM of one thread for tests of native code: as strict about pending exceptions as JNI's rules
// are, and with arrays of any length that take no memory.
#ifndef SYNCLINE_JAVA_FAKE_JVM_H_
#define SYNCLINE_JAVA_FAKE_JVM_H_

#include <jni.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace syncline::java {

// An object of Java: what there is depends on its class.
struct FakeObject {
  std::string class_name = {};
  std::string text = {};               // The content of a byte[], the message of an exception.
  jint length = 0;                     // Of an array.
  std::vector<jobject> elements = {};  // Of an array of objects.
};

// One at a time.
class FakeJvm {
 public:
  FakeJvm();
  ~FakeJvm();
  FakeJvm(const FakeJvm&) = delete;
  FakeJvm& operator=(const FakeJvm&) = delete;

  JNIEnv* env() { return &env_; }
  JavaVM* vm() { return &vm_; }

  // An object that lives as long as this.
  jobject New(FakeObject object);
  FakeObject& Get(jobject object) { return *reinterpret_cast<FakeObject*>(object); }

  // What programs of Java would see.
  FakeObject* pending = nullptr;                 // The exception, or null.
  std::vector<std::string> misused;              // Functions that were called while there was one.
  std::string missing_class;                     // Not found by FindClass.
  std::vector<std::pair<jsize, jsize>> regions;  // First element and count, of arrays read.

 private:
  JNINativeInterface_ functions_ = {};
  JNIInvokeInterface_ invocations_ = {};
  JNIEnv env_;
  JavaVM vm_;
  std::deque<FakeObject> objects_;
};

}  // namespace syncline::java

#endif  // SYNCLINE_JAVA_FAKE_JVM_H_
