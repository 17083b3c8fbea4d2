//go:build ignore

/* The fast path: small unicast frames between a TAP and the underlay of a software HCA, without the
 * daemon. send, at the TAP's egress, makes a RoCEv2 packet of a frame; receive, at the underlay's
 * ingress, makes a frame of a packet. What they do not carry goes to the daemon, unless the kernel has no
 * memory. doc.go describes the conditions. */
#include "common.h"
#include "flow.h"

#define QUEUE_PAIRS 64
#define PEERS 4096
#define LANES 8
#define ADDR_LEN 16
#define MAC_LEN 6
#define FLOWS 1024 /* a power of two, and a multiple of LANES */

/* The longest IP packet that any queue pair may carry. bpf_csum_diff took at most 512 bytes before Linux 6.13, and the
 * packet, its padding and the ICRC are one of its arguments. */
#define MAX_PACKET 504

/* Results of a program at a netdev (linux/pkt_cls.h): TC_ACT_UNSPEC and TC_ACT_SHOT. */
#define NEXT (-1)
#define DROP 2

#define ETHER_LEN 14
#define IPV4_LEN 20
#define IPV6_LEN 40
#define UDP_LEN 8
#define BTH_LEN 12
#define DETH_LEN 8
#define IPOIB_LEN 4
#define ICRC_LEN 4
#define ROCE_PORT 4791
#define UD_SEND_ONLY 0x64 /* IBA 9.2.1 */
#define MIGREQ 0x40       /* the second byte of the BTH: migration request, and the pad count, IBA 9.2 */
#define NUM_MASK 0x00ffffff
#define PSN_MASK 0x00ffffff
#define PROTO_ICMP 1
#define PROTO_ICMP6 58
#define DONT_FRAGMENT 0x4000
#define PACKET_HOST 0 /* linux/if_packet.h */

/* How a frame or a packet ended. In the order of the constants in fast.go. */
enum verdict {
	CARRIED,
	LOST,     /* the kernel had no memory */
	CLOSED,   /* the gate is closed */
	LENGTH,   /* too long, too short, or to be cut */
	KIND,     /* not TCP, UDP or an ICMP echo, or with options or fragments, or of interest to the daemon, or a frame
		   * that the kernel does not let programs change */
	STRANGER, /* not from the TAP's own MAC, or no peer, or one without a route */
	ORDER,    /* an earlier one of the flow may still be on its way through the daemon */
	HEADER,   /* a header that the daemon examines and counts */
	DAMAGED,  /* a checksum or the ICRC is wrong, which the daemon counts */
	VERDICTS,
};

#define CACHE_LINE 64

/* A queue pair. The daemon writes all fields but psn, from which both take numbers. A program reads them between its two
 * changes of running. */
struct fast_qp {
	__u32 open;              /* the gate */
	__u32 netdev, underlay;  /* indexes of the TAP and of the underlay */
	__u32 num, qkey;
	__u32 max;               /* the longest IP packet in a frame, in bytes */
	__u32 psn;               /* of the next packet; the daemon takes numbers too */
	__u32 buckets;           /* of each lane, a power of two; see bucket_of */
	__u16 pkey, lanes;
	__u8 addr[ADDR_LEN];     /* that of the GID; an IPv4 address as IPv6 maps it */
	__u8 mac[MAC_LEN];       /* of the TAP */
	__u16 ports[LANES];      /* UDP source ports, in network order */
	/* Bits of the lanes that have been empty since the gate was added: frames from before were not counted. */
	__u32 tx_ready, rx_ready;
} __attribute__((aligned(CACHE_LINE)));

/* A peer of a queue pair. The daemon writes all but the counts. */
struct fast_peer {
	__u32 open;
	__u32 qp; /* whose peer it is */
	__u32 num, qkey;
	__u8 traffic_class, hop_limit;
	__u8 mac[MAC_LEN];
	__u8 addr[ADDR_LEN];
	__u32 hop_family; /* of the next hop, as in struct bpf_redir_neigh */
	__u8 hop[ADDR_LEN];
	__u64 tx_packets, tx_bytes, rx_packets, rx_bytes;
} __attribute__((aligned(CACHE_LINE)));

struct fast_counts {
	__u64 tx[VERDICTS], rx[VERDICTS];
	__u64 tx_bytes, rx_bytes; /* of the frames carried, from the Ethernet header on */
} __attribute__((aligned(CACHE_LINE)));

/* The daemon maps arrays, and changes hashes by bpf(2). */
#define ARRAY(name, element, n)                         \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_ARRAY);       \
		__uint(map_flags, BPF_F_MMAPABLE);      \
		__uint(max_entries, n);                 \
		__type(key, __u32);                     \
		__type(value, element);                 \
	} name SEC(".maps")
#define HASH(name, from, n)                             \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_HASH);        \
		__uint(max_entries, n);                 \
		__type(key, from);                      \
		__type(value, __u32);                   \
	} name SEC(".maps")

struct target_key {
	__u32 qp;
	__u8 mac[MAC_LEN];
	__u16 zero;
};

