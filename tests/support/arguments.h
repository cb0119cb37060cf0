// Arguments of test programs, "--name=value".
#ifndef SYNCLINE_TESTS_SUPPORT_ARGUMENTS_H_
#define SYNCLINE_TESTS_SUPPORT_ARGUMENTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace syncline {

// Where a value goes: a number from 1, any number, or text.
using ArgumentValue = std::variant<int*, uint32_t*, std::string*>;

// Reads the arguments by their names, without the dashes. Ends the program, with the names that
// there are, if one is not understood.
void ReadArguments(int argc, char** argv, const std::map<std::string, ArgumentValue>& values);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_ARGUMENTS_H_
