// A link kept in the arena; see memory_link.hpp for why it is right.
#include <algorithm>
#include <cstring>

#include "transport/memory_link.hpp"

namespace phalanx {

namespace {

class ArenaLink final : public Link {
  public:
    ArenaLink(int peer, std::span<std::byte> own, std::span<const std::byte> theirs, Doorbell* bell,
              std::uint64_t epoch)
        : Link(peer),
          own_(reinterpret_cast<ArenaHalf*>(own.data())),
          theirs_(reinterpret_cast<const ArenaHalf*>(theirs.data())),
          capacity_(own.size() - ArenaHalf::kOverhead),
          bell_(bell),
          epoch_(epoch),
          head_(own_->head.load(std::memory_order_relaxed)),
          tail_(own_->tail.load(std::memory_order_relaxed)) {}

    [[nodiscard]] bool has_ended() noexcept override {
        return theirs_->ended_epoch.load(std::memory_order_acquire) == epoch_;
    }
    // seq_cst, against the doorbell's: one of producer and sleeper sees the other.
    [[nodiscard]] bool can_send() noexcept override {
        return head_ - theirs_->tail.load(std::memory_order_seq_cst) != capacity_;
    }
    [[nodiscard]] bool can_recv() noexcept override {
        return theirs_->head.load(std::memory_order_seq_cst) != tail_;
    }

  protected:
    std::size_t do_send(std::span<const std::byte> bytes) override {
        const std::uint64_t consumed = theirs_->tail.load(std::memory_order_acquire);
        if (consumed > head_ || head_ - consumed > capacity_) lose("its queue is corrupt");
        const auto size = std::min<std::uint64_t>(bytes.size(), capacity_ - (head_ - consumed));
        const auto at = head_ % capacity_;
        const auto first = static_cast<std::size_t>(std::min(size, capacity_ - at));
        std::copy_n(bytes.data(), first, own_->data + at);
        std::copy_n(bytes.data() + first, static_cast<std::size_t>(size) - first, own_->data + 0);
        head_ += size;
        own_->head.store(head_, std::memory_order_seq_cst);
        if (size > 0 && bell_ != nullptr) bell_->ring_if_sleeping();
        return static_cast<std::size_t>(size);
    }

    std::size_t do_recv(std::span<std::byte> bytes) override {
        // The end is looked at first: what was produced before it is then all visible.
        const bool is_at_end = has_ended();
        const std::uint64_t produced = theirs_->head.load(std::memory_order_acquire);
        if (produced < tail_ || produced - tail_ > capacity_) lose("its queue is corrupt");
        const auto size = std::min<std::uint64_t>(bytes.size(), produced - tail_);
        if (size == 0 && !bytes.empty() && is_at_end) lose(kClosedThere);
        const auto at = tail_ % capacity_;
        const auto first = static_cast<std::size_t>(std::min(size, capacity_ - at));
        std::copy_n(theirs_->data + at, first, bytes.data());
        std::copy_n(theirs_->data + 0, static_cast<std::size_t>(size) - first,
                    bytes.data() + first);
        tail_ += size;
        own_->tail.store(tail_, std::memory_order_seq_cst);
        if (size > 0 && bell_ != nullptr) bell_->ring_if_sleeping();
        return static_cast<std::size_t>(size);
    }

    void do_finish() noexcept override {
        own_->ended_epoch.store(epoch_, std::memory_order_seq_cst);
        if (bell_ != nullptr) bell_->ring();
    }

  private:
    ArenaHalf* own_;
    const ArenaHalf* theirs_;
    std::uint64_t capacity_;
    Doorbell* bell_;
    std::uint64_t epoch_;
    std::uint64_t head_;
    std::uint64_t tail_;
};

}  // namespace

void reset_arena_half(std::span<std::byte> own) {
    auto* half = reinterpret_cast<ArenaHalf*>(own.data());
    half->head.store(0, std::memory_order_seq_cst);
    half->ended_epoch.store(0, std::memory_order_seq_cst);
    half->tail.store(0, std::memory_order_seq_cst);
}

std::unique_ptr<Link> make_arena_link(int peer, std::span<std::byte> own,
                                      std::span<const std::byte> theirs, Doorbell* bell,
                                      std::uint64_t epoch) {
    if (own.size() != theirs.size() || own.size() <= ArenaHalf::kOverhead) {
        throw UsageError("the two halves of a queue in the arena must be equal and not empty");
    }
    return std::make_unique<ArenaLink>(peer, own, theirs, bell, epoch);
}

}  // namespace phalanx