struct source_key {
	__u32 qp, num;
	__u8 addr[ADDR_LEN];
};

struct num_key {
	__u32 underlay, num;
};

/* Changes when a program begins and ends on a CPU: it is odd meanwhile. */
struct fast_running {
	__u64 turns;
} __attribute__((aligned(CACHE_LINE)));

/* Of each flow, by bucket_of: how many frames or packets the programs have left to the daemon, and how many of them
 * the daemon has passed on, or believes to be lost. The daemon writes passed. */
struct fast_flows {
	__u32 left[FLOWS], passed[FLOWS];
};

/* The flows of a queue pair. */
struct fast_order {
	struct fast_flows tx, rx;
} __attribute__((aligned(CACHE_LINE)));

/* A RoCEv2 packet. The IPoIB header has a fixed place, whatever the family of the underlay. In front of the IP header
 * are eight bytes of ones, which stand for a local route header in the ICRC (IBA A17.3.3). */
#define AT_IPOIB 80
#define AT_PACKET (AT_IPOIB + IPOIB_LEN)
#define AT_DETH (AT_IPOIB - DETH_LEN)
#define AT_BTH (AT_DETH - BTH_LEN)
#define AT_UDP (AT_BTH - UDP_LEN)
#define AT_IPV4 (AT_UDP - IPV4_LEN)
#define AT_IPV6 (AT_UDP - IPV6_LEN)
#define LRH_LEN 8
#define MAX_END (AT_PACKET + MAX_PACKET + ICRC_LEN)
#define ROOM 1024

struct scratch {
	__u8 b[ROOM + 8]; /* a word behind any place in ROOM */
} __attribute__((aligned(8)));

ARRAY(qps, struct fast_qp, QUEUE_PAIRS);
ARRAY(peers, struct fast_peer, PEERS);
ARRAY(counts, struct fast_counts, QUEUE_PAIRS); /* for each CPU */
ARRAY(running, struct fast_running, 1);         /* for each CPU */
ARRAY(orders, struct fast_order, QUEUE_PAIRS);
HASH(netdevs, __u32, QUEUE_PAIRS);
HASH(nums, struct num_key, QUEUE_PAIRS);
HASH(targets, struct target_key, PEERS);
HASH(sources, struct source_key, PEERS);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

volatile const __u32 crc_table[8][256]; /* CRC-32 (IEEE 802.3) by slices of eight bytes */

struct outer_ipv4 {
	__u8 version_ihl, tos;
	__be16 len, id, fragment;
	__u8 ttl, protocol;
	__be16 check;
	__be32 src, dst;
};

struct outer_ipv6 {
	__be32 version;
	__be16 len;
	__u8 next, hops;
	__u8 src[ADDR_LEN], dst[ADDR_LEN];
};

struct udp {
	__be16 src, dst, len, check;
};

struct bth {
	__u8 opcode, flags;
	__be16 pkey;
	__be32 num, psn;
};

struct deth {
	__be32 qkey, num;
};

struct ipoib {
	__be16 type, zero;
};

/* What a program works with. */
struct work {
	struct __sk_buff *skb;
	struct fast_qp *qp;
	struct scratch *s;
	struct fast_order *order;
	__u32 slot;
};

/* bounded returns a value that is less than n, a power of two. Older verifiers forget such bounds on the
 * way from a comparison to the use of the value. */
static __always_inline __u32 bounded(__u32 value, __u32 n)
{
	barrier_var(value);
	return value & (n - 1);
}

static __always_inline __u32 crc_word(__u32 crc, __u64 word)
{
	__u32 low = crc ^ (__u32)word, high = word >> 32;

	return crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^ crc_table[5][low >> 16 & 0xff] ^
	       crc_table[4][low >> 24] ^ crc_table[3][high & 0xff] ^ crc_table[2][high >> 8 & 0xff] ^
	       crc_table[1][high >> 16 & 0xff] ^ crc_table[0][high >> 24];
}

static __always_inline __u32 crc_half(__u32 crc, __u32 word)
{
	crc ^= word;
	return crc_table[3][crc & 0xff] ^ crc_table[2][crc >> 8 & 0xff] ^ crc_table[1][crc >> 16 & 0xff] ^ crc_table[0][crc >> 24];
}

