// The description of an operation. Ranks exchange and compare it before they use any data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "collectives/kernels/dtype.hpp"

namespace phalanx {

// Values appear on the wire and on the control page: append only.
enum class OpKind : std::uint32_t {
    kBarrier = 1,
    kAllSum = 2,
    kAllGather = 3,
    kBroadcast = 4,
    kAllMax = 5,
    kAllMin = 6,
    kSumScatter = 7,
    kAllToAll = 8,
    kSplit = 16,  // an all_gather of the data that ranks need to split the group
    kSend = 64,
    kRecv = 65,
};

inline constexpr std::array kOpKinds{
    OpKind::kBarrier,   OpKind::kAllSum,     OpKind::kAllMax,   OpKind::kAllMin,
    OpKind::kAllGather, OpKind::kSumScatter, OpKind::kAllToAll, OpKind::kBroadcast,
    OpKind::kSplit,     OpKind::kSend,       OpKind::kRecv,
};
std::string name_of(OpKind kind);
constexpr bool is_message(OpKind kind) noexcept {
    return kind == OpKind::kSend || kind == OpKind::kRecv;
}

// FNV-1a over 64-bit words, for `shape_hash` and `layout`.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325U;
constexpr std::uint64_t hash_with(std::uint64_t hash, std::uint64_t word) noexcept {
    return (hash ^ word) * 0x100000001b3U;
}

// Everything here must be equal on all ranks, or at both ends of a message. The struct is in shared
// memory and goes over the wire as it is: hosts of one world have one byte order; `magic` checks
// it.
struct Op {
    static constexpr std::uint64_t kMagic = 0x31'70'6f'78'6c'61'68'70;         // "phalxop1"
    static constexpr std::uint64_t kMessageMagic = 0x31'67'73'6d'6c'61'68'70;  // "phalmsg1"
    static constexpr std::uint64_t kEnd = 0x31'64'6e'65'70'6f'6c'70;           // "plopend1"
    static constexpr std::size_t kMaxDims = 8;

    std::uint64_t magic = kMagic;
    std::uint64_t epoch = 0;
    std::uint64_t seq = 0;
    std::uint64_t count = 0;       // elements of x, on each rank
    std::uint64_t shape_hash = 0;  // of all dimensions, including those beyond kMaxDims
    std::uint64_t layout = 0;      // of hosts and tuning: ranks that differ would deadlock
    std::array<std::uint64_t, kMaxDims> dims{};
    OpKind kind = OpKind::kBarrier;
    Dtype dtype = Dtype::none;
    std::uint32_t root = 0;
    std::uint32_t ndim = 0;
    std::uint32_t channel = 0;
    std::uint32_t target = 0;  // of a message; `root` is the sender
    // A truncated header has another end: a rank that aborts there sends an abort notice next.
    std::uint64_t end = kEnd;

    [[nodiscard]] std::uint64_t nbytes() const noexcept { return count * size_of(dtype); }
    friend bool operator==(const Op&, const Op&) = default;
};
static_assert(std::is_trivially_copyable_v<Op> && sizeof(Op) == 144);

// The mark after the data of an operation on a link, together with the checksum. A rank that aborts
// in the middle sends an abort notice there, which must not be taken for the missing data.
constexpr std::uint64_t end_mark(const Op& op) noexcept {
    return ~op.seq ^ 0x31'64'6e'65'78'6c'70'00U;
}

// "float32, shape (4096,)"
std::string describe_array(const Op& op);
// "; they are of different epochs" or similar; empty if the reason is another one.
std::string describe_difference(const Op& op, const Op& other);
// "all_sum #12 (float32, shape (4096,))"
std::string describe(const Op& op);
// Two ranks (group numbers) that do not make the same call; the group translates the numbers for
// error texts.
class OpMismatch : public Mismatch {
  public:
    OpMismatch(int rank, const Op& op, int other_rank, const Op& other);
    int rank;
    Op op;
    int other_rank;
    Op other;
};

// "rank 3: all_sum #12 (...) met rank 2: all_gather #12 (...)", with a gap for the source line of
// each call (base/call_site.hpp).
std::string describe_mismatch(int rank, const Op& op, int other_rank, const Op& other);

}  // namespace phalanx
