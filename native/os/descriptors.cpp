// Implement a wake descriptor: an eventfd on Linux. Elsewhere a loopback datagram socket that is
// connected to itself: also one descriptor, receives from no other socket, and drops what is too
// much.
#include "os/descriptors.hpp"

#include <cerrno>
#include <cstdint>

#include "base/platform.hpp"

#if PHALANX_LINUX
#include <sys/eventfd.h>
#else
#include <netinet/in.h>
#include <sys/socket.h>
#endif

namespace phalanx {

#if PHALANX_LINUX

Fd make_wake() {
    Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) throw SystemError("cannot make an eventfd", errno);
    return wake;
}

#else

Fd make_wake() {
    Fd wake(::socket(AF_INET, SOCK_DGRAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    if (!wake || ::fcntl(wake.get(), F_SETFD, FD_CLOEXEC) != 0 ||
        ::fcntl(wake.get(), F_SETFL, O_NONBLOCK) != 0 || ::bind(wake.get(), generic, length) != 0 ||
        ::getsockname(wake.get(), generic, &length) != 0 ||
        ::connect(wake.get(), generic, length) != 0) {
        throw SystemError("cannot make a socket to be woken by", errno);
    }
    return wake;
}

#endif

void signal_wakeup(int fd) noexcept {
    const std::uint64_t one = 1;
    // Fails only if the counter or the socket is full; the poller wakes anyway in this case.
    [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

void clear_wakeup(int fd) noexcept {
#if PHALANX_LINUX
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd, &count, sizeof count);
#else
    constexpr int kMost = 64;  // bound the loop if another thread rings without end
    std::uint64_t one = 0;
    for (int i = 0; i < kMost && ::read(fd, &one, sizeof one) > 0; ++i) continue;
#endif
}

}  // namespace phalanx
