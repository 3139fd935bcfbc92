// Define the engine's errors. Lower layers throw local errors (a lost peer, a passed deadline); the
// group turns them into one Aborted, the same on all ranks.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace phalanx {

// Cause of an epoch's abort. The numbers are on the control page and on the wire: append only.
enum class AbortKind : std::int32_t {
    kRankFailure = 1,
    kMismatch = 2,
    kTimeout = 3,
    kInterrupted = 4,
    kError = 5,
    kClosed = 6,
    kLinkBroken = 7,  // both ends may be alive
};

// Check a kind read from shared memory or a socket, which may be any number.
constexpr AbortKind checked_kind(std::int32_t value) noexcept {
    return value >= 1 && value <= 7 ? static_cast<AbortKind>(value) : AbortKind::kError;
}

// Text of a reason if the memory for its own text is refused; short, so that std::string needs
// none.
inline constexpr const char* kNoMemory = "out of memory";

struct AbortReason {
    AbortKind kind = AbortKind::kError;
    std::int32_t culprit = -1;  // a rank; -1: no single rank; or a link()
    std::string message;
    // Only on links: the call site of the rank that reports the reason (call_site.hpp).
    std::string site = {};

    // Culprit of a kLinkBroken: the rank that cannot be reached, and the rank that reports this.
    static constexpr std::int32_t link(int lost, int from) noexcept {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(lost) << 16 |
                                         (static_cast<std::uint32_t>(from) & 0xFFFFU));
    }
    // The culprit as `me` sees it: for a link with `me` as one end, the other end.
    [[nodiscard]] constexpr int culprit_rank(int me) const noexcept {
        if (kind != AbortKind::kLinkBroken || culprit < 0) return culprit;
        const int lost = culprit >> 16;
        return lost == me ? culprit & 0xFFFF : lost;
    }
};

class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A mistake of the caller: nothing was sent, and the group stays usable.
class UsageError : public Error {
    using Error::Error;
};

class SystemError : public Error {
  public:
    SystemError(const std::string& what, int code)
        : Error(what + ": " + std::generic_category().message(code)) {}
};

// A link has failed; the text says why. The other end may be alive. Silent: the link was not
// closed, the time for an answer ran out.
class PeerLost : public Error {
  public:
    PeerLost(int who, const std::string& what, bool silent = false)
        : Error(what), rank(who), is_silent(silent) {}
    int rank;
    bool is_silent;
};

// A rank has closed its group and will take part in no more operations.
class PeerClosed : public Error {
  public:
    explicit PeerClosed(int who) : Error("a rank closed the group"), rank(who) {}
    int rank;
};

class Timeout : public Error {
  public:
    Timeout(std::vector<int> ranks, bool are_whole_hosts)
        : Error("deadline passed"), missing(std::move(ranks)), whole_hosts(are_whole_hosts) {}
    std::vector<int> missing;  // ranks that were waited for
    bool whole_hosts;          // each of them may have waited for another rank of its host
};

class Mismatch : public Error {
    using Error::Error;
};

// The caller's own code (a signal handler, Ctrl-C) interrupts the operation.
class Interrupted : public Error {
  public:
    Interrupted() : Error("interrupted") {}
};

// The epoch was aborted, by this rank or a peer.
class Aborted : public Error {
  public:
    explicit Aborted(AbortReason why) : Error(why.message), reason(std::move(why)) {}
    AbortReason reason;
};

// The group of this rank was closed before the call.
class Closed : public Error {
    using Error::Error;
};

}  // namespace phalanx
