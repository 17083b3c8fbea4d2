// Package bpf has the programs that this project runs in the kernel. It returns descriptors as
// ints, which the caller owns.
package bpf
