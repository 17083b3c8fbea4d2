//go:build ignore

/* Selects the queue of a TAP for a frame from the host (TUNSETSTEERINGEBPF). All frames of a
 * flow use the same queue, so they stay in order and form long trains. */
#include "common.h"

#define ETHER_TYPE 12
#define ETHER_LEN 14
#define TYPE_IPV4 0x0800
#define TYPE_IPV6 0x86dd

/* The number of queues to use: the first ones, in the order in which they were attached. A
 * process that attaches a further queue later gets no frames. */
volatile const __u32 queues = 1;

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

static __always_inline __u32 ipv4(struct __sk_buff *skb)
{
	struct ipv4 ip;
	__u32 hash;

	if (bpf_skb_load_bytes(skb, ETHER_LEN, &ip, sizeof(ip)))
		return 0;
	hash = mix(mix(0, ip.addrs[0]), ip.addrs[1]);
	/* Only the first fragment has ports. */
	if (!(ip.fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET)))
		hash = transport(skb, hash, ip.protocol, ETHER_LEN + (ip.version_ihl & 0xf) * 4);
	return finish(hash);
}

/* ipv6 does not parse extension headers: the flow of a packet with one is identified only by
 * its addresses. That includes all fragments. */
static __always_inline __u32 ipv6(struct __sk_buff *skb)
{
	struct ipv6 ip;
	__u32 hash = 0;

	if (bpf_skb_load_bytes(skb, ETHER_LEN, &ip, sizeof(ip)))
		return 0;
#pragma unroll
	for (int i = 0; i < 8; i++)
		hash = mix(hash, ip.addrs[i]);
	switch (ip.next) {
	case 0:  /* hop-by-hop options */
	case 43: /* routing */
	case PROTO_FRAGMENT:
	case 51: /* authentication header */
	case 60: /* destination options */
		return finish(hash);
	}
	return finish(transport(skb, hash, ip.next, ETHER_LEN + sizeof(ip)));
}

/* The kernel takes the result modulo the number of attached queues. */
SEC("socket")
int steer(struct __sk_buff *skb)
{
	__u32 hash = 0;
	__be16 type;

	if (queues <= 1 || bpf_skb_load_bytes(skb, ETHER_TYPE, &type, sizeof(type)))
		return 0;
	if (type == bpf_htons(TYPE_IPV4))
		hash = ipv4(skb);
	else if (type == bpf_htons(TYPE_IPV6))
		hash = ipv6(skb);
	return (__u64)hash * queues >> 32;
}

char _license[] SEC("license") = "GPL";
