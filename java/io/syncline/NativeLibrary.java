package io.syncline;

/** The native library behind the Java SDK, and what it was built with. */
public final class NativeLibrary {
  static {
    System.loadLibrary("syncline_jni");
  }

  private NativeLibrary() {}

  /**
   * The names of the backends that are linked in, sorted: "gloo", "local".
   *
   * @return a new array
   */
  public static native String[] backends();

  /**
   * The schemes of the stores that are linked in, sorted: "file", "hash", "tcp".
   *
   * @return a new array
   */
  public static native String[] stores();
}
