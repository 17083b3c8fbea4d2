/* Definitions that the programs share. They are built with Debian's clang 14 and the headers
 * of linux-libc-dev and libbpf-dev. They read no field of a kernel structure by its offset, so
 * they do not need the BTF of the running kernel. */
#ifndef IPOIBD_BPF_COMMON_H
#define IPOIBD_BPF_COMMON_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_TYPE 12 /* offset of the type in an Ethernet header */

/* Flags and offset of a fragment (RFC 791, section 3.1). */
#define IP_DONT_FRAGMENT 0x4000
#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET 0x1fff

/* bucket returns the bucket of a value in a histogram: 0 for the value 0, n for the values
 * 2^(n-1) to 2^n-1. Larger values share the last bucket. */
static __always_inline __u64 bucket(__u64 value, __u64 buckets)
{
	__u64 n = 0;

	for (int bits = 16; bits; bits /= 2) {
		if (value >> bits) {
			n += bits;
			value >>= bits;
		}
	}
	n += value;
	barrier_var(n); /* the compiler must not lose the bound that the verifier sees next */
	return n < buckets ? n : buckets - 1;
}

#endif