/* icrc returns the ICRC of a packet whose fields that routers may change are ones. It ends in front of its ICRC, at end. */
static __always_inline __u32 icrc(const __u8 *b, __be16 family, __u32 end)
{
	__u32 crc = ~0u, at = AT_IPV4 - LRH_LEN;

	if (family == bpf_htons(TYPE_IPV6)) {
		crc = crc_half(crc, *(__u32 *)(b + AT_IPV6 - LRH_LEN));
		at = AT_IPV6 - LRH_LEN + 4;
	}
	for (; at + 8 <= MAX_END; at += 8) {
		if (at + 8 > end)
			break;
		crc = crc_word(crc, *(__u64 *)(b + at));
	}
	if (at + 4 <= end && at < MAX_END)
		crc = crc_half(crc, *(__u32 *)(b + at));
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
	__s64 addrs = family == bpf_htons(TYPE_IPV6) ? sum_of(b + AT_IPV6 + 8, 2 * ADDR_LEN) : sum_of(b + AT_IPV4 + 12, 8);

	return addrs < 0 ? addrs : fold((__u64)addrs + bpf_htons(PROTO_UDP) + bpf_htons(end - AT_UDP));
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

static __always_inline int dhcp_port(__be16 port)
{
	return port == bpf_htons(67) || port == bpf_htons(68) || port == bpf_htons(546) || port == bpf_htons(547);
}

/* dhcp reports whether a datagram may be DHCP or DHCPv6, which are the daemon's. */
static __always_inline int dhcp(const __be16 *ports)
{
	return dhcp_port(ports[0]) || dhcp_port(ports[1]);
}

/* transports reports whether the fast path carries a protocol with n bytes. */
static __always_inline int transports(const __u8 *l4, __u8 protocol, __u32 n, __be16 type)
{
	switch (protocol) {
	case PROTO_TCP:
		return n >= 20;
	case PROTO_UDP:
		return n >= UDP_LEN && !dhcp((__be16 *)l4);
	case PROTO_ICMP:
		return type == bpf_htons(TYPE_IPV4) && n >= 8 && (l4[0] == 8 || l4[0] == 0);
	case PROTO_ICMP6:
		return type == bpf_htons(TYPE_IPV6) && n >= 8 && (l4[0] == 128 || l4[0] == 129);
	}
	return 0;
}

/* carried reports whether the fast path carries the IP packet of n bytes: a complete unicast packet without options or
 * fragments. */
static __always_inline int carried(const __u8 *p, __be16 type, __u32 n)
{
	if (type == bpf_htons(TYPE_IPV4)) {
		const struct ipv4 *ip = (void *)p;

		return n >= IPV4_LEN && ip->version_ihl == 0x45 && bpf_ntohs(ip->len) == n &&
		       !(ip->fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET)) && p[16] < 224 &&
		       transports(p + IPV4_LEN, ip->protocol, n - IPV4_LEN, type);
	}
	if (type == bpf_htons(TYPE_IPV6)) {
		const struct ipv6 *ip = (void *)p;

		return n >= IPV6_LEN && p[0] >> 4 == 6 && bpf_ntohs(ip->len) + IPV6_LEN == n && p[24] != 0xff &&
		       transports(p + IPV6_LEN, ip->next, n - IPV6_LEN, type);
	}
	return 0;
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

	if (type == bpf_htons(TYPE_IPV4)) {
		protocol = p[9];
		if (protocol == PROTO_TCP)
			return complete(p + IPV4_LEN, 16, sum_of(p + 12, 8), PROTO_TCP, n - IPV4_LEN);
		if (protocol == PROTO_UDP)
			return complete(p + IPV4_LEN, 6, sum_of(p + 12, 8), PROTO_UDP, n - IPV4_LEN);
		return 0;
	}
	protocol = p[6];
	if (protocol == PROTO_TCP)
		return complete(p + IPV6_LEN, 16, sum_of(p + 8, 2 * ADDR_LEN), PROTO_TCP, n - IPV6_LEN);
	if (protocol == PROTO_UDP)
		return complete(p + IPV6_LEN, 6, sum_of(p + 8, 2 * ADDR_LEN), PROTO_UDP, n - IPV6_LEN);
	return 0;
}

/* family_of returns the Ethernet type of packets from an address. */
static __always_inline __be16 family_of(const __u8 *addr)
{
	return *(__u64 *)addr || *(__be32 *)(addr + 8) != bpf_htonl(0xffff) ? bpf_htons(TYPE_IPV6) : bpf_htons(TYPE_IPV4);
}

/* put_outer writes the headers in front of the packet, with ones in the fields that routers may change, as the ICRC
 * needs them. */
