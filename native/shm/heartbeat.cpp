// Implement heartbeat.hpp.
#include "shm/heartbeat.hpp"

#include <unistd.h>

#include "os/sync.hpp"

namespace phalanx {

namespace {

// The loop needs almost no stack, but libraries' thread-local variables lie on it as well.
constexpr std::size_t kStackBytes = std::size_t{512} << 10;

}  // namespace

Heartbeat::Heartbeat(HeartbeatSlot& slot) noexcept : slot_(slot) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return;
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    {
        const SignalsBlocked blocked;
        if (::pthread_create(&thread_, &attributes, &Heartbeat::beat, this) == 0) {
            pid_ = ::getpid();
            // Count the first heartbeat here too: a process that is stopped before its new thread
            // ran would otherwise have no heartbeat, and nothing would notice that it stopped.
            slot_.beats.fetch_add(1, std::memory_order_release);
        }
    }
    ::pthread_attr_destroy(&attributes);
#ifdef __linux__
    if (pid_ >= 0) ::pthread_setname_np(thread_, "phalanx-heart");
#endif
}

Heartbeat::~Heartbeat() {
    if (pid_ != ::getpid()) return;
    stop_.store(1, std::memory_order_seq_cst);
    futex_wake_all(stop_);
    ::pthread_join(thread_, nullptr);
    slot_.beats.store(0, std::memory_order_release);
}

void* Heartbeat::beat(void* self) noexcept {
    Heartbeat& heartbeat = *static_cast<Heartbeat*>(self);
    while (heartbeat.stop_.load(std::memory_order_acquire) == 0) {
        heartbeat.slot_.beats.fetch_add(1, std::memory_order_release);
        futex_wait(heartbeat.stop_, 0, kBeat);
    }
    return nullptr;
}

}  // namespace phalanx
