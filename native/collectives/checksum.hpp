// A checksum of what crosses a wire: tcp's own has 16 bits, and not every wire has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/checksum_blocks.hpp"

namespace phalanx {

// Not against an attacker: against bits that changed on their way. A change of one word, or of
// bytes at random, is unseen in about one of 2^64; the same bit changed in two blocks, in one of
// 2^34 or fewer. A block of eight words, one for each lane: a lane adds its word, and apart from
// that the product of the halves of its word xor a key that is another one for each block, so that
// order counts (the core of XXH3, Collet 2019, which adds a neighbour's word to the product
// instead). 42 GB/s with 512-bit vectors, 31 GB/s with 256 (second cache).
class Checksum {
  public:
    // Pieces may be of any size; only the bytes in their order count.
    void add(std::span<const std::byte> bytes) noexcept;
    [[nodiscard]] std::uint64_t value() const noexcept;

  private:
    ChecksumLanes lanes_;
    std::array<std::byte, kChecksumBlock> block_{};
    std::size_t held_ = 0;
    std::uint64_t size_ = 0;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept;

// What to say of a peer whose bytes do not have the sum that it has made of them: it was made as
// they were sent, so a thread of the peer that writes to them meanwhile looks like a bad wire.
inline constexpr const char* kWrongSum =
    "its data was damaged or cut short on the way, or changed while it was being sent: x must stay "
    "as it is until the operation is over";

}  // namespace phalanx
