/* The flow of a packet: its addresses, protocol and ports. All packets of a flow use the same queue of a TAP, so they stay
 * in order. */
#ifndef IPOIBD_BPF_FLOW_H
#define IPOIBD_BPF_FLOW_H

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "common.h"

/* Hashes of a flow, and of its addresses alone. They are equal if the ports of a packet are not known. */
struct flow {
	__u32 hash, pair;
	__u32 l4;       /* offset of the transport header; 0: not known, or a fragment */
	__u8 protocol;
};

/* mix adds a word to a hash (MurmurHash3). */
static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	word *= 0xcc9e2d51;
	word = word << 15 | word >> 17;
	hash ^= word * 0x1b873593;
	hash = hash << 13 | hash >> 19;
	return hash * 5 + 0xe6546b64;
}

/* finish makes each bit of the hash depend on all words. */
static __always_inline __u32 finish(__u32 hash)
{
	hash = (hash ^ hash >> 16) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

/* transport adds the protocol and, if it has ports, the ports. */
static __always_inline __u32 transport(struct __sk_buff *skb, __u32 hash, __u8 protocol, __u32 offset)
{
	__be32 ports;

	hash = mix(hash, protocol);
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		if (!bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)))
			hash = mix(hash, ports);
	}
	return hash;
}

static __always_inline struct flow flow_ipv4(struct __sk_buff *skb, __u32 at)
{
	struct flow f = {};
	struct iphdr ip;
	__u32 hash;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return f;
	hash = mix(mix(0, ip.saddr), ip.daddr);
	f.hash = f.pair = finish(hash);
	/* Only the first fragment has ports. */
	if (!(ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET))) {
		f.l4 = at + ip.ihl * 4;
		f.protocol = ip.protocol;
		f.hash = finish(transport(skb, hash, ip.protocol, f.l4));
	}
	return f;
}

/* flow_ipv6 does not parse extension headers: the flow of a packet with one is identified only by
 * its addresses. That includes all fragments. */
static __always_inline struct flow flow_ipv6(struct __sk_buff *skb, __u32 at)
{
	struct flow f = {};
	struct ipv6hdr ip;
	__u32 hash = 0;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return f;
#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = mix(hash, ip.saddr.s6_addr32[i]);
#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = mix(hash, ip.daddr.s6_addr32[i]);
	f.hash = f.pair = finish(hash);
	switch (ip.nexthdr) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_AH:
	case IPPROTO_DSTOPTS:
		return f;
	}
	f.l4 = at + sizeof(ip);
	f.protocol = ip.nexthdr;
	f.hash = finish(transport(skb, hash, ip.nexthdr, f.l4));
	return f;
}

/* flow_of returns the flow of the packet at an offset, by its Ethernet type. */
static __always_inline struct flow flow_of(struct __sk_buff *skb, __be16 type, __u32 at)
{
	struct flow none = {};

	if (type == bpf_htons(ETH_P_IP))
		return flow_ipv4(skb, at);
	if (type == bpf_htons(ETH_P_IPV6))
		return flow_ipv6(skb, at);
	return none;
}

#endif
