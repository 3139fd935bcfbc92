// Two streams at once, without threads: poll both and move data on either.
#include <algorithm>
#include <cstring>
#include <limits>

#include "collectives/between_hosts/node_exchange.hpp"
#include "collectives/kernels/checksum.hpp"
#include "collectives/kernels/reduce.hpp"

namespace phalanx {

namespace {

// Each piece is followed by a mark with its checksum. The result of a piece gets its mark only
// after the piece was verified. So data may be forwarded before it is verified, but no node
// completes an operation with damaged data: the node that saw the damage sends no mark.

constexpr std::size_t kL1BlockBytes = 8 << 10;  // the same of x and of the result: half of L1

// The sending half: sends the pieces, up to the bytes that may be sent.
class Sender {
  public:
    // The checksums of pieces from `n_own` on are set when they may be marked.
    Sender(Link* link, std::span<const Outgoing> pieces, std::size_t n_own, std::uint64_t mark)
        : link_(link), pieces_(pieces), n_own_(n_own), end_mark_(mark) {
        if (link == nullptr) pieces_ = {};
        skip_finished();
    }
    [[nodiscard]] bool is_done() const noexcept { return piece_ == pieces_.size(); }
    // `ready_bytes` bytes may be sent, and `verified_bytes` of these may be marked. The end of a
    // piece waits until its mark may follow directly: a mark sent alone would be one more packet
    // and wake-up at every hop of a ring.
    [[nodiscard]] bool can_send(std::uint64_t ready_bytes,
                                std::uint64_t verified_bytes) const noexcept {
        if (is_done()) return false;
        const auto size = next_size(ready_bytes);
        return is_end(size) ? sent_ + size <= verified_bytes : size > 0;
    }
    std::size_t advance(std::uint64_t ready_bytes, std::uint64_t verified_bytes) {
        if (!can_send(ready_bytes, verified_bytes)) return 0;
        const Outgoing& piece = pieces_[piece_];
        const auto size = next_size(ready_bytes);
        sum_up_to(at_ + size);
        const std::span rest(piece.data + at_, static_cast<std::size_t>(size));
        const bool has_mark = is_end(size);
        if (has_mark && mark_sent_ == 0) mark_ = end_mark_ ^ piece.sum.value_or(sum_.value());
        const auto mark = std::as_bytes(std::span(&mark_, 1)).subspan(mark_sent_);
        const std::span<const std::byte> both[] = {rest, mark};
        const auto moved = link_->try_send(std::span(both).first(has_mark ? 2 : 1));
        const auto of_data = std::min<std::uint64_t>(moved, size);
        at_ += of_data;
        sent_ += of_data;
        mark_sent_ += static_cast<std::size_t>(moved - of_data);
        if (mark_sent_ == sizeof mark_) {
            ++piece_;
            begin_piece();
            skip_finished();
        }
        return moved;
    }

  private:
    [[nodiscard]] std::uint64_t next_size(std::uint64_t ready_bytes) const noexcept {
        return std::min({pieces_[piece_].nbytes - at_, ready_bytes - std::min(ready_bytes, sent_),
                         kIoChunkBytes});
    }
    [[nodiscard]] bool is_end(std::uint64_t size) const noexcept {
        return at_ + size == pieces_[piece_].nbytes;
    }
    // Sums the piece up to `end`, each byte once, even if a full link did not take it.
    void sum_up_to(std::uint64_t end) {
        if (end <= summed_ || piece_ >= n_own_ || pieces_[piece_].sum) return;
        sum_.add({pieces_[piece_].data + summed_, static_cast<std::size_t>(end - summed_)});
        summed_ = end;
    }
    void begin_piece() {
        at_ = summed_ = 0;
        mark_sent_ = 0;
        sum_ = Checksum();
    }
    void skip_finished() {
        while (!is_done() && pieces_[piece_].nbytes == 0) ++piece_;
    }

