// Package kernel gets Debian's kernels for the guests of tests. It installs
// nothing, and does not use this machine's own kernel.
//
// [Get] downloads the package of the newest generic kernel of a [Build] that apt
// offers (not cloud, which lacks rxe, nor rt nor unsigned), unpacks it and caches
// two parts of it:
//
//   - vmlinux: on arm64 the Image; on amd64 the ELF file within the bzImage (Documentation/arch/x86/boot.rst:
//     payload_offset, payload_length). QEMU boots it by its PVH entry, without
//     firmware, in half the time;
//   - the modules that guests need, unpacked, in loading order;
//   - those for InfiniBand, in the same way, which only some tests load.
//
// [BuildModule] compiles a module that Debian does not have with Debian's headers for the kernel, which the cache also
// holds, unpacked, 90 MB for each series. The module is cached by its source.
//
// The archive drops old versions, so this package names no version. If the download
// fails, it updates the package lists once and retries; if that fails too, it uses
// the newest kernel of the build in the cache. The package lists of another architecture
// are in the cache as well.
//
// A folder of the cache is named after package, version and list of modules. It is complete when it appears (by
// rename); older folders of the build are then removed. The same holds for headers and for compiled modules. A lock
// prevents two test runs from downloading the same kernel.
package kernel
