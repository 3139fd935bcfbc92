// A descriptor that makes poll() return: anybody who holds it rings, its sleeper polls it for
// POLLIN. One descriptor for both, so that it can be handed on by its number alone.
#pragma once

#include "base/fd.hpp"

namespace phalanx {

// Closed on exec; neither ringing nor silencing ever blocks.
Fd make_wake();
// Makes a poll() on it return, now or when there is one.
void ring_wake(int fd) noexcept;
// Forgets the rings so far (where there were very many, the next poll() may return once more).
void silence_wake(int fd) noexcept;

}  // namespace phalanx
