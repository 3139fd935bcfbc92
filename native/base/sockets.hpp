// What differs between systems in stream sockets: signals, the end of a peer, keep-alive. What a
// link wants of its socket is the link's; this knows how to ask for it.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>

namespace phalanx {

// Flags of send(): a peer that is gone is an error and no SIGPIPE. Where there is no such flag
// (macOS), an option of the socket does it.
#ifdef MSG_NOSIGNAL
inline constexpr int kSendQuietly = MSG_NOSIGNAL;
#else
inline constexpr int kSendQuietly = 0;
#endif

// What poll() is asked for, to return once the peer has ended its side, though bytes are unread. On
// macOS, whose poll() is made of kqueue, that is POLLHUP: a half that is closed is EV_EOF there.
#ifdef POLLRDHUP
inline constexpr short kPeerEnds = POLLRDHUP;
#else
inline constexpr short kPeerEnds = POLLHUP;
#endif

void set_option(int fd, int level, int name, int value) noexcept;
// Closed on exec, never blocks, raises no signal, and holds no small message back; false: errno.
bool prepare_stream(int fd) noexcept;
bool peer_has_ended(int fd) noexcept;
// Has the kernel ask an idle peer for a sign of life, and give the link up after `silence`.
void keep_alive(int fd, std::chrono::milliseconds silence) noexcept;

}  // namespace phalanx
