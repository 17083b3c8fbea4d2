// Package kernel has what both sides of the daemon, the TAP and the HCAs, ask of Linux and what neither
// the standard library nor a kept library has: notifications by netlink, and network namespaces.
package kernel
