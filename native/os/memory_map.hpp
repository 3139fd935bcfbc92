// Own a memory mapping, of a descriptor or anonymous.
#pragma once

#include <cstddef>

#include "os/descriptors.hpp"

namespace phalanx {

enum class Access { kRead, kReadWrite };

class Mapping {
  public:
    Mapping() noexcept = default;
    // Maps the first nbytes of fd, shared with all processes that map them.
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

// Make memory without a file system name, of 0 bytes, closed on exec.
Fd make_memory_file(const char* name);
// Forbid all processes to shrink the file, if the system supports that: a peer that reads beyond
// the end would get SIGBUS.
void keep_size(int fd);
// Bytes in the file of fd; throws if fd is not open.
std::size_t file_size(int fd);
// Make the file at least nbytes long.
void grow_file(int fd, std::size_t nbytes);
// Return the pages of [begin, end) to the system; all mappings read zeros from then on. (Linux
// only; elsewhere the pages stay until no process maps them.)
void punch_file(int fd, std::size_t begin, std::size_t end);

}  // namespace phalanx