static __always_inline void put_outer(struct work *w, const struct fast_peer *to, __be16 family, __be16 type, __u32 end,
				      __u32 pad, __be16 port)
{
	__u8 *b = w->s->b;
	struct fast_qp *qp = w->qp;
	struct udp *udp = (void *)(b + AT_UDP);
	struct bth *bth = (void *)(b + AT_BTH);
	struct deth *deth = (void *)(b + AT_DETH);
	struct ipoib *ipoib = (void *)(b + AT_IPOIB);

	if (family == bpf_htons(TYPE_IPV4)) {
		struct outer_ipv4 *ip = (void *)(b + AT_IPV4);

		*(__u64 *)(b + AT_IPV4 - LRH_LEN) = ~0ull;
		ip->version_ihl = 0x45;
		ip->tos = 0xff;
		ip->len = bpf_htons(end - AT_IPV4);
		ip->id = 0;
		ip->fragment = bpf_htons(DONT_FRAGMENT);
		ip->ttl = 0xff;
		ip->protocol = PROTO_UDP;
		ip->check = 0xffff;
		ip->src = *(__be32 *)(qp->addr + 12);
		ip->dst = *(__be32 *)(to->addr + 12);
	} else {
		struct outer_ipv6 *ip = (void *)(b + AT_IPV6);

		*(__u32 *)(b + AT_IPV6 - LRH_LEN) = ~0u;
		*(__u32 *)(b + AT_IPV6 - 4) = ~0u;
		ip->version = bpf_htonl(0x6fffffff);
		ip->len = bpf_htons(end - AT_UDP);
		ip->next = PROTO_UDP;
		ip->hops = 0xff;
		__builtin_memcpy(ip->src, qp->addr, ADDR_LEN);
		__builtin_memcpy(ip->dst, to->addr, ADDR_LEN);
	}
	udp->src = port;
	udp->dst = bpf_htons(ROCE_PORT);
	udp->len = bpf_htons(end - AT_UDP);
	udp->check = 0xffff;
	bth->opcode = UD_SEND_ONLY;
	bth->flags = MIGREQ | pad << 4;
	bth->pkey = bpf_htons(qp->pkey);
	bth->num = bpf_htonl(0xff000000 | to->num);
	bth->psn = bpf_htonl(__sync_fetch_and_add(&qp->psn, 1) & PSN_MASK);
	deth->qkey = bpf_htonl(to->qkey);
	deth->num = bpf_htonl(qp->num);
	ipoib->type = type;
	ipoib->zero = 0;
}

/* finish_outer replaces the ones with the values that are sent. It returns a negative error. */
static __always_inline int finish_outer(struct work *w, const struct fast_peer *to, __be16 family, __u32 end)
{
	__u8 *b = w->s->b;
	struct udp *udp = (void *)(b + AT_UDP);
	__s64 sum;

	b[AT_BTH + 4] = 0;
	if (family == bpf_htons(TYPE_IPV4)) {
		struct outer_ipv4 *ip = (void *)(b + AT_IPV4);

		ip->tos = to->traffic_class;
		ip->ttl = to->hop_limit;
		ip->check = 0;
		sum = sum_of(ip, IPV4_LEN);
		if (sum < 0)
			return -1;
		ip->check = ~fold(sum);
	} else {
		struct outer_ipv6 *ip = (void *)(b + AT_IPV6);

		ip->version = bpf_htonl(6u << 28 | (__u32)to->traffic_class << 20);
		ip->hops = to->hop_limit;
	}
	/* Without a checksum, the packets of a flow would not stay in order at a receiver that joins them
	 * (udp_gro_receive_segment). */
	udp->check = 0;
	sum = udp_sum(b, family, end);
	if (sum < 0)
		return -1;
	udp->check = ~sum & 0xffff ?: 0xffff;
	return 0;
}

/* replace replaces the frame with the n bytes at b. It returns KIND, and leaves the frame as it was, if the kernel refuses to
 * change it, or LOST. The checksum of the frame may be partial: removing bytes at its front moves the start of the
 * checksum before the data, so the kernel drops it (skb_postpull_rcsum). */
#define SHIFT 64 /* more than the offset of the transport header in any frame that is carried */
static __always_inline enum verdict replace(struct __sk_buff *skb, __be16 family, __be16 type, const __u8 *b, __u32 n)
{
	__u32 len = ETHER_LEN + n + SHIFT;

	if (type != family) /* bpf_skb_change_proto adds or removes the difference */
		len += family == bpf_htons(TYPE_IPV4) ? IPV6_LEN - IPV4_LEN : IPV4_LEN - IPV6_LEN;
	if (bpf_skb_change_tail(skb, len, 0)) /* first: it refuses frames of tunnels */
		return KIND;
	if (type != family && bpf_skb_change_proto(skb, family, 0))
		return LOST;
	if (bpf_skb_adjust_room(skb, -SHIFT, BPF_ADJ_ROOM_MAC, 0))
		return LOST;
	n = bounded(n, ROOM);
	if (n < IPV4_LEN || n > MAX_END)
		return LOST;
	if (bpf_skb_store_bytes(skb, ETHER_LEN, b, n, BPF_F_INVALIDATE_HASH))
		return LOST;
	/* The frame's own are for the host's routes and queues. */
	skb->mark = 0;
	skb->priority = 0;
	return CARRIED;
}

/* lane_of returns the lane that gets a frame from the host, as the steering program chooses it. */
static __always_inline __u32 lane_of(const struct fast_qp *qp, __u32 hash)
{
	return (__u64)hash * qp->lanes >> 32;
}

/* bucket_of returns where a flow of a lane is counted. Each lane has buckets of its own. */
static __always_inline __u32 bucket_of(const struct fast_qp *qp, __u32 lane, __u32 hash)
{
	return bounded(lane * qp->buckets + (hash & (qp->buckets - 1)), FLOWS);
}

/* in_order reports whether the daemon has passed on all packets of a flow that were left to it. */
static __always_inline int in_order(const struct fast_flows *f, __u32 bucket)
{
	return *(volatile __u32 *)&f->left[bucket] == *(volatile __u32 *)&f->passed[bucket];
}