    Link* link_;
    std::span<const Outgoing> pieces_;
    std::size_t n_own_;
    std::uint64_t end_mark_;
    std::uint64_t mark_ = 0;
    std::size_t mark_sent_ = 0;
    std::size_t piece_ = 0;
    std::uint64_t at_ = 0;
    std::uint64_t sent_ = 0;
    std::uint64_t summed_ = 0;
    Checksum sum_;
};

// The receiving half: stores in place, or collects in the scratch and reduces whole elements.
class Receiver {
  public:
    // The result of a piece is the piece of `passed_on` with the same index, if there is one.
    Receiver(Link* link, std::span<const Incoming> pieces, std::span<Outgoing> passed_on,
             Reduction reduction, Dtype dtype, std::span<std::byte> scratch, std::uint64_t mark)
        : link_(link),
          pieces_(pieces),
          passed_on_(passed_on),
          reduction_(reduction),
          dtype_(dtype),
          scratch_(scratch),
          end_mark_(mark) {
        if (link == nullptr) pieces_ = {};
        skip_finished();
    }
    [[nodiscard]] bool is_done() const noexcept { return piece_ == pieces_.size(); }
    // Bytes that were processed, and the bytes among them that were verified.
    [[nodiscard]] std::uint64_t done() const noexcept { return done_; }
    [[nodiscard]] std::uint64_t good() const noexcept { return good_; }

    std::size_t advance() {
        if (is_done()) return 0;
        const Incoming& piece = pieces_[piece_];
        const std::uint64_t left = piece.nbytes - at_;
        if (piece.own == nullptr) {
            const std::span room(piece.out + at_,
                                 static_cast<std::size_t>(std::min(left, kIoChunkBytes)));
            const auto moved = receive(room, room.size() == left);
            sum_.add(room.first(moved.of_data));
            finish(moved.of_data);
            end_piece_if_over();
            return moved.all;
        }
        const auto room = std::min<std::uint64_t>(left, scratch_.size()) - held_;
        const auto moved = receive(scratch_.subspan(held_, static_cast<std::size_t>(room)),
                                   left <= scratch_.size());
        reduce_held(piece, moved.of_data);
        end_piece_if_over();
        return moved.all;
    }

  private:
    struct Moved {
        std::size_t all;
        std::size_t of_data;
    };
    // Receives into `bytes`, and into the mark if it follows directly.
    Moved receive(std::span<std::byte> bytes, bool is_end) {
        const std::span mark = std::as_writable_bytes(std::span(&came_, is_end ? 1 : 0));
        const auto moved = link_->try_recv(bytes, mark.subspan(is_end ? mark_received_ : 0));
        const auto of_data = std::min(moved, bytes.size());
        mark_received_ += moved - of_data;
        return {moved, of_data};
    }
    // Sums and reduces the bytes in the scratch, `n_new` of them new, and sums the result. It takes
    // a few KiB at a time, so that all reads except the first hit the first-level cache.
    void reduce_held(const Incoming& piece, std::size_t n_new) {
        std::size_t summed = held_;
        const auto sum_up_to = [&](std::size_t end) {
            if (end <= summed) return;
            sum_.add(scratch_.subspan(summed, end - summed));
            summed = end;
        };
        held_ += n_new;
        const std::size_t width = size_of(dtype_);
        const std::size_t whole = held_ / width * width;
        for (std::size_t from = 0; from < whole; from += kL1BlockBytes) {
            const std::size_t size = std::min(kL1BlockBytes, whole - from);
            sum_up_to(from + size);
            std::byte* const out = piece.out + at_ + from;
            const std::byte* inputs[] = {scratch_.data() + from, piece.own + at_ + from};
            reduce(reduction_, dtype_, out, nullptr, inputs, size / width);
            if (piece_ < passed_on_.size()) made_.add({out, size});
        }
        sum_up_to(held_);
        if (whole == 0) return;
        held_ -= whole;
        std::memmove(scratch_.data(), scratch_.data() + whole, held_);
        finish(whole);
    }
    void end_piece_if_over() {
        if (mark_received_ < sizeof came_) return;
        if (came_ != (end_mark_ ^ sum_.value())) {
            link_->mark_broken(kWrongSum);
        }
        if (piece_ < passed_on_.size()) {
            passed_on_[piece_].sum = (pieces_[piece_].own == nullptr ? sum_ : made_).value();
        }
        good_ = done_;
        ++piece_;
        at_ = 0;
        mark_received_ = 0;
        sum_ = made_ = Checksum();
        skip_finished();
    }
    void finish(std::uint64_t nbytes) {
        at_ += nbytes;
        done_ += nbytes;
    }
    void skip_finished() {
        while (!is_done() && pieces_[piece_].nbytes == 0) ++piece_;
    }

