// See point_to_point.hpp for the correctness argument.
#include "group/point_to_point.hpp"

#include <algorithm>
#include <array>

#include "base/call_site.hpp"
#include "collectives/kernels/checksum.hpp"
#include "os/sockets.hpp"
#include "transport/shm_link.hpp"

namespace phalanx {

namespace {

// Up to this size a copy is cheaper than a second write to a socket (about 1 us each).
constexpr std::size_t kOnePiece = std::size_t{4} << 10;
// Bytes that a socket takes at once even if the other end does not read, if the system allows it:
// the default limit (net.core.wmem_max) is 208 KiB. The kernel doubles the number, and counts its
// own bookkeeping against the doubled size.
constexpr int kSendBuffer = 4 << 20;

template <class Byte, class Body>
void for_each_chunk(std::span<Byte> bytes, const Body& body) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kIoChunkBytes))) {
        body(bytes.first(std::min(bytes.size(), kIoChunkBytes)));
    }
}

std::string name_rank(std::uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

PeerConnection make_pair_wire(int peer, int fd, std::chrono::milliseconds silence) {
    auto in = make_socket_link(peer, fd, silence);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, kSendBuffer);
    return {make_socket_link(peer, Fd::duplicate(fd).release(), silence), std::move(in)};
}

PointToPoint::PointToPoint(int rank, int channel, std::span<const int> members,
                           std::span<const int> local, const Arena* arena, ControlPage& page,
                           std::map<int, PeerConnection> wires, const Waiter& waiter, int slot_here)
    : channel_(channel), epoch_(waiter.epoch()), activity_(page.activity(slot_here)) {
    for (int peer = 0; peer < static_cast<int>(local.size()); ++peer) {
        const int in_the_world = members[static_cast<std::size_t>(peer)];
        const auto tally = [&](bool is_recv) {
            return page.tally(slot_here, channel, in_the_world, is_recv);
        };
        PeerEndpoint& out = lanes_.emplace_back(peer, in_the_world, false, waiter, tally(false));
        PeerEndpoint& in = lanes_.emplace_back(peer, in_the_world, true, waiter, tally(true));
        const int slot = local[static_cast<std::size_t>(peer)];
        if (peer == rank) continue;
        if (slot >= 0) {
            const auto own = arena->own_queue(channel, slot);
            const auto theirs = arena->queue_of(slot, channel);
            reset_arena_half(own);
            out.link = make_arena_link(peer, own, theirs, &page.doorbell(slot), epoch_);
            in.link = make_arena_link(peer, own, theirs, &page.doorbell(slot), epoch_);
            out.is_local = in.is_local = true;
        } else if (const auto wire = wires.find(peer); wire != wires.end()) {
            out.link = std::move(wire->second.out);
            out.waiter.sleep_early();
            in.link = std::move(wire->second.in);
            for (Link* link : {out.link.get(), in.link.get()}) {
                link->count_in(page.wire(slot_here, in_the_world, false),
                               page.wire(slot_here, in_the_world, true));
            }
        }
    }
}

std::string PointToPoint::describe(const Op& op, bool is_recv) {
    return std::string(is_recv ? "recv" : "send") + " #" + std::to_string(op.seq) +
           (is_recv ? " from " + name_rank(op.root) : " to " + name_rank(op.target)) + " (" +
           describe_array(op) + ")";
}

void PointToPoint::send(PeerEndpoint& lane, const Op& op, const std::byte* x) {
    const auto header = std::as_bytes(std::span(&op, 1));
    const std::span payload(x, static_cast<std::size_t>(op.nbytes()));
    std::uint64_t mark = end_mark(op);
    const auto end = std::as_bytes(std::span(&mark, 1));
    if (payload.size() <= kOnePiece) {
        if (!lane.is_local) mark ^= checksum_of(payload);
        std::array<std::byte, sizeof(Op) + kOnePiece + sizeof mark> piece;
        auto* at = std::copy(header.begin(), header.end(), piece.data());
        at = std::copy(payload.begin(), payload.end(), at);
        at = std::copy(end.begin(), end.end(), at);
        return send_bytes(lane, {piece.data(), at});
    }
    send_bytes(lane, header);
    // Data in a queue in the arena needs no checksum.
    if (lane.is_local) {
        send_bytes(lane, payload);
    } else {
        // An aborting receiver keeps draining, so this rank never waits for buffer space: check
        // between chunks whether the receiver has ended its stream.
        Checksum sum;
        for_each_chunk(payload, [&](auto chunk) {
            if (chunk.data() != payload.data()) check_wanted(lane);
            sum.add(chunk);
            send_bytes(lane, chunk);
        });
        if (payload.size() > kBufferedBytes) check_wanted(lane);
        mark ^= sum.value();
    }
    send_bytes(lane, end);
}

void PointToPoint::recv(PeerEndpoint& lane, const Op& op, std::byte* out,
                        FunctionRef<void()> begun) {
    Op met;
    recv_bytes(lane, std::as_writable_bytes(std::span(&met, 1)));
    // Not a header: possibly an abort notice; the caller that catches this reads it.
    if (met.magic != op.magic || met.end != op.end) {
        lane.link->mark_broken("it sent something that is no header");
    }
    if (met != op) {
        lane.was_put_aside = met.nbytes() <= kBufferedBytes;
        throw Mismatch(name_rank(op.target) + ": " + describe(op, true) +
                       site_gap(static_cast<int>(op.target)) + " met " + name_rank(op.root) + ": " +
                       describe(met, false) + site_gap(static_cast<int>(op.root)) +
                       describe_difference(op, met));
    }
    begun();
    const std::span payload(out, static_cast<std::size_t>(op.nbytes()));
    std::uint64_t wanted = end_mark(op);
    if (lane.is_local) {
        recv_bytes(lane, payload);
    } else {
        Checksum sum;
        for_each_chunk(payload, [&](auto chunk) {
            recv_bytes(lane, chunk);
            sum.add(chunk);
        });
        wanted ^= sum.value();
    }
    std::uint64_t mark = 0;
    recv_bytes(lane, std::as_writable_bytes(std::span(&mark, 1)));
    if (mark != wanted) lane.link->mark_broken(kWrongSum);
}