/* tracked reports whether a frame of a flow could be overtaken on the fast path. Neighbour discovery and DHCP, which the
 * daemon translates, are none of these, as are protocols that the fast path does not carry. A hash of 0 is not IP. */
static __always_inline int tracked(struct __sk_buff *skb, const struct flow *f)
{
	__be16 ports[2];
	__u8 type;

	if (!f->hash)
		return 0;
	if (!f->l4)
		return 1;
	switch (f->protocol) {
	case PROTO_TCP:
	case PROTO_ICMP:
		return 1;
	case PROTO_UDP:
		return !bpf_skb_load_bytes(skb, f->l4, ports, sizeof(ports)) && !dhcp(ports);
	case PROTO_ICMP6:
		return !bpf_skb_load_bytes(skb, f->l4, &type, sizeof(type)) && (type == 128 || type == 129);
	}
	return 0;
}

/* segments returns how many packets a frame is: the kernel may cut it before it reaches the TAP, or leave that to the
 * daemon. */
static __always_inline __u32 segments(struct __sk_buff *skb, const struct flow *f)
{
	__u32 headers, len = skb->len;
	__u8 offset;

	if (!skb->gso_size || !f->l4)
		return 1;
	headers = f->l4 + UDP_LEN;
	if (f->protocol == PROTO_TCP && !bpf_skb_load_bytes(skb, f->l4 + 12, &offset, sizeof(offset)))
		headers = f->l4 + (offset >> 4) * 4;
	return len > headers ? (len - headers + skb->gso_size - 1) / skb->gso_size : 1;
}

/* leave counts packets of a flow that are left to the daemon. */
static __always_inline void leave(struct fast_flows *f, const struct fast_qp *qp, __u32 lane, __u32 hash, __u32 n)
{
	__sync_fetch_and_add(&f->left[bucket_of(qp, lane, hash)], n);
}

static __always_inline enum verdict send_frame(struct work *w, struct flow f, __be16 type, struct bpf_redir_neigh *hop)
{
	struct __sk_buff *skb = w->skb;
	struct fast_qp *qp = w->qp;
	__u32 len = skb->len, n = len - ETHER_LEN, end, pad, lane = bounded(lane_of(qp, f.hash), LANES), *at;
	struct target_key key = {.qp = w->slot};
	__u8 *b = w->s->b, *ether = b + AT_PACKET - ETHER_LEN;
	struct fast_peer *to;
	enum verdict v;
	__be16 family;

	if (skb->vlan_present)
		return KIND;
	if (skb->gso_size || len < ETHER_LEN + IPV4_LEN || n > qp->max || n > MAX_PACKET)
		return LENGTH;
	len = bounded(len, ROOM);
	if (len < ETHER_LEN || len > ETHER_LEN + MAX_PACKET || bpf_skb_load_bytes(skb, 0, ether, len))
		return LENGTH;
	if (!carried(b + AT_PACKET, type, n))
		return KIND;
	if (*(__u32 *)(ether + MAC_LEN) != *(__u32 *)qp->mac || *(__u16 *)(ether + MAC_LEN + 4) != *(__u16 *)(qp->mac + 4))
		return STRANGER;
	__builtin_memcpy(key.mac, ether, MAC_LEN);
	at = bpf_map_lookup_elem(&targets, &key);
	to = at ? bpf_map_lookup_elem(&peers, at) : 0;
	/* The kernel may have given the element to another key meanwhile. */
	if (!to || !*(volatile __u32 *)&to->open || !to->hop_family || to->qp != w->slot || *(__u32 *)to->mac != *(__u32 *)key.mac ||
	    *(__u16 *)(to->mac + 4) != *(__u16 *)(key.mac + 4))
		return STRANGER;
	if (!(qp->tx_ready >> lane & 1) || !in_order(&w->order->tx, bucket_of(qp, lane, f.hash)) ||
	    !in_order(&w->order->tx, bucket_of(qp, lane_of(qp, f.pair), f.pair)))
		return ORDER;
	*(__u64 *)(b + AT_PACKET + bounded(n, SUM_ROOM)) = 0; /* the checksum and the padding read it */
	if (complete_packet(b + AT_PACKET, type, n))
		return KIND;
	pad = -n & 3;
	end = AT_PACKET + n + pad;
	family = family_of(qp->addr);
	put_outer(w, to, family, type, end + ICRC_LEN, pad, qp->ports[lane]);
	*(__u32 *)(b + bounded(end, ROOM)) = icrc(b, family, end);
	end += ICRC_LEN;
	if (finish_outer(w, to, family, end))
		return KIND;
	v = family == bpf_htons(TYPE_IPV4) ? replace(skb, family, type, b + AT_IPV4, end - AT_IPV4)
					   : replace(skb, family, type, b + AT_IPV6, end - AT_IPV6);
	if (v == CARRIED) {
		__sync_fetch_and_add(&to->tx_packets, 1);
		__sync_fetch_and_add(&to->tx_bytes, len);
		hop->nh_family = to->hop_family;
		__builtin_memcpy(hop->ipv6_nh, to->hop, ADDR_LEN);
	}
	return v;
}

