/* The flow of a packet: its addresses, protocol and ports. All packets of a flow use the same queue of a TAP, so they stay
 * in order. */
#ifndef IPOIBD_BPF_FLOW_H
#define IPOIBD_BPF_FLOW_H

#include "common.h"

#define TYPE_IPV4 0x0800
#define TYPE_IPV6 0x86dd

struct ipv4 {
	__u8 version_ihl, tos;
	__be16 len, id, fragment;
	__u8 ttl, protocol;
	__be16 check;
	__be32 addrs[2];
};

struct ipv6 {
	__be32 version;
	__be16 len;
	__u8 next, hops;
	__be32 addrs[8];
};

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
	case PROTO_TCP:
	case PROTO_UDP:
	case PROTO_DCCP:
	case PROTO_SCTP:
	case PROTO_UDPLITE:
		if (!bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)))
			hash = mix(hash, ports);
	}
	return hash;
}

static __always_inline struct flow flow_ipv4(struct __sk_buff *skb, __u32 at)
{
	struct flow f = {};
	struct ipv4 ip;
	__u32 hash;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return f;
	hash = mix(mix(0, ip.addrs[0]), ip.addrs[1]);
	f.hash = f.pair = finish(hash);
	/* Only the first fragment has ports. */
	if (!(ip.fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET))) {
		f.l4 = at + (ip.version_ihl & 0xf) * 4;
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
	struct ipv6 ip;
	__u32 hash = 0;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return f;
#pragma unroll
	for (int i = 0; i < 8; i++)
		hash = mix(hash, ip.addrs[i]);
	f.hash = f.pair = finish(hash);
	switch (ip.next) {
	case 0:  /* hop-by-hop options */
	case 43: /* routing */
	case PROTO_FRAGMENT:
	case 51: /* authentication header */
	case 60: /* destination options */
		return f;
	}
	f.l4 = at + sizeof(ip);
	f.protocol = ip.next;
	f.hash = finish(transport(skb, hash, ip.next, f.l4));
	return f;
}

/* flow_of returns the flow of the packet at an offset, by its Ethernet type. */
static __always_inline struct flow flow_of(struct __sk_buff *skb, __be16 type, __u32 at)
{
	struct flow none = {};

	if (type == bpf_htons(TYPE_IPV4))
		return flow_ipv4(skb, at);
	if (type == bpf_htons(TYPE_IPV6))
		return flow_ipv6(skb, at);
	return none;
}

#endif