void PointToPoint::send_bytes(PeerEndpoint& lane, std::span<const std::byte> bytes) {
    const auto attempt = [&] {
        const std::size_t taken = lane.link->try_send(bytes);
        bytes = bytes.subspan(taken);
        return taken > 0;
    };
    while (!bytes.empty()) {
        lane.waiter.check_abort();
        if (!attempt()) wait(lane, [&] { return lane.link->can_send(); }, attempt);
    }
}

void PointToPoint::recv_bytes(PeerEndpoint& lane, std::span<std::byte> bytes) {
    const auto attempt = [&] {
        const std::size_t got = lane.link->try_recv(bytes);
        bytes = bytes.subspan(got);
        return got > 0;
    };
    while (!bytes.empty()) {
        lane.waiter.check_abort();
        // For an empty queue wait at once: only the wait tells a closed peer from a lost one.
        const bool can_try = !lane.is_local || lane.link->can_recv();
        if (!can_try || !attempt()) wait(lane, [&] { return lane.link->can_recv(); }, attempt);
    }
}

// If the peer has closed its direction, a message that lacks its end mark will never be received.
// Throws in that case.
void PointToPoint::check_wanted(PeerEndpoint& lane) {
    if (lane.link->has_ended()) lane.link->mark_broken("the other end closed it");
}

// Returns when data has moved (a wire) or can be moved (a queue in the arena).
template <class Ready, class Try>
void PointToPoint::wait(PeerEndpoint& lane, const Ready& ready, const Try& attempt) {
    struct Shown {
        Activity& activity;
        PeerEndpoint& lane;
        std::uint64_t word;
        bool is_shown = false;
        void show() {
            activity.show(word);
            // A wire accepts data for a peer that does not read it: a full wire counts as a wait
            // only after it has stalled for a while.
            if (is_shown || !(lane.is_local || lane.is_recv || lane.waiter.has_stalled())) return;
            is_shown = true;
            lane.tell((lane.seq - 1) | kTallyWaits);
        }
        ~Shown() {
            activity.hide(word);
            if (is_shown) lane.tell(lane.seq - 1);
        }
    } shown{activity_, lane, Activity::word_of(channel_, lane.is_recv, lane.world_peer, lane.seq)};
    const auto missing = [&] {
        shown.show();
        MissingRanks who;
        who.ranks.push_back(lane.peer);
        if (lane.is_local && lane.link->has_ended()) who.closed_rank = lane.peer;
        return who;
    };
    if (lane.is_local) return lane.waiter.wait_until(ready, missing);
    pollfd polled{lane.link->descriptor(), POLLIN, 0};
    if (!lane.is_recv) polled.events = POLLOUT | kPeerEnds;
    lane.waiter.wait_until_moved(
        attempt,
        [&]() -> std::span<const pollfd> {
            shown.show();
            if (!lane.is_recv) check_wanted(lane);
            if (lane.waiter.is_patience_over()) {
                lane.link->check_alive();
                check_notices(lane);
            }
            return {&polled, 1};
        },
        missing);
}

// In a long wait: checks whether another peer has aborted the epoch. Reads none of that peer's
// data: if it has only closed, its messages stay valid.
void PointToPoint::check_notices(const PeerEndpoint& own) {
    for (PeerEndpoint& lane : lanes_) {
        if (!lane.is_recv || lane.is_local || lane.link == nullptr || lane.peer == own.peer ||
            lane.is_peeked.load() || !lane.link->has_ended()) {
            continue;
        }
        bool is_final = true;
        auto words = lane.link->peek_notice(epoch_, is_final);
        if (words && words->kind != AbortKind::kClosed) throw Aborted(std::move(*words));
        lane.is_peeked.store(is_final);
    }
}

std::optional<AbortReason> PointToPoint::find_notice(PeerEndpoint& lane) noexcept {
    if (lane.is_local) return std::nullopt;
    if (lane.is_recv) return lane.link->drain_for_notice(epoch_);
    return this->lane(lane.peer, true).link->peek_notice(epoch_);
}

void PointToPoint::send_abort_notice(const AbortReason& reason, const PeerEndpoint* held) noexcept {
    for (PeerEndpoint& lane : lanes_) {
        if (lane.is_recv || lane.is_local) continue;
        const bool is_held = &lane == held;
        if (!is_held && !lane.turn.try_lock()) continue;  // the thread inside will send it
        if (lane.link != nullptr) lane.link->send_abort_notice(epoch_, reason);
        if (!is_held) lane.turn.unlock();
    }
}

void PointToPoint::close(const AbortReason& reason) noexcept {
    for (PeerEndpoint& lane : lanes_) {
        if (lane.link == nullptr) continue;
        if (lane.is_local) {
            if (!lane.is_recv) lane.link->finish();
        } else if (lane.is_recv) {
            // Closing a socket with unread bytes discards the data that it has still to send.
            (void)lane.link->drain_for_notice(epoch_);
        } else {
            lane.link->send_abort_notice(epoch_, reason);
        }
    }
    for (PeerEndpoint& lane : lanes_) lane.link.reset();
}

}  // namespace phalanx
