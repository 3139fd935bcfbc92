// Implement links between threads: two bounded pipes, each under a lock.
#include "memory_link.hpp"

#include <algorithm>
#include <deque>
#include <mutex>

namespace phalanx {

namespace {

struct Pipe {
    std::mutex mutex;
    std::deque<std::byte> bytes;
    bool has_ended = false;
};

class MemoryLink final : public Link {
  public:
    MemoryLink(int peer, std::size_t capacity, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in,
               std::shared_ptr<LinkFaults> faults)
        : Link(peer),
          capacity_(capacity),
          out_(std::move(out)),
          in_(std::move(in)),
          faults_(std::move(faults)) {}
    ~MemoryLink() override {
        do_finish();
        const std::lock_guard lock(in_->mutex);
        in_->has_ended = true;
    }

    [[nodiscard]] bool has_ended() noexcept override {
        const std::lock_guard lock(in_->mutex);
        return in_->has_ended || faults_->is_broken;
    }

  protected:
    std::size_t do_send(Parts parts) override {
        const auto bytes = first_of(parts);
        if (faults_->is_broken) lose(kClosedThere);
        const std::lock_guard lock(out_->mutex);
        if (out_->has_ended) lose(kClosedThere);
        const auto room = std::min(bytes.size(), capacity_ - out_->bytes.size());
        const auto size = spend(limit(room));
        out_->bytes.insert(out_->bytes.end(), bytes.begin(),
                           bytes.begin() + static_cast<std::ptrdiff_t>(size));
        return size;
    }
    std::size_t do_recv(std::span<std::byte> bytes, std::span<std::byte> more) override {
        if (bytes.empty()) bytes = more;
        if (faults_->is_broken) lose(kClosedThere);
        const std::lock_guard lock(in_->mutex);
        const auto size = limit(std::min(bytes.size(), in_->bytes.size()));
        const auto end = in_->bytes.begin() + static_cast<std::ptrdiff_t>(size);
        std::copy(in_->bytes.begin(), end, bytes.begin());
        in_->bytes.erase(in_->bytes.begin(), end);
        if (size == 0 && !bytes.empty() && in_->bytes.empty() && in_->has_ended) {
            lose(kClosedThere);
        }
        return size;
    }
    void do_finish() noexcept override {
        const std::lock_guard lock(out_->mutex);
        out_->has_ended = true;
    }

  private:
    [[nodiscard]] std::size_t limit(std::size_t size) const {
        return std::min(size, faults_->most_per_call.load());
    }
    [[nodiscard]] std::size_t spend(std::size_t size) const {
        std::uint64_t left = faults_->bytes_left;
        while (!faults_->bytes_left.compare_exchange_weak(
            left, left - std::min<std::uint64_t>(size, left))) {
        }
        return static_cast<std::size_t>(std::min<std::uint64_t>(size, left));
    }

    std::size_t capacity_;
    std::shared_ptr<Pipe> out_;
    std::shared_ptr<Pipe> in_;
    std::shared_ptr<LinkFaults> faults_;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_links(
    int rank, int peer, std::size_t capacity, std::shared_ptr<LinkFaults> faults) {
    if (faults == nullptr) faults = std::make_shared<LinkFaults>();
    auto there = std::make_shared<Pipe>();
    auto back = std::make_shared<Pipe>();
    return {std::make_unique<MemoryLink>(peer, capacity, there, back, faults),
            std::make_unique<MemoryLink>(rank, capacity, back, there, faults)};
}

}  // namespace phalanx
