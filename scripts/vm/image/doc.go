// Package image makes the initial file system of a guest: a cpio archive of the
// "newc" kind (Documentation/driver-api/early-userspace/buffer-format.rst) that
// the kernel unpacks into memory.
//
// A [Builder] takes files from memory and programs from this machine, each with
// the shared libraries that ldd names. Paths are as on a Debian with a merged
// /usr: /bin, /sbin, /lib and /lib64 lead into /usr, whatever path a file is
// added by. The same files in the same order make the same bytes.
package image
