// Messages between two ranks of a group: a lane per peer and direction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.hpp"
#include "collectives/operation/op.hpp"
#include "os/sync.hpp"
#include "shm/arena.hpp"
#include "shm/control_page.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// The two directions of one connection; different threads may use them at the same time.
struct PeerConnection {
    std::unique_ptr<Link> out;
    std::unique_ptr<Link> in;
};
// Wraps a connected stream socket and takes ownership of fd, as make_socket_link does.
PeerConnection make_pair_wire(int peer, int fd, std::chrono::milliseconds silence = {});

// A peer on the same host is reached through a queue in the arena, any other peer through a wire of
// the pair. Collectives use neither, so an unreceived message blocks no other operation.
//
// Concurrency. A lane is one pair and one direction. Its turn admits one thread; link, waiter and
// number belong to that thread. The two lanes of a pair share memory, or a socket, but no C++
// object. Other threads may only take the turn if it is free, and call has_ended() and
// peek_notice() of a link; the link exists until all turns were taken (close).
//
// A message is the sender's Op, the payload, and an end mark. A abort notice may replace the
// rest of a payload, but it does not end with this mark.
//
// Buffering. A queue with the default size in an arena, and the send buffer of a wire, hold a
// message of kBufferedBytes: such a message can be sent before the receiver has come.
//
// A new epoch: the constructor resets this rank's halves, and the callers meet before the first
// message. A rank of the old epoch that still reads finds counters that contradict its own, or old
// bytes. The old epoch was aborted before, and a receiver checks the abort word after its last
// read. A rank that closes leaves its half as it is: the region belongs to the supervisor and
// outlives the group and the process. The next group of this slot and channel resets it; by the
// same rule no receiver of the old group can be waiting for it then.
class PointToPoint {
  public:
    static constexpr std::size_t kBufferedBytes = std::size_t{64} << 10;

    struct PeerEndpoint {
        PeerEndpoint(int the_peer, int in_the_world, bool is_for_recv, const Waiter& the_waiter,
                     MessageProgress* the_tally)
            : peer(the_peer),
              world_peer(in_the_world),
              is_recv(is_for_recv),
              waiter(the_waiter),
              tally(the_tally) {}
        // Records on the page that so many messages have passed, or that the next is awaited.
        void tell(std::uint64_t passed) const noexcept {
            if (tally != nullptr) tally->store(passed, std::memory_order_release);
        }
        int peer;
        int world_peer;  // number of the peer on the page and in error texts
        bool is_recv;
        bool is_local = false;
        TimedMutex turn;
        std::unique_ptr<Link> link;  // null for this rank itself and for peers without a wire
        Waiter waiter;
        std::uint64_t seq = 0;
        MessageProgress* tally;              // on the page, if it has space
        bool was_put_aside = false;          // after a mismatch: its sender may have gone on
        std::atomic<bool> is_peeked{false};  // its peer has closed normally
    };

    // local[r] is the arena slot of rank r if it shares the arena with this rank, else -1.
    // members[r] is the world rank of rank r. `slot` is this rank's slot on the page.
    PointToPoint(int rank, int channel, std::span<const int> members, std::span<const int> local,
                 const Arena* arena, ControlPage& page, std::map<int, PeerConnection> wires,
                 const Waiter& waiter, int slot);

    [[nodiscard]] PeerEndpoint& lane(int peer, bool is_recv) {
        return lanes_[2 * static_cast<std::size_t>(peer) + (is_recv ? 1 : 0)];
    }
    [[nodiscard]] std::deque<PeerEndpoint>& lanes() noexcept { return lanes_; }

    // Called by the holder of the lane's turn, which has begun its waiter. `op` is the sender's.
    void send(PeerEndpoint& lane, const Op& op, const std::byte* x);
    // Throws Mismatch before anything is written to out. From the call of `begun` on, out may have
    // been written.
    void recv(PeerEndpoint& lane, const Op& op, std::byte* out, FunctionRef<void()> begun);
    // Counts a message that has passed.
    static void count(PeerEndpoint& lane) noexcept { lane.tell(lane.seq); }

    // The reason why the peer of this lane left, if it sent one.
    [[nodiscard]] std::optional<AbortReason> find_notice(PeerEndpoint& lane) noexcept;
    // Sends the reason on all wires with a free turn, and on `held`, which the caller has the turn
    // of.
    void send_abort_notice(const AbortReason& reason, const PeerEndpoint* held) noexcept;
    // Called by the holder of all turns. Tells only peers that still expect this rank.
    void close(const AbortReason& reason) noexcept;

    // "recv #3 from rank 0 (float32, shape (4,))"
    static std::string describe(const Op& op, bool is_recv);

  private:
    void send_bytes(PeerEndpoint& lane, std::span<const std::byte> bytes);
    void recv_bytes(PeerEndpoint& lane, std::span<std::byte> bytes);
    template <class Ready, class Try>
    void wait(PeerEndpoint& lane, const Ready& ready, const Try& attempt);
    static void check_wanted(PeerEndpoint& lane);
    void check_notices(const PeerEndpoint& own);

    int channel_;
    std::uint64_t epoch_;
    Activity& activity_;
    std::deque<PeerEndpoint> lanes_;  // 2 * peer to send, 2 * peer + 1 to receive; lanes never move
};

}  // namespace phalanx
