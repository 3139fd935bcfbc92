// Memory mapped from a descriptor, or anonymous, unmapped by its owner.
#pragma once

#include <cstddef>

#include "base/fd.hpp"

namespace phalanx {

enum class Access { kRead, kReadWrite };

class Mapping {
  public:
    Mapping() noexcept = default;
    // The first nbytes of fd, shared with everyone who maps them.
    Mapping(int fd, std::size_t nbytes, Access access);
    static Mapping anonymous(std::size_t nbytes);
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() { reset(); }

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    void reset() noexcept;

  private:
    Mapping(void* data, std::size_t nbytes);
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

// Memory with no name in any file system, of no bytes yet; closed on exec.
Fd make_memory_file(const char* name);
// Nobody can shrink it from now on, where the system sees to that: a peer that reads beyond the end
// would get SIGBUS.
void keep_size(int fd);
// Bytes in the file behind fd; throws where fd is not open.
std::size_t file_size(int fd);
// Makes the file at least nbytes long.
void grow_file(int fd, std::size_t nbytes);
// Returns the pages of [begin, end) to the system; whoever maps them reads zeros from then on.
// (Linux; elsewhere they stay as they are until nobody maps them.)
void punch_file(int fd, std::size_t begin, std::size_t end);

}  // namespace phalanx
