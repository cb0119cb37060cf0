// A call as the few words of a header or a note.
#ifndef SYNCLINE_BACKENDS_SHM_CALL_NOTES_H_
#define SYNCLINE_BACKENDS_SHM_CALL_NOTES_H_

#include <string>

#include "backends/common/call.h"
#include "backends/shm/board.h"

namespace syncline {

// Sets the words that are equal, with overwhelming likelihood, if and only if SameCollective.
void SetWords(const Call& call, Header::Content& header);

bool SameWords(const Header::Content& a, const Header::Content& b);

// "all_reduce #5".
std::string NameOfWords(const Header::Content& header);

void SetNote(const Call& call, Note& note);

// "all_reduce #5", "recv #2 from rank 1"; empty if there was none.
std::string NameOf(const Note& note);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_CALL_NOTES_H_