    Link* link_;
    std::span<const Incoming> pieces_;
    std::span<Outgoing> passed_on_;
    Reduction reduction_;
    Dtype dtype_;
    std::span<std::byte> scratch_;
    std::uint64_t end_mark_;
    std::uint64_t came_ = 0;  // the received mark
    std::size_t mark_received_ = 0;
    std::size_t piece_ = 0;
    std::uint64_t at_ = 0;
    std::uint64_t done_ = 0;
    std::uint64_t good_ = 0;
    std::size_t held_ = 0;
    Checksum sum_;   // of the received data
    Checksum made_;  // of the result
};

}  // namespace

void NodeExchange::stream(int to, std::span<Outgoing> outgoing, std::size_t n_own, int from,
                          std::span<const Incoming> incoming, Reduction reduction, Dtype dtype) {
    std::uint64_t head_start = 0;
    for (const Outgoing& piece : outgoing.first(n_own)) head_start += piece.nbytes;
    Sender sender(to < 0 ? nullptr : &link(to), outgoing, n_own, mark_);
    Receiver receiver(from < 0 ? nullptr : &link(from), incoming, outgoing.subspan(n_own),
                      reduction, dtype, scratch_, mark_);
    const auto ready_bytes = [&] { return head_start + receiver.done(); };
    const auto verified_bytes = [&] { return head_start + receiver.good(); };
    const auto is_open = [&](int node) {
        return (node == from && !receiver.is_done()) || (node == to && !sender.is_done());
    };
    const auto events_of = [&](int node) {
        const bool sends = node == to && sender.can_send(ready_bytes(), verified_bytes());
        return (node == from && !receiver.is_done() ? POLLIN : 0) | (sends ? POLLOUT : 0);
    };
    const auto move = [&] {
        const auto received = receiver.advance();
        const auto sent = sender.advance(ready_bytes(), verified_bytes());
        return received + sent > 0;
    };
    move_until_over(is_open, events_of, move);
}

void NodeExchange::exchange_all_pairs(std::span<const PairTransfer> by_node) {
    std::vector<Sender> senders;
    std::vector<Receiver> receivers;
    for (int node = 0; node < size(); ++node) {
        Link* const peer = node == me_ ? nullptr : &link(node);
        const PairTransfer& one = by_node[index(node)];
        senders.emplace_back(peer, one.outgoing, one.outgoing.size(), mark_);
        receivers.emplace_back(peer, one.incoming, std::span<Outgoing>(), Reduction::kSum,
                               Dtype::none, std::span<std::byte>(), mark_);
    }
    constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
    const auto events_of = [&](int node) {
        return (receivers[index(node)].is_done() ? 0 : POLLIN) |
               (senders[index(node)].is_done() ? 0 : POLLOUT);
    };
    const auto move = [&] {
        std::size_t moved = 0;
        for (int node = 0; node < size(); ++node) {
            moved += receivers[index(node)].advance();
            moved += senders[index(node)].advance(kAll, kAll);
        }
        return moved > 0;
    };
    move_until_over([&](int node) { return events_of(node) != 0; }, events_of, move);
}

}  // namespace phalanx
