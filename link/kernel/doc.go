// Package kernel has what both sides of the daemon, the TAP and the HCAs, and its shells ask of Linux and what neither
// the standard library nor a kept library has: notifications and lists by netlink, network namespaces, descriptors, private
// files.
package kernel
