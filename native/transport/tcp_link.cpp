// Implement a link over a connected stream socket: tcp between hosts, a socketpair in tests.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "os/descriptors.hpp"
#include "os/sockets.hpp"
#include "transport/link.hpp"

namespace phalanx {

namespace {

// Most bytes of one call: a signal or an abort must not wait behind a gigabyte.
constexpr std::size_t kLargestCall = std::size_t{1} << 20;

using std::chrono::milliseconds;
// Reading a socket's state costs a system call (1 us), too much for each wake-up of a long stream.
[[maybe_unused]] constexpr milliseconds kBetweenLooks{40};
// Checks further apart than this belong to different waits.
[[maybe_unused]] constexpr milliseconds kOneWait{1000};

class SocketLink final : public Link {
  public:
    SocketLink(int peer, Fd fd, milliseconds silence)
        : Link(peer), fd_(std::move(fd)), silence_(silence) {
        int type = 0;
        socklen_t length = sizeof type;
        if (::getsockopt(fd_.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
            type != SOCK_STREAM) {
            throw UsageError("the descriptor for rank " + std::to_string(peer) +
                             " is not a stream socket");
        }
        if (!prepare_stream(fd_.get())) {
            throw SystemError("cannot prepare the socket to rank " + std::to_string(peer), errno);
        }
        // A unix socket has no remote host and does not support the options.
        if (silence_.count() > 0) keep_alive(fd_.get(), silence_);
        path_ = Path::of(fd_.get());
    }

    [[nodiscard]] int descriptor() const noexcept override { return fd_.get(); }

    [[nodiscard]] bool has_ended() noexcept override { return peer_has_ended(fd_.get()); }
    [[nodiscard]] std::string path() const override { return path_.text_with_card(); }

  protected:
    std::size_t do_send(Parts parts) override {
        std::array<iovec, kMaxParts> pieces;
        std::size_t count = 0;
        std::size_t room = kLargestCall;
        for (const auto part : parts.first(std::min(parts.size(), kMaxParts))) {
            const auto size = std::min(part.size(), room);
            if (size > 0) pieces[count++] = {const_cast<std::byte*>(part.data()), size};
            room -= size;
            if (size < part.size()) break;
        }
        constexpr int kFlags = kSendQuietly | MSG_DONTWAIT;
        if (count == 0) return 0;
        if (count == 1) {  // the shorter call
            return moved(::send(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, kFlags));
        }
        msghdr message{};
        message.msg_iov = pieces.data();
        message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
        return moved(::sendmsg(fd_.get(), &message, kFlags));
    }
    std::size_t do_recv(std::span<std::byte> bytes, std::span<std::byte> more) override {
        if (bytes.empty()) std::swap(bytes, more);
        if (bytes.empty()) return 0;
        ssize_t got = 0;
        if (more.empty() || bytes.size() > kLargestCall) {
            const auto size = std::min(bytes.size(), kLargestCall);
            got = ::recv(fd_.get(), bytes.data(), size, MSG_DONTWAIT);
        } else {
            iovec parts[] = {{bytes.data(), bytes.size()}, {more.data(), more.size()}};
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 2;
            got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
        }
        if (got == 0) lose(kClosedThere);
        return moved(got);
    }
    void do_finish() noexcept override { ::shutdown(fd_.get(), SHUT_WR); }
    // Keep-alive probes of the kernel (keep_alive) are only sent on connections without bytes in
    // flight.
    void do_check_alive() override {
#ifdef __linux__  // elsewhere the kernel checks connections with bytes in flight too (keep_alive)
        const auto now = Clock::now();
        if (silence_.count() <= 0 || now - looked_ < kBetweenLooks) return;
        tcp_info info{};
        socklen_t length = sizeof info;
        if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
        // Lost if sent bytes had no ack for as long as this was checked. Or if a full window had
        // several probes without an answer (one may be lost on its way): then there are no bytes to
        // acknowledge, and answers come only after probes.
        const bool is_under_way = info.tcpi_unacked > 0;
        if (!is_under_way || now - looked_ > kOneWait) unanswered_ = now;
        looked_ = now;
        if (!is_under_way && info.tcpi_probes < 2) return;
        const auto last_ack = now - milliseconds(info.tcpi_last_ack_recv);
        if (now - (is_under_way ? std::max(unanswered_, last_ack) : last_ack) < silence_) return;
        lose("no answer for " + in_seconds(silence_), true);
#endif
    }
    // A peek starts at the first unread byte, so read all of them; used once in a link's life.
    Peek do_peek_tail(std::span<std::byte> bytes) noexcept override {
        int unread = 0;
        if (::ioctl(fd_.get(), FIONREAD, &unread) != 0) return Peek::kNotThere;
        const auto size = static_cast<std::size_t>(std::max(unread, 0));
        if (size < bytes.size()) return Peek::kNotThere;
        try {
            std::vector<std::byte> all(size);
            const auto got = ::recv(fd_.get(), all.data(), size, MSG_PEEK | MSG_DONTWAIT);
            // Fewer: another thread has read some since.
            if (got != static_cast<ssize_t>(size)) return Peek::kUnclear;
            std::memcpy(bytes.data(), all.data() + size - bytes.size(), bytes.size());
            return Peek::kFound;
        } catch (const std::bad_alloc&) {
            return Peek::kUnclear;
        }
    }

  private:
    [[nodiscard]] std::size_t moved(ssize_t result) const {
        if (result >= 0) return static_cast<std::size_t>(result);
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
        const int code = errno;
        lose(std::generic_category().message(code), code != ECONNRESET && code != EPIPE);
    }

    Fd fd_;
    milliseconds silence_;
    Path path_;
    [[maybe_unused]] Clock::time_point looked_;
    [[maybe_unused]] Clock::time_point unanswered_;  // begin of the time without an ack, if checked
};

}  // namespace

std::unique_ptr<Link> make_socket_link(int peer, int fd, milliseconds silence) {
    return std::make_unique<SocketLink>(peer, Fd(fd), silence);
}

}  // namespace phalanx
