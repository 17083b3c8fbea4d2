// Package arm64 holds the tests of guests with 64-bit ARM processors: whether the eBPF programs, which are compiled once for
// all little-endian machines, load there and do what they do here. `make test-vm` runs them.
package arm64
