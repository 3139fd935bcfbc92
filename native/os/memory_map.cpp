// Map memory and make memory files.
#include "os/memory_map.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/platform.hpp"

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

#if PHALANX_LINUX

Fd make_memory_file(const char* name) {
    Fd file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file) throw SystemError("cannot make a memory file", errno);
    // The kernel creates the file with mode 0777; only /proc/PID/fd would keep other users out.
    if (::fchmod(file.get(), 0600) != 0) throw SystemError("cannot close a memory file", errno);
    return file;
}

void keep_size(int fd) {
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        throw SystemError("cannot keep a memory file's size", errno);
    }
}

#else

// The memory has a name for some microseconds, of at most 31 characters (macOS).
Fd make_memory_file(const char*) {
    auto number = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    while (true) {
        const std::string path =
            "/phx" + std::to_string(::getpid()) + "." + std::to_string(number++ & 0xFFFF'FFFFU);
        Fd file(::shm_open(path.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
        if (!file && errno == EEXIST) continue;
        if (!file) throw SystemError("cannot make shared memory", errno);
        ::shm_unlink(path.c_str());
        if (::fcntl(file.get(), F_SETFD, FD_CLOEXEC) != 0) {
            throw SystemError("cannot keep shared memory from other programs", errno);
        }
        return file;
    }
}

void keep_size(int) {}  // macOS sets the size of shared memory only once

#endif

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
#if PHALANX_LINUX
    if (end > begin &&
        ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(end - begin)) != 0) {
        throw SystemError("cannot give back " + std::to_string(end - begin) + " bytes of memory",
                          errno);
    }
#endif
}

}  // namespace phalanx