/* work_for finds what a program works with. */
static __always_inline int work_for(struct work *w, struct __sk_buff *skb, __u32 *slot)
{
	__u32 zero = 0;

	if (!slot)
		return -1;
	w->skb = skb;
	w->slot = *slot;
	w->qp = bpf_map_lookup_elem(&qps, slot);
	w->order = bpf_map_lookup_elem(&orders, slot);
	w->s = bpf_map_lookup_elem(&scratches, &zero);
	return w->qp && w->order && w->s ? 0 : -1;
}

/* turn notes that a program begins or ends on this CPU. It is a full barrier, since its result is used. */
static __always_inline void turn(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct fast_running *r = bpf_map_lookup_elem(&running, &cpu);
	__u64 before;

	if (!r)
		return;
	before = __sync_fetch_and_add(&r->turns, 1);
	barrier_var(before);
}

static __always_inline struct fast_counts *counts_of(__u32 slot)
{
	__u32 at = bpf_get_smp_processor_id() * QUEUE_PAIRS + slot;

	return bpf_map_lookup_elem(&counts, &at);
}

/* count_sent counts how a frame ended, and the packets that are left to the daemon. */
static __always_inline void count_sent(struct work *w, enum verdict v, struct flow f, __u32 len)
{
	struct fast_counts *c = counts_of(w->slot);

	if (v != CARRIED && v != LOST && tracked(w->skb, &f))
		leave(&w->order->tx, w->qp, lane_of(w->qp, f.hash), f.hash, segments(w->skb, &f));
	if (!c || v >= VERDICTS)
		return;
	c->tx[v]++;
	if (v == CARRIED)
		c->tx_bytes += len;
}

SEC("tc")
int send(struct __sk_buff *skb)
{
	__u32 netdev = skb->ifindex, len = skb->len, underlay = 0;
	struct bpf_redir_neigh hop = {};
	__be16 type = skb->protocol;
	enum verdict v = CLOSED;
	struct flow f = {};
	struct work w;

	turn();
	if (!work_for(&w, skb, bpf_map_lookup_elem(&netdevs, &netdev)) && w.qp->netdev == netdev) {
		f = flow_of(skb, type, ETHER_LEN);
		if (*(volatile __u32 *)&w.qp->open)
			v = send_frame(&w, f, type, &hop);
		count_sent(&w, v, f, len);
		underlay = w.qp->underlay;
	}
	turn();
	switch (v) {
	case CARRIED:
		/* With a next hop, the kernel skips its route look-up, which leaks the frame's dst before 6.18
		 * (__bpf_redirect_neigh_v4). */
		return bpf_redirect_neigh(underlay, &hop, sizeof(hop), 0);
	case LOST:
		return DROP;
	default:
		return NEXT;
	}
}

/* The headers of a packet, as far as they decide whose it is. */
struct headers {
	__be16 family, fragment;
	__u32 at;   /* offset of the BTH in the frame */
	__u16 len;  /* of the datagram, as the IP header says */
	struct udp udp;
	struct bth bth;
	struct deth deth;
	struct ipoib ipoib;
};

/* read_headers returns a negative error if the packet is not a RoCEv2 packet to this host. */
static __always_inline int read_headers(struct __sk_buff *skb, struct headers *h)
{
	h->family = skb->protocol;
	h->fragment = bpf_htons(DONT_FRAGMENT);
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return -1;
	if (h->family == bpf_htons(TYPE_IPV4)) {
		struct outer_ipv4 ip;

		if (bpf_skb_load_bytes(skb, ETHER_LEN, &ip, sizeof(ip)) || ip.version_ihl != 0x45 || ip.protocol != PROTO_UDP)
			return -1;
		h->fragment = ip.fragment;
		h->len = bpf_ntohs(ip.len) - IPV4_LEN;
		h->at = ETHER_LEN + IPV4_LEN + UDP_LEN;
	} else if (h->family == bpf_htons(TYPE_IPV6)) {
		struct ipv6 ip;

		if (bpf_skb_load_bytes(skb, ETHER_LEN, &ip, sizeof(ip)) || bpf_ntohl(ip.version) >> 28 != 6 || ip.next != PROTO_UDP)
			return -1;
		h->len = bpf_ntohs(ip.len);
		h->at = ETHER_LEN + IPV6_LEN + UDP_LEN;
	} else {
		return -1;
	}
	if (bpf_skb_load_bytes(skb, h->at - UDP_LEN, &h->udp, sizeof(h->udp)) || h->udp.dst != bpf_htons(ROCE_PORT))
		return -1;
	return bpf_skb_load_bytes(skb, h->at, &h->bth, BTH_LEN + DETH_LEN + IPOIB_LEN);
}

/* undamaged reports whether the checksums and the ICRC of the packet in the scratch are right. It ends in front of its
 * ICRC, at end. */
