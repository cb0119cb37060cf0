package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import org.junit.jupiter.api.Test;

class NativeLibraryTest {
  @Test
  void backendsAndStoresAreLinkedIntoTheLibrary() {
    assertArrayEquals(new String[] {"gloo", "local"}, NativeLibrary.backends());
    assertArrayEquals(new String[] {"file", "hash", "tcp"}, NativeLibrary.stores());
  }
}
