// Prints the capability table; `python -m syncline.info` and Java's Info.capabilityTable() show the
// same.
#include "syncline/info.h"

#include <iostream>

int main() {
  std::cout << "Syncline " << syncline::Info::Version() << "\n\n"
            << syncline::Info::CapabilityTable();
  return 0;
}
