// See heart.hpp.
#include "transport/heart.hpp"

#include <unistd.h>

#include "base/futex.hpp"
#include "base/signals.hpp"

namespace phalanx {

namespace {

// The loop needs next to nothing; libraries' thread-local variables lie on the stack as well.
constexpr std::size_t kStackBytes = std::size_t{512} << 10;

}  // namespace

Heart::Heart(Pulse& pulse) noexcept : pulse_(pulse) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return;
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    {
        const SignalsBlocked blocked;
        if (::pthread_create(&thread_, &attributes, &Heart::beat, this) == 0) {
            pid_ = ::getpid();
            // Here and not only there: a process that is stopped before its new thread had a core
            // would be one without a heart, which nobody misses.
            pulse_.beats.fetch_add(1, std::memory_order_release);
        }
    }
    ::pthread_attr_destroy(&attributes);
#ifdef __linux__
    if (pid_ >= 0) ::pthread_setname_np(thread_, "phalanx-heart");
#endif
}

Heart::~Heart() {
    if (pid_ != ::getpid()) return;
    stop_.store(1, std::memory_order_seq_cst);
    futex_wake_all(stop_);
    ::pthread_join(thread_, nullptr);
    pulse_.beats.store(0, std::memory_order_release);
}

void* Heart::beat(void* self) noexcept {
    Heart& heart = *static_cast<Heart*>(self);
    while (heart.stop_.load(std::memory_order_acquire) == 0) {
        heart.pulse_.beats.fetch_add(1, std::memory_order_release);
        futex_wait(heart.stop_, 0, kBeat);
    }
    return nullptr;
}

}  // namespace phalanx
