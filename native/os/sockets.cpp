// Implement sockets.hpp. Conditions test the headers' macros, so that newer systems need no change.
#include "os/sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

namespace phalanx {

void set_option(int fd, int level, int name, int value) noexcept {
    ::setsockopt(fd, level, name, &value, sizeof value);  // options are optional: ignore errors
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
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // fails on a unix socket, which needs no option
    return true;
}

bool peer_has_ended(int fd) noexcept {
    pollfd one{fd, kPeerEnds, 0};
    // macOS also returns for unread bytes, with no event.
    return ::poll(&one, 1, 0) > 0 && one.revents != 0;
}

// TCP_USER_TIMEOUT would also break a connection with a live peer that is too busy to read.
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
    // Since Linux 6.15. Without it the kernel probes a peer with a full window every two minutes.
    constexpr int kTcpRtoMaxMs = 44;
    set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs,
               static_cast<int>(std::clamp<std::int64_t>(silence.count() / 4, 1000, 120'000)));
#elif defined(TCP_RXT_CONNDROPTIME)
    // macOS has no state to read (SocketLink::do_check_alive): the kernel itself breaks a
    // connection without an ack for this time.
    set_option(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, std::max(seconds, 1));
#endif
}

// Implement sockets.hpp.

namespace {

std::string address_of(const sockaddr* address) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* bytes = nullptr;
    if (address != nullptr && address->sa_family == AF_INET) {
        bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    } else if (address != nullptr && address->sa_family == AF_INET6) {
        bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    }
    if (bytes == nullptr) return "";
    const char* done = ::inet_ntop(address->sa_family, bytes, text.data(), text.size());
    return done != nullptr ? done : "";
}

std::string end_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
    sockaddr_storage found{};
    auto length = static_cast<socklen_t>(sizeof found);
    auto* address = reinterpret_cast<sockaddr*>(&found);
    return ask(fd, address, &length) == 0 ? address_of(address) : "";
}

// Name of the card with an address; "" also for loopback, which is no card.
std::string card_with(const std::string& address) {
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0) return "";
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
    for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
        if ((one->ifa_flags & IFF_LOOPBACK) == 0 && address_of(one->ifa_addr) == address) {
            return one->ifa_name;
        }
    }
    return "";
}

}  // namespace

Path Path::of(int fd) {
    Path found{end_of(fd, ::getsockname), end_of(fd, ::getpeername)};
    return found.from.empty() || found.to.empty() ? Path{} : found;
}

std::string Path::text() const { return from.empty() ? "" : from + " to " + to; }

std::string Path::text_with_card() const {
    if (from.empty()) return "";
    const auto card = card_with(from);
    return card.empty() ? text() : from + " on " + card + " to " + to;
}

}  // namespace phalanx
