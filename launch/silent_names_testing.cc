// Preloaded by tests: names below .silent are looked up for ever, as if no name server answered,
// and those below .unknown are not known yet.
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host != nullptr && strstr(host, ".unknown") != nullptr) return EAI_AGAIN;
  const bool is_numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!is_numeric && host != nullptr && strstr(host, ".silent") != nullptr) {
    dprintf(STDERR_FILENO, "looking up %s\n", host);
    for (;;) pause();
  }
  return real(host, service, hints, found);
}
