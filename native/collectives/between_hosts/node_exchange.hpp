// The nodes of a group that communicate over links: one rank each, the leader of its host (or every
// rank, if no arena is shared). Headers, small payloads, and streams around a ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/kernels/checksum.hpp"
#include "collectives/kernels/dtype.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/operation/op.hpp"
#include "collectives/operation/summation_order.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

struct LinkTuning {
    // Received bytes wait in this buffer to be summed: it must fit the cache (1 MiB L2).
    std::size_t segment_bytes = std::size_t{256} << 10;
};

// One piece of a stream to send, and one piece to receive.
struct Outgoing {
    const std::byte* data;
    std::uint64_t nbytes;
    // Checksum of the piece, if it was computed while the bytes were in the cache.
    std::optional<std::uint64_t> sum = std::nullopt;
};
struct Incoming {
    std::byte* out;
    const std::byte* own;  // null: store only; else out = received + own, or the max or min
    std::uint64_t nbytes;
};
// The data to send to and receive from one node, in order.
struct PairTransfer {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
};

// Concurrency: one thread at a time (the group's turn); the same holds for the links.
class NodeExchange {
  public:
    // ranks[i] is the rank of node i; links[me] is null. A member that does not lead its node has a
    // NodeExchange too; it knows the nodes but does not communicate.
    NodeExchange(std::vector<int> ranks, std::vector<std::unique_ptr<Link>> links, int me,
                 bool is_leader, bool are_whole_hosts, LinkTuning tuning, Waiter& waiter);

    [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }
    [[nodiscard]] int me() const noexcept { return me_; }
    [[nodiscard]] int rank(int node) const { return ranks_[index(node)]; }

    // Sends header and payload to every node and receives theirs. Throws Mismatch as soon as one is
    // certain, before it waits for any payload.
    void exchange(const Op& op, std::span<const std::byte> payload);
    // The same with one part of `bytes` per node: node i gets parts[i], and each node sends the
    // part that this node has as parts[me].
    void exchange_parts(const Op& op, std::span<const std::byte> bytes,
                        std::span<const Range> parts);
    // Exchanges more payload with every node; its size is the same everywhere.
    void exchange_payload(std::span<const std::byte> payload);
    [[nodiscard]] const std::byte* payload(int node) const;

    // Receives a stream from node `from` and sends one to node `to` at the same time (-1: none).
    // The first `n_own` outgoing pieces are complete at the start. The next outgoing piece is the
    // result of the first incoming piece, and so on: each byte may leave once it is computed, and
    // its checksum is stored in `outgoing`. Both ends cut their stream into the same pieces.
    void stream(int to, std::span<Outgoing> outgoing, std::size_t n_own, int from,
                std::span<const Incoming> incoming, Reduction reduction, Dtype dtype);
    // Exchanges data with all nodes at once (not with this one), each pair at its own speed.
    // Incoming data always has a buffer and is always taken, so no two nodes can deadlock.
    void exchange_all_pairs(std::span<const PairTransfer> by_node);

    void send_abort_notice(std::uint64_t epoch, const AbortReason& reason) noexcept;
    // Returns the abort notice of a peer, if a link has ended with one.
    std::optional<AbortReason> drain_for_notice(std::uint64_t epoch) noexcept;
    // Returns the link to a rank of the group; null if the rank leads no node, or is this rank.
    [[nodiscard]] Link* link_to(int rank) const noexcept;

  private:
    static std::size_t index(int node) noexcept { return static_cast<std::size_t>(node); }
    [[nodiscard]] Link& link(int node) const { return *links_[index(node)]; }
    [[nodiscard]] Op header(int node) const;
    [[nodiscard]] Op own_header() const;
    bool advance_exchange(std::size_t expected);
    void run_exchange(const Op& op, std::size_t expected);
    void advance_until(std::size_t expected, std::size_t wanted, bool check_early);
    [[nodiscard]] bool is_sending(int node) const {
        return sent_[index(node)] < message_[index(node)].size();
    }
    void check_headers(const Op& own) const;
    // A message to one node: two ranges of the outbox and, between them, a large payload in place.
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
    // Starts sending every node its message, and receiving one of `expected` bytes from each.
    void begin_exchange(std::size_t expected);
    void check_marks(std::size_t expected) const;
    // Moves data until no node is open. `events_of` are the directions in which a node may move
    // now (POLLIN, POLLOUT), `move` moves what it can and returns whether anything moved.
    void move_until_over(FunctionRef<bool(int)> is_open, FunctionRef<int(int)> events_of,
                         FunctionRef<bool()> move);

    std::vector<int> ranks_;
    std::vector<std::unique_ptr<Link>> links_;
    Waiter& waiter_;
    int me_;
    bool are_whole_hosts_;
    std::vector<std::byte> scratch_;
    std::vector<std::byte> outbox_;
    std::vector<Message> message_;  // by node
    std::vector<std::vector<std::byte>> inbox_;
    std::vector<Checksum> sums_;  // of the received payloads, by node
    std::vector<std::size_t> sent_;
    std::vector<std::size_t> received_;
    std::size_t payload_at_ = 0;
    std::uint64_t mark_ = 0;  // end mark of every transfer of the operation, with its checksum
    std::vector<pollfd> polled_;
};

}  // namespace phalanx
