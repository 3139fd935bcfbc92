// See sockets.hpp. By what the system's headers know, so that one that learns more gets it.
#include "base/sockets.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstdint>

namespace phalanx {

void set_option(int fd, int level, int name, int value) noexcept {
    ::setsockopt(fd, level, name, &value, sizeof value);  // what a system lacks is done without
}

bool prepare_stream(int fd) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return false;
    }
#ifdef SO_NOSIGPIPE
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // a unix socket has no delay
    return true;
}

bool peer_has_ended(int fd) noexcept {
    pollfd one{fd, kPeerEnds, 0};
    // macOS returns for bytes that wait as well, and then names nothing.
    return ::poll(&one, 1, 0) > 0 && one.revents != 0;
}

// Not TCP_USER_TIMEOUT: that also ends a link whose peer lives and is too busy to read for so long.
void keep_alive(int fd, std::chrono::milliseconds silence) noexcept {
    const auto seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(silence).count());
    const int idle = std::clamp(seconds / 2, 1, 32767);
    const int every = std::clamp((seconds - idle) / 3, 1, 32767);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE)
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
#elif defined(TCP_KEEPALIVE)  // its name on macOS
    set_option(fd, IPPROTO_TCP, TCP_KEEPALIVE, idle);
#endif
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, std::clamp((seconds - idle) / every, 1, 127));
#if defined(__linux__)
    // Since Linux 6.15: without it the kernel asks a peer with a full window every two minutes.
    constexpr int kTcpRtoMaxMs = 44;
    set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs,
               static_cast<int>(std::clamp<std::int64_t>(silence.count() / 4, 1000, 120'000)));
#elif defined(TCP_RXT_CONNDROPTIME)
    // macOS has nothing to look at (SocketLink::do_check_alive): it gives up what is not
    // acknowledged for so long by itself.
    set_option(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, std::max(seconds, 1));
#endif
}

}  // namespace phalanx
