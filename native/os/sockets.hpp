// Hide the differences between systems in stream sockets: signals, end of a peer, keep-alive.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>

namespace phalanx {

// Flags of send(): a lost peer is an error instead of SIGPIPE. Systems without the flag (macOS)
// have a socket option for this.
#ifdef MSG_NOSIGNAL
inline constexpr int kSendQuietly = MSG_NOSIGNAL;
#else
inline constexpr int kSendQuietly = 0;
#endif

// Event for poll(): the peer has ended its side, though bytes are unread. macOS builds poll() on
// kqueue, which reports a half-closed stream as EV_EOF; poll() shows it as POLLHUP.
#ifdef POLLRDHUP
inline constexpr short kPeerEnds = POLLRDHUP;
#else
inline constexpr short kPeerEnds = POLLHUP;
#endif

void set_option(int fd, int level, int name, int value) noexcept;
// Set close-on-exec, non-blocking, no SIGPIPE, no delay of small messages; false: see errno.
bool prepare_stream(int fd) noexcept;
bool peer_has_ended(int fd) noexcept;
// Make the kernel probe an idle peer and break the connection after `silence` without an answer.
void keep_alive(int fd, std::chrono::milliseconds silence) noexcept;

// Name the two addresses of a connected socket, for error texts.

// Read while the socket is connected: a broken socket does not know its peer's address any more.
struct Path {
    std::string from;  // both empty if the socket has no such addresses
    std::string to;

    static Path of(int fd);
    // "10.0.1.1 to 10.0.1.2", or "".
    [[nodiscard]] std::string text() const;
    // "10.0.1.1 on eth1 to 10.0.1.2", if this machine's card is known. Slow: reads the list of all
    // cards.
    [[nodiscard]] std::string text_with_card() const;
};

}  // namespace phalanx
