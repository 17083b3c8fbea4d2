/* The ICRC, and the checksums of IP, TCP and UDP. */
#ifndef IPOIBD_BPF_CHECKSUM_H
#define IPOIBD_BPF_CHECKSUM_H

#include "fast.h"

volatile const __u32 crc_table[16][256]; /* CRC-32 (IEEE 802.3) by slices of sixteen bytes */

/* crc_word returns what a word adds to the CRC if n bytes of the slice are behind it. The first word of a slice includes the CRC
 * of what is in front. */
static __always_inline __u32 crc_word(__u32 word, __u32 n)
{
	return crc_table[n + 3][word & 0xff] ^ crc_table[n + 2][word >> 8 & 0xff] ^ crc_table[n + 1][word >> 16 & 0xff] ^
	       crc_table[n][word >> 24];
}

/* icrc returns the ICRC of a packet whose fields that routers may change are ones. It ends in front of its ICRC, at end. The
 * verifier examines a global function once: inlined, the loop took it a third of the steps that it permits. */
__noinline __u32 icrc(struct scratch *s, __u32 ipv6, __u32 end)
{
	__u32 crc = ~0u, at = AT_IPV4 - LRH_LEN;
	const __u8 *b;

	if (!s)
		return 0;
	b = s->b;
	if (ipv6) {
		crc = crc_word(crc ^ *(__u32 *)(b + AT_IPV6 - LRH_LEN), 0);
		at = AT_IPV6 - LRH_LEN + 4;
	}
	for (; at + 16 <= MAX_END; at += 16) {
		const __u32 *word = (void *)(b + at);

		if (at + 16 > end)
			break;
		crc = crc_word(crc ^ word[0], 12) ^ crc_word(word[1], 8) ^ crc_word(word[2], 4) ^ crc_word(word[3], 0);
	}
	for (; at + 4 <= MAX_END; at += 4) {
		if (at + 4 > end)
			break;
		crc = crc_word(crc ^ *(__u32 *)(b + at), 0);
	}
	return ~crc;
}

/* fold returns a sum of 16-bit words in ones' complement. */
static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* sum_of returns the sum of n bytes, a multiple of 4 and less than SUM_ROOM, or a negative error. */
#define SUM_ROOM 512
#define sum_of(p, n) bpf_csum_diff(0, 0, (__be32 *)(p), n, 0)

/* pseudo_sum returns the folded sum of the pseudo header of an outer datagram, or a negative error. */
static __always_inline __s64 pseudo_sum(const __u8 *b, __be16 family, __u32 end)
{
	__s64 addrs = family == bpf_htons(ETH_P_IPV6) ? sum_of(b + AT_IPV6 + 8, 2 * ADDR_LEN) : sum_of(b + AT_IPV4 + 12, 8);

	return addrs < 0 ? addrs : fold((__u64)addrs + bpf_htons(IPPROTO_UDP) + bpf_htons(end - AT_UDP));
}

/* udp_sum returns the folded sum of an outer datagram, with its checksum: all ones if that is right. It returns
 * a negative error. */
static __always_inline __s64 udp_sum(const __u8 *b, __be16 family, __u32 end)
{
	__s64 pseudo = pseudo_sum(b, family, end), headers, rest;

	headers = sum_of(b + AT_UDP, AT_PACKET - AT_UDP);
	rest = sum_of(b + AT_PACKET, bounded(end - AT_PACKET, SUM_ROOM));
	if (pseudo < 0 || headers < 0 || rest < 0)
		return -1;
	return fold((__u64)pseudo + headers + rest);
}

/* complete fills in the checksum of TCP or UDP at l4 if it is partial: then it is the sum of the pseudo header alone.
 * There are zeros behind the n bytes. */
static __always_inline int complete(__u8 *l4, __u32 check, __s64 addrs, __u8 protocol, __u32 n)
{
	__u16 *field = (__u16 *)(l4 + check);
	__u32 pseudo, sum;
	__s64 all;

	if (addrs < 0)
		return -1;
	pseudo = fold((__u64)addrs + bpf_htons(protocol) + bpf_htons(n));
	if (*field != pseudo)
		return 0;
	all = sum_of(l4, bounded(n + 3, SUM_ROOM) & ~3u);
	if (all < 0)
		return -1;
	sum = ~fold(all) & 0xffff;
	*field = sum ? sum : 0xffff;
	return 0;
}

/* complete_packet does the same for a packet of n bytes that can be carried. */
static __always_inline int complete_packet(__u8 *p, __be16 type, __u32 n)
{
	__u8 protocol;

	if (type == bpf_htons(ETH_P_IP)) {
		protocol = p[9];
		if (protocol == IPPROTO_TCP)
			return complete(p + IPV4_LEN, 16, sum_of(p + 12, 8), IPPROTO_TCP, n - IPV4_LEN);
		if (protocol == IPPROTO_UDP)
			return complete(p + IPV4_LEN, 6, sum_of(p + 12, 8), IPPROTO_UDP, n - IPV4_LEN);
		return 0;
	}
	protocol = p[6];
	if (protocol == IPPROTO_TCP)
		return complete(p + IPV6_LEN, 16, sum_of(p + 8, 2 * ADDR_LEN), IPPROTO_TCP, n - IPV6_LEN);
	if (protocol == IPPROTO_UDP)
		return complete(p + IPV6_LEN, 6, sum_of(p + 8, 2 * ADDR_LEN), IPPROTO_UDP, n - IPV6_LEN);
	return 0;
}

#endif
