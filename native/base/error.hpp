// The errors of the engine. The lower rooms throw what they see (a lost peer, a passed deadline);
// the group turns it into one Aborted, the same on all ranks. Knows nothing of Python.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace phalanx {

// Why an epoch was given up. The numbers are on the abort page and on the wire: append only.
enum class AbortKind : std::int32_t {
    kRankFailure = 1,
    kMismatch = 2,
    kTimeout = 3,
    kInterrupted = 4,
    kError = 5,
    kClosed = 6,
};

// A kind read from shared memory or from a socket may be anything.
constexpr AbortKind checked_kind(std::int32_t value) noexcept {
    return value >= 1 && value <= 6 ? static_cast<AbortKind>(value) : AbortKind::kError;
}

struct Reason {
    AbortKind kind = AbortKind::kError;
    std::int32_t culprit = -1;  // a rank, or -1 where no single rank is to blame
    std::string message;
    // Only on links: where the rank that says it has called (site_text.hpp).
    std::string site = {};
};

class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The caller's mistake: nothing was sent, the group is as good as before.
class UsageError : public Error {
    using Error::Error;
};

class SystemError : public Error {
  public:
    SystemError(const std::string& what, int code)
        : Error(what + ": " + std::generic_category().message(code)) {}
};

// The other end of a link is gone.
class PeerLost : public Error {
  public:
    PeerLost(int who, const std::string& what) : Error(what), rank(who) {}
    int rank;
};

// A rank has closed its group and will not come any more.
class PeerClosed : public Error {
  public:
    explicit PeerClosed(int who) : Error("a rank closed the group"), rank(who) {}
    int rank;
};

class Timeout : public Error {
  public:
    Timeout(std::vector<int> ranks, bool are_whole_hosts)
        : Error("deadline passed"), missing(std::move(ranks)), whole_hosts(are_whole_hosts) {}
    std::vector<int> missing;  // the ranks waited for
    bool whole_hosts;          // each may itself have waited for a rank of its host
};

class Mismatch : public Error {
    using Error::Error;
};

// The caller's own code (a signal handler, Ctrl-C) wants this thread back.
class Interrupted : public Error {
  public:
    Interrupted() : Error("interrupted") {}
};

// The epoch was given up, here or by a peer.
class Aborted : public Error {
  public:
    explicit Aborted(Reason why) : Error(why.message), reason(std::move(why)) {}
    Reason reason;
};

// The group of this rank was closed before.
class Closed : public Error {
    using Error::Error;
};

}  // namespace phalanx
