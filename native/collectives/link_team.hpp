// The nodes of a group that meet over links: one rank each, the leader of its host (or every rank,
// where no arena is shared). Headers, small payloads, and streams around a ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/checksum.hpp"
#include "collectives/dtype.hpp"
#include "collectives/kernels.hpp"
#include "collectives/op.hpp"
#include "collectives/plan.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

struct LinkTuning {
    // Received bytes wait here to be summed: it must stay in the cache (1 MiB L2).
    std::size_t segment_bytes = std::size_t{256} << 10;
};

// Bytes that are summed and sent, or received and summed, at one go: they are still in the cache.
inline constexpr std::uint64_t kGoBytes = std::uint64_t{256} << 10;

// What is sent at one point of a stream, and what is done with what comes.
struct Outgoing {
    const std::byte* data;
    std::uint64_t nbytes;
    // Its checksum, where somebody has made it while the bytes were in the cache.
    std::optional<std::uint64_t> sum = std::nullopt;
};
struct Incoming {
    std::byte* out;
    const std::byte* own;  // null: stored; else out = received + own, or the greater, the lesser
    std::uint64_t nbytes;
};
// What goes to and comes from one node, in order.
struct Trade {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
};

// Concurrency: one thread at a time (the group's turn); the links likewise.
class LinkTeam {
  public:
    // ranks[i] is node i's rank; links[me] is null. A member that is not the leader of its node
    // has a team as well, which knows the nodes but never speaks.
    LinkTeam(std::vector<int> ranks, std::vector<std::unique_ptr<Link>> links, int me,
             bool is_leader, bool are_whole_hosts, LinkTuning tuning);

    [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }
    [[nodiscard]] int me() const noexcept { return me_; }
    [[nodiscard]] int rank(int node) const { return ranks_[index(node)]; }

    // Sends header and payload to every node, receives theirs; throws Mismatch as soon as it is
    // sure, before it waits for any payload.
    void exchange(const Op& op, std::span<const std::byte> payload, Waiter& waiter);
    // The same with a part of `bytes` for each node: it gets parts[node], and sends what is cut
    // as parts[me] here.
    void exchange_parts(const Op& op, std::span<const std::byte> bytes,
                        std::span<const Range> parts, Waiter& waiter);
    // More payload to and from every node, its size being the same everywhere.
    void exchange_payload(std::span<const std::byte> payload, Waiter& waiter);
    [[nodiscard]] const std::byte* payload(int node) const;

    // A stream from node `from` (-1: none) and one to node `to` (-1: none), at the same time.
    // The first `n_own` pieces are there already; the piece after these is what becomes of the
    // first that comes, and so on: each byte of it may leave once it is made, and its sum is noted
    // in `outgoing` as it is. Both ends cut their stream in the same pieces.
    void stream(int to, std::span<Outgoing> outgoing, std::size_t n_own, int from,
                std::span<const Incoming> incoming, Reduction reduction, Dtype dtype,
                Waiter& waiter);
    // All nodes with all at once (nothing with this one), each pair as fast as it can. Whatever
    // comes has its place and is always taken, so that no two nodes can wait for each other.
    void trade(std::span<const Trade> by_node, Waiter& waiter);

    void say_last_words(std::uint64_t epoch, const Reason& reason) noexcept;
    // The last words of any peer, if some link has ended with such.
    std::optional<Reason> hear_last_words(std::uint64_t epoch) noexcept;
    // The link to a rank of the group; null where it leads no node, or is this one.
    [[nodiscard]] Link* link_to(int rank) const noexcept;
    [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

  private:
    static std::size_t index(int node) noexcept { return static_cast<std::size_t>(node); }
    [[nodiscard]] Link& link(int node) const { return *links_[index(node)]; }
    [[nodiscard]] Op header(int node) const;
    [[nodiscard]] Op own_header() const;
    bool advance_exchange(std::size_t expected);
    void run_exchange(const Op& op, std::size_t expected, Waiter& waiter);
    void advance_until(std::size_t expected, std::size_t wanted, bool judge_early, Waiter& waiter);
    [[nodiscard]] bool is_sending(int node) const {
        return sent_[index(node)] < message_[index(node)].size();
    }
    void judge(const Op& own) const;
    // What one node is sent: two ranges of the outbox, and between them, where it is large, the
    // payload from where it stands.
    struct Message {
        Range head{};
        std::span<const std::byte> payload{};
        Range tail{};
        [[nodiscard]] std::uint64_t size() const noexcept {
            return head.size + payload.size() + tail.size;
        }
    };
    Message add_message(const Op* op, std::span<const std::byte> payload, bool has_mark);
    Range add_to_outbox(std::span<const std::byte> bytes);
    std::size_t send_on(int node);
    std::size_t receive_on(int node, std::size_t expected);
    // Every node gets its message, and sends one of `expected` bytes.
    void begin_exchange(std::size_t expected);
    void check_marks() const;
    // In a long wait: is there still somebody at the other end?
    void check_alive(const Waiter& waiter, int node) const {
        if (waiter.is_patience_over()) link(node).check_alive();
    }
    // In a long wait: has a peer that nothing is awaited from given the epoch up meanwhile?
    template <class IsAwaited>
    void listen(const Waiter& waiter, const IsAwaited& is_awaited) {
        if (!waiter.is_patience_over()) return;
        for (int node = 0; node < size(); ++node) {
            if (node == me_ || is_awaited(node) || !link(node).has_ended()) continue;
            auto words = link(node).hear_last_words(waiter.epoch());
            // One that closed has done its part; it is missed only when it is needed.
            if (words && words->kind != AbortKind::kClosed) throw Aborted(std::move(*words));
        }
    }

    std::vector<int> ranks_;
    std::vector<std::unique_ptr<Link>> links_;
    int me_;
    bool are_whole_hosts_;
    std::vector<std::byte> scratch_;
    std::vector<std::byte> outbox_;
    std::vector<Message> message_;  // by node
    std::vector<std::vector<std::byte>> inbox_;
    std::vector<Checksum> sums_;  // of the payloads that have come, by node
    std::vector<std::size_t> sent_;
    std::vector<std::size_t> received_;
    std::size_t payload_at_ = 0;
    std::uint64_t mark_ = 0;  // with its checksum, ends every transfer of the operation
    std::vector<pollfd> polled_;
    std::uint64_t bytes_sent_ = 0;
};

}  // namespace phalanx