static __always_inline int undamaged(__u8 *b, const struct headers *h, __u32 end)
{
	__u32 want;

	if (h->udp.check && udp_sum(b, h->family, end + ICRC_LEN) != 0xffff && h->udp.check != pseudo_sum(b, h->family, end + ICRC_LEN))
		return 0; /* it is not partial either, as on a veth */
	if (h->family == bpf_htons(TYPE_IPV4)) {
		struct outer_ipv4 *ip = (void *)(b + AT_IPV4);
		__s64 sum = sum_of(ip, IPV4_LEN);

		if (sum < 0 || fold(sum) != 0xffff)
			return 0;
		*(__u64 *)(b + AT_IPV4 - LRH_LEN) = ~0ull;
		ip->tos = 0xff;
		ip->ttl = 0xff;
		ip->check = 0xffff;
	} else {
		struct outer_ipv6 *ip = (void *)(b + AT_IPV6);

		*(__u32 *)(b + AT_IPV6 - LRH_LEN) = ~0u;
		*(__u32 *)(b + AT_IPV6 - 4) = ~0u;
		ip->version |= bpf_htonl(0x0fffffff);
		ip->hops = 0xff;
	}
	((struct udp *)(b + AT_UDP))->check = 0xffff;
	b[AT_BTH + 4] = 0xff;
	want = *(__u32 *)(b + bounded(end, ROOM));
	return icrc(b, h->family, end) == want;
}

/* unwrap replaces the packet by the frame with its IP packet of n bytes. */
static __always_inline enum verdict unwrap(struct work *w, const struct headers *h, const struct fast_peer *from, __u32 n)
{
	__s32 headers = h->at + BTH_LEN + DETH_LEN + IPOIB_LEN - ETHER_LEN;
	__u8 ether[ETHER_LEN];

	__builtin_memcpy(ether, w->qp->mac, MAC_LEN);
	__builtin_memcpy(ether + MAC_LEN, from->mac, MAC_LEN);
	__builtin_memcpy(ether + 2 * MAC_LEN, &h->ipoib.type, sizeof(h->ipoib.type));
	/* First, while the headers are as the kernel has parsed them. */
	if (bpf_skb_change_tail(w->skb, ETHER_LEN + headers + n, 0))
		return LENGTH;
	if (h->family == bpf_htons(TYPE_IPV6) && h->ipoib.type == bpf_htons(TYPE_IPV4)) {
		/* bpf_skb_adjust_room leaves no less than an IPv6 header in an IPv6 packet. */
		if (bpf_skb_change_proto(w->skb, h->ipoib.type, 0))
			return LOST;
		headers -= IPV6_LEN - IPV4_LEN;
	}
	if (bpf_skb_adjust_room(w->skb, -headers, BPF_ADJ_ROOM_MAC, 0) || bpf_skb_store_bytes(w->skb, 0, ether, sizeof(ether), 0))
		return LOST;
	return CARRIED;
}

/* lane_from returns the lane that gets a packet from the underlay. */
static __always_inline __u32 lane_from(const struct fast_qp *qp, const struct headers *h)
{
	return bpf_ntohs(h->udp.src) % (qp->lanes ?: 1);
}

static __always_inline enum verdict receive_packet(struct work *w, const struct headers *h, struct flow f)
{
	struct __sk_buff *skb = w->skb;
	struct fast_qp *qp = w->qp;
	__u32 len = skb->len - ETHER_LEN, begin = h->family == bpf_htons(TYPE_IPV4) ? AT_IPV4 : AT_IPV6;
	__u32 pad = h->bth.flags >> 4 & 3, end, n, lane = bounded(lane_from(qp, h), LANES), *at;
	struct source_key key = {.qp = w->slot, .num = bpf_ntohl(h->deth.num) & NUM_MASK};
	struct fast_peer *from;
	enum verdict v;
	__u8 *b = w->s->b;

	if (skb->gso_size || len < AT_PACKET - AT_IPV4 + IPV4_LEN + ICRC_LEN || begin + len > MAX_END)
		return LENGTH;
	end = begin + len - ICRC_LEN;
	n = end - AT_PACKET - pad;
	if (h->len != end + ICRC_LEN - AT_UDP || bpf_ntohs(h->udp.len) != h->len || h->len & 3 ||
	    h->fragment != bpf_htons(DONT_FRAGMENT) || h->bth.opcode != UD_SEND_ONLY || h->bth.flags & 0xf ||
	    bpf_ntohs(h->bth.pkey) != qp->pkey || bpf_ntohl(h->deth.qkey) != qp->qkey || h->ipoib.zero)
		return HEADER;
	if (n > qp->max || n > MAX_PACKET)
		return LENGTH;
	len = bounded(len, ROOM);
	if (len < IPV4_LEN || len > MAX_END - AT_IPV6)
		return LENGTH;
	if (begin == AT_IPV4 ? bpf_skb_load_bytes(skb, ETHER_LEN, b + AT_IPV4, len) : bpf_skb_load_bytes(skb, ETHER_LEN, b + AT_IPV6, len))
		return LENGTH;
	if (!carried(b + AT_PACKET, h->ipoib.type, n))
		return KIND;
	if (begin == AT_IPV4) {
		if (family_of(qp->addr) != h->family || *(__be32 *)(qp->addr + 12) != *(__be32 *)(b + AT_IPV4 + 16))
			return HEADER;
		*(__be32 *)(key.addr + 8) = bpf_htonl(0xffff);
		__builtin_memcpy(key.addr + 12, b + AT_IPV4 + 12, 4);
	} else {
		if (family_of(qp->addr) != h->family || *(__u64 *)qp->addr != *(__u64 *)(b + AT_IPV6 + 24) ||
		    *(__u64 *)(qp->addr + 8) != *(__u64 *)(b + AT_IPV6 + 32))
			return HEADER;
		__builtin_memcpy(key.addr, b + AT_IPV6 + 8, ADDR_LEN);
	}
	at = bpf_map_lookup_elem(&sources, &key);
	from = at ? bpf_map_lookup_elem(&peers, at) : 0;
	if (!from || !*(volatile __u32 *)&from->open || from->qp != w->slot || from->num != key.num ||
	    *(__u64 *)from->addr != *(__u64 *)key.addr || *(__u64 *)(from->addr + 8) != *(__u64 *)(key.addr + 8))
		return STRANGER;
	if (!(qp->rx_ready >> lane & 1) || !in_order(&w->order->rx, bucket_of(qp, lane, f.hash)) ||
	    !in_order(&w->order->rx, bucket_of(qp, lane, f.pair)) ||
	    !in_order(&w->order->rx, bucket_of(qp, lane_of(qp, f.pair), f.pair))) /* where the peer's fragments arrive */
		return ORDER;
	if (!undamaged(b, h, end))
		return DAMAGED;
	v = unwrap(w, h, from, n);
	if (v == CARRIED) {
		__sync_fetch_and_add(&from->rx_packets, 1);
		__sync_fetch_and_add(&from->rx_bytes, ETHER_LEN + n);
	}
	return v;
}

