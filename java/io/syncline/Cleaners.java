package io.syncline;

import java.lang.ref.Cleaner;

/** The thread that closes what was forgotten. */
final class Cleaners {
  private static final Cleaner CLEANER = Cleaner.create();

  private Cleaners() {}

  /** Runs {@code action}, which must not refer to {@code owner}, once the owner is unreachable. */
  static Cleaner.Cleanable register(Object owner, Runnable action) {
    return CLEANER.register(owner, action);
  }
}
