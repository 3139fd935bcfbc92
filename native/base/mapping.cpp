// mmap and its errors.
#include "base/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace phalanx {

Mapping::Mapping(void* data, std::size_t nbytes)
    : data_(static_cast<std::byte*>(data)), size_(nbytes) {
    if (data == MAP_FAILED) {
        data_ = nullptr;
        throw SystemError("cannot map " + std::to_string(nbytes) + " bytes of memory", errno);
    }
}

Mapping::Mapping(int fd, std::size_t nbytes, Access access)
    : Mapping(::mmap(nullptr, nbytes, access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE,
                     MAP_SHARED, fd, 0),
              nbytes) {}

Mapping Mapping::anonymous(std::size_t nbytes) {
    return {::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
            nbytes};
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this != &other) {
        reset();
        data_ = std::exchange(other.data_, nullptr);
        size_ = std::exchange(other.size_, 0);
    }
    return *this;
}

void Mapping::reset() noexcept {
    if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(size_, 0));
}

std::size_t file_size(int fd) {
    struct stat status{};
    if (::fstat(fd, &status) != 0) {
        throw SystemError("cannot look at descriptor " + std::to_string(fd), errno);
    }
    return status.st_size > 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

void grow_file(int fd, std::size_t nbytes) {
    if (file_size(fd) >= nbytes) return;
    if (::ftruncate(fd, static_cast<off_t>(nbytes)) != 0) {
        throw SystemError(
            "cannot size a shared memory file to " + std::to_string(nbytes) + " bytes", errno);
    }
}

void punch_file([[maybe_unused]] int fd, [[maybe_unused]] std::size_t begin,
                [[maybe_unused]] std::size_t end) {
#ifdef FALLOC_FL_PUNCH_HOLE
    if (end > begin &&
        ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(end - begin)) != 0) {
        throw SystemError("cannot give back " + std::to_string(end - begin) + " bytes of memory",
                          errno);
    }
#endif
}

}  // namespace phalanx