/* A packet for the daemon, or a train of packets that the kernel has joined. */
struct train {
	struct __sk_buff *skb;
	struct fast_qp *qp;
	struct fast_flows *flows;
	__u32 lane;
	__u32 at, step; /* offset of an IPoIB header, and from one to the next */
};

#define MAX_SEGMENTS 128 /* UDP_MAX_SEGMENTS */

/* leave_segment counts a packet of the train. It ends after the last one. */
static long leave_segment(__u32 i, struct train *t)
{
	__u32 at = t->at + i * t->step;
	struct flow f;
	__be16 type;

	if (bpf_skb_load_bytes(t->skb, at, &type, sizeof(type)))
		return 1;
	f = flow_of(t->skb, type, at + IPOIB_LEN);
	if (tracked(t->skb, &f))
		leave(t->flows, t->qp, t->lane, f.hash, 1);
	return 0;
}

/* count_received counts how a packet, or a train, ended, and the packets that are left to the daemon. */
static __always_inline void count_received(struct work *w, const struct headers *h, enum verdict v)
{
	struct __sk_buff *skb = w->skb;
	struct fast_counts *c = counts_of(w->slot);

	if (v != CARRIED && v != LOST) {
		struct train t = {.skb = skb, .qp = w->qp, .flows = &w->order->rx, .lane = lane_from(w->qp, h)};

		t.at = h->at + BTH_LEN + DETH_LEN;
		t.step = skb->gso_size;
		bpf_loop(t.step ? MAX_SEGMENTS : 1, leave_segment, &t, 0);
	}
	if (!c || v >= VERDICTS)
		return;
	c->rx[v]++;
	if (v == CARRIED)
		c->rx_bytes += skb->len;
}

SEC("tc")
int receive(struct __sk_buff *skb)
{
	enum verdict v = CLOSED;
	struct num_key key;
	struct headers h;
	struct work w;
	__u32 netdev = 0;

	if (read_headers(skb, &h))
		return NEXT;
	key.underlay = skb->ifindex;
	key.num = bpf_ntohl(h.bth.num) & NUM_MASK;
	turn();
	if (!work_for(&w, skb, bpf_map_lookup_elem(&nums, &key)) && w.qp->underlay == key.underlay && w.qp->num == key.num) {
		if (*(volatile __u32 *)&w.qp->open)
			v = receive_packet(&w, &h, flow_of(skb, h.ipoib.type, h.at + BTH_LEN + DETH_LEN + IPOIB_LEN));
		count_received(&w, &h, v);
		netdev = w.qp->netdev;
	}
	turn();
	switch (v) {
	case CARRIED:
		return bpf_redirect(netdev, BPF_F_INGRESS);
	case LOST:
		return DROP;
	default:
		return NEXT;
	}
}

/* The programs that are attached to netdevs. They stay there if the daemon is killed, but the kernel then empties the map,
 * because no process holds it open any more, and everything goes its usual way. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, int(void *));
} calls SEC(".maps") = {.values = {(void *)&send, (void *)&receive}};

SEC("tc")
int at_netdev(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &calls, 0);
	return NEXT;
}

SEC("tc")
int at_underlay(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &calls, 1);
	return NEXT;
}

char _license[] SEC("license") = "GPL";
