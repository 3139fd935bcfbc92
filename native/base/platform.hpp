// Select the system calls: Linux's own, or portable Unix calls. The portable calls are for macOS;
// PHALANX_PORTABLE (a CMake option) selects them on Linux too, so that they are tested. Only .cpp
// files of PHALANX_SYSTEM_SOURCES (CMakeLists.txt) may include this header: the tests link both
// variants with the same other files.
#pragma once

#if defined(__linux__) && !defined(PHALANX_PORTABLE)
#define PHALANX_LINUX 1
#else
#define PHALANX_LINUX 0
#endif
