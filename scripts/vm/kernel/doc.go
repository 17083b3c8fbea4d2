// Package kernel gets Debian's kernels for the guests of tests: nothing is
// installed, and nothing of this machine's own kernel is used.
//
// [Get] takes the newest generic kernel of a [Series] that apt offers (neither
// cloud, which has no rxe, nor rt nor unsigned), downloads its package, unpacks
// it and keeps two things of it in the cache:
//
//   - vmlinux, the ELF file within the bzImage (Documentation/arch/x86/boot.rst:
//     payload_offset, payload_length). QEMU boots that one by its PVH entry,
//     without firmware, in half the time;
//   - the modules that guests need, unpacked, in the order in which they load.
//
// The archive drops old versions, so none is named here. Where the download
// fails the package lists are renewed once; where that fails too, the newest
// kernel of the series in the cache serves.
//
// A folder of the cache is named after package, version and list of modules,
// and appears whole (by rename); older ones of the series then go. A lock keeps
// two test runs from downloading the same.
package kernel
