// A link over a connected stream socket: tcp between hosts, a socketpair in tests.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fd.hpp"
#include "transport/link.hpp"

namespace phalanx {

namespace {

// One call moves at most this much: a signal or an abort must not wait behind a gigabyte.
constexpr std::size_t kLargestCall = std::size_t{1} << 20;

class SocketLink final : public Link {
  public:
    SocketLink(int peer, Fd fd) : Link(peer), fd_(std::move(fd)) {
        int type = 0;
        socklen_t length = sizeof type;
        if (::getsockopt(fd_.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
            type != SOCK_STREAM) {
            throw UsageError("the descriptor for rank " + std::to_string(peer) +
                             " is not a stream socket");
        }
        const int flags = ::fcntl(fd_.get(), F_GETFL);
        if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
            ::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC) != 0) {
            throw SystemError("cannot prepare the socket to rank " + std::to_string(peer), errno);
        }
        const int yes = 1;  // fails on a unix socket, which has no such delay
        ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }

    [[nodiscard]] int descriptor() const noexcept override { return fd_.get(); }

    [[nodiscard]] bool has_ended() noexcept override {
        pollfd one{fd_.get(), POLLRDHUP, 0};
        return ::poll(&one, 1, 0) > 0;
    }

  protected:
    std::size_t do_send(std::span<const std::byte> bytes) override {
        const auto size = std::min(bytes.size(), kLargestCall);
        return moved(::send(fd_.get(), bytes.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    std::size_t do_recv(std::span<std::byte> bytes) override {
        if (bytes.empty()) return 0;
        const auto got =
            ::recv(fd_.get(), bytes.data(), std::min(bytes.size(), kLargestCall), MSG_DONTWAIT);
        if (got == 0) lose("its connection closed");
        return moved(got);
    }
    std::size_t do_send_both(std::span<const std::byte> bytes,
                             std::span<const std::byte> more) override {
        if (bytes.size() > kLargestCall) return do_send(bytes);
        iovec parts[] = {{const_cast<std::byte*>(bytes.data()), bytes.size()},
                         {const_cast<std::byte*>(more.data()), more.size()}};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        return moved(::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    std::size_t do_recv_both(std::span<std::byte> bytes, std::span<std::byte> more) override {
        if (bytes.empty() || bytes.size() > kLargestCall) return do_recv(bytes);
        iovec parts[] = {{bytes.data(), bytes.size()}, {more.data(), more.size()}};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        const auto got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
        if (got == 0) lose("its connection closed");
        return moved(got);
    }
    void do_finish() noexcept override { ::shutdown(fd_.get(), SHUT_WR); }
    // Peeking begins at the first unread byte: all of them are looked at, once in a link's life.
    bool do_peek_tail(std::span<std::byte> bytes) noexcept override {
        int unread = 0;
        if (::ioctl(fd_.get(), FIONREAD, &unread) != 0) return false;
        const auto size = static_cast<std::size_t>(std::max(unread, 0));
        if (size < bytes.size()) return false;
        try {
            std::vector<std::byte> all(size);
            const auto got = ::recv(fd_.get(), all.data(), size, MSG_PEEK | MSG_DONTWAIT);
            if (got != static_cast<ssize_t>(size)) return false;
            std::memcpy(bytes.data(), all.data() + size - bytes.size(), bytes.size());
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }

  private:
    [[nodiscard]] std::size_t moved(ssize_t result) const {
        if (result >= 0) return static_cast<std::size_t>(result);
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
        const int code = errno;
        lose(code == EPIPE || code == ECONNRESET
                 ? std::string("its connection closed")
                 : "its connection broke: " + std::generic_category().message(code));
    }

    Fd fd_;
};

}  // namespace

void reserve_send_buffer(int fd, std::size_t nbytes) noexcept {
    // The kernel doubles the number, and counts its own bookkeeping against the double.
    const int wanted = static_cast<int>(nbytes);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
}

std::unique_ptr<Link> make_socket_link(int peer, int fd) {
    return std::make_unique<SocketLink>(peer, Fd(fd));
}

}  // namespace phalanx
