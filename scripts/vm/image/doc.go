// Package image creates the initial file system of a guest: a cpio archive of the
// "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst), which
// the kernel unpacks into memory.
//
// A [Builder] adds files from memory and programs from this machine, each with the
// shared libraries that ldd lists. The image has a merged /usr, as Debian has: /bin,
// /sbin, /lib and /lib64 are links into /usr, no matter by which path a file is
// added. The same files in the same order result in the same bytes.
package image
