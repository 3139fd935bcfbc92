// A fuzzer's bytes as choices; the same bytes are the same choices (supply.py does this in Python).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace phalanx::fuzz {

class Supply {
  public:
    explicit Supply(std::span<const std::uint8_t> data) : data_(data) {}

    [[nodiscard]] bool is_over() const noexcept { return data_.empty(); }
    std::uint8_t byte() noexcept {
        if (data_.empty()) return 0;
        const std::uint8_t first = data_.front();
        data_ = data_.subspan(1);
        return first;
    }
    std::uint64_t below(std::uint64_t limit) noexcept { return byte() % limit; }
    // Any number, from as many bytes.
    template <class T>
    T number() noexcept {
        T value{};
        const auto size = std::min(sizeof value, data_.size());
        std::memcpy(&value, data_.data(), size);
        data_ = data_.subspan(size);
        return value;
    }
    std::vector<std::byte> bytes(std::size_t most) {
        const auto size = std::min<std::size_t>({byte(), most, data_.size()});
        std::vector<std::byte> taken(size);
        if (size > 0) std::memcpy(taken.data(), data_.data(), size);
        data_ = data_.subspan(size);
        return taken;
    }
    // The same with some bits turned, and perhaps cut short.
    void edit(std::vector<std::byte>& bytes) {
        for (auto edits = below(4); edits > 0 && !bytes.empty(); --edits) {
            const std::size_t at = number<std::uint16_t>() % bytes.size();
            bytes[at] ^= static_cast<std::byte>(byte());
        }
        if (below(4) == 3) bytes.resize(number<std::uint16_t>() % (bytes.size() + 1));
    }

  private:
    std::span<const std::uint8_t> data_;
};

}  // namespace phalanx::fuzz
