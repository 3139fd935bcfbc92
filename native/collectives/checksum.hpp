// A checksum of what crosses a wire: tcp's own has 16 bits, and not every wire has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace phalanx {

// Not against an attacker: against bits that changed on their way. Four lanes; each takes a word by
// xor, a multiplication with an odd number, which mixes upwards, and a shift down, all bijections
// of the lane: a change within one word is always seen, and any other but for about one in 2^64.
// The multiplications of the lanes overlap: some 12 GB/s in plain C++.
class Checksum {
  public:
    // Pieces may be of any size; only the bytes in their order count.
    void add(std::span<const std::byte> bytes) noexcept;
    [[nodiscard]] std::uint64_t value() const noexcept;

  private:
    static constexpr std::size_t kBlock = 32;
    void take(const std::byte* block) noexcept;

    std::array<std::uint64_t, 4> lanes_{1, 2, 3, 4};
    std::array<std::byte, kBlock> block_{};
    std::size_t held_ = 0;
    std::uint64_t size_ = 0;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept;

}  // namespace phalanx
