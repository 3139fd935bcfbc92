// See path.hpp.
#include "transport/path.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

namespace phalanx {

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

// "" of loopback as well, which is no card.
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
