// Own file descriptors, and wake a thread that polls one.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.hpp"

namespace phalanx {

class Fd {
  public:
    Fd() noexcept = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    ~Fd() { reset(); }

    // Duplicate a descriptor (same open file), closed on exec.
    static Fd duplicate(int fd) {
        const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (copy < 0) throw SystemError("cannot duplicate descriptor " + std::to_string(fd), errno);
        return Fd(copy);
    }

    [[nodiscard]] int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset() noexcept {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

  private:
    int fd_ = -1;
};

// Make poll() return in another thread or process. Writers ring the descriptor, the sleeper polls
// it for POLLIN. One descriptor serves both, so that its number alone can be passed on.

// Closed on exec; ringing and silencing never block.
Fd make_wake();
// Make a present or future poll() on it return.
void signal_wakeup(int fd) noexcept;
// Clear the rings so far (after very many rings the next poll() may return once more).
void clear_wakeup(int fd) noexcept;

}  // namespace phalanx
