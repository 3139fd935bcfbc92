// The memory that the ranks of one host share: one region per slot. A rank writes only its own
// region and reads its peers'. What the bytes mean is the business of the collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mapping.hpp"

namespace phalanx {

// Concurrency: immutable after construction; the bytes in the regions have their own rules
// (collectives/host_team.hpp, transport/memory_link.hpp). Each region is divided into kChannels
// parts of equal size, so that a group and its splits, which may be at work at the same time, do
// not touch each other. A part holds the memory of the collectives and then a queue for each slot
// of the host: what its owner sends to the rank there, and how much it has taken of what comes.
class Arena {
  public:
    static constexpr int kChannels = 32;
    static constexpr std::size_t kHeaderBytes = 4096;
    // A message of 64 KiB with its header and the queue's counters.
    static constexpr std::size_t kQueueBytes = std::size_t{68} << 10;
    // A channel: 4 MiB for two staged chunks of 1 MiB and two results, and queues to 64 slots.
    // Pages cost nothing until they are used.
    static constexpr std::size_t kDefaultBytes =
        kHeaderBytes + kChannels * ((std::size_t{4} << 20) + 64 * kQueueBytes);

    static void format(int fd, std::size_t nbytes);
    // Returns the memory of a region whose rank is dead to the system, though its peers map it. It
    // stays a region. The rank's epoch must have been aborted: a peer that reads there now looks at
    // that after its last read, and checks what it takes for a counter before it follows it.
    static void give_back(int fd);

    Arena(std::span<const int> fds, int own);
    // Arenas for `slots` ranks that are threads of this process, over the very same addresses, so
    // that a thread sanitizer can judge the protocol.
    static std::vector<std::unique_ptr<Arena>> in_process(int slots, std::size_t nbytes);

    [[nodiscard]] int slots() const noexcept { return static_cast<int>(regions_.size()); }
    [[nodiscard]] int own() const noexcept { return own_; }
    [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
    // Of the collectives' part of a channel.
    [[nodiscard]] std::size_t channel_nbytes() const noexcept;
    [[nodiscard]] std::span<std::byte> own_channel(int channel) const;
    [[nodiscard]] std::span<const std::byte> channel(int slot, int channel) const;
    // The half of the queue between two slots that this rank writes, and the one that `slot` does.
    // Never more than half of a channel: many slots have smaller queues.
    [[nodiscard]] std::size_t queue_nbytes() const noexcept;
    [[nodiscard]] std::span<std::byte> own_queue(int channel, int peer_slot) const;
    [[nodiscard]] std::span<const std::byte> queue_of(int slot, int channel) const;

  private:
    Arena() = default;
    [[nodiscard]] std::size_t stride() const noexcept;
    [[nodiscard]] std::byte* at(int slot, int channel) const;
    [[nodiscard]] std::byte* queue_at(int slot, int channel, int peer_slot) const;

    std::vector<std::shared_ptr<Mapping>> regions_;
    std::size_t nbytes_ = 0;  // of the smallest region: the same on every rank
    int own_ = 0;
};

}  // namespace phalanx
