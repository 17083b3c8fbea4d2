/* What the programs of the fast path and the daemon share: limits, verdicts, and maps. */
#ifndef IPOIBD_BPF_FAST_H
#define IPOIBD_BPF_FAST_H

#include <linux/icmpv6.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include "flow.h"

#define QUEUE_PAIRS 64
#define PEERS 4096
#define LANES 8
#define ADDR_LEN 16
#define FLOWS 1024 /* a power of two, and a multiple of LANES */

/* The longest IP packet that the programs carry. bpf_csum_diff took at most 512 bytes before Linux 6.13, and the
 * packet, its padding and the ICRC are one of its arguments. */
#define MAX_PACKET 504

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

/* How a frame or a packet ended. In the order of the constants in fast.go. */
enum verdict {
	CARRIED,
	LOST,     /* the kernel had no memory */
	CLOSED,   /* the gate is closed */
	LENGTH,   /* too long, too short, or to be cut */
	KIND,     /* not TCP, UDP or an ICMP echo, or with options or fragments, or of interest to the daemon, or a frame
		   * that the kernel does not let programs change */
	STRANGER, /* not from the TAP's own MAC, no peer, one without a route, or whose next hop is not resolved */
	ORDER,    /* an earlier one of the flow may still be on its way through the daemon */
	HEADER,   /* a header that the daemon examines and counts */
	DAMAGED,  /* a checksum or the ICRC is wrong, which the daemon counts */
	VERDICTS,
};

#define CACHE_LINE 64

/* A queue pair. The daemon writes all fields but psn, from which both take numbers. A program reads them between its two
 * changes of running. */
struct qp {
	__u32 open;              /* the gate */
	__u32 netdev, underlay;  /* indexes of the TAP and of the underlay */
	__u32 num, qkey;
	__u32 psn;               /* of the next packet; the daemon takes numbers too */
	__u32 buckets;           /* of each lane, a power of two; see bucket_of */
	__u16 pkey, lanes;
	__u8 addr[ADDR_LEN];     /* that of the GID; an IPv4 address as IPv6 maps it */
	__u8 mac[ETH_ALEN];      /* of the TAP */
	__u16 ports[LANES];      /* UDP source ports, in network order */
	/* Bits of the lanes that have been empty since the gate was added: frames from before were not counted. */
	__u32 tx_ready, rx_ready;
} __attribute__((aligned(CACHE_LINE)));

/* A peer of a queue pair. The daemon writes all but the counts. */
struct peer {
	__u32 open;
	__u32 qp; /* whose peer it is */
	__u32 num, qkey;
	__u8 traffic_class, hop_limit;
	__u8 mac[ETH_ALEN];
	__u8 addr[ADDR_LEN];
	__u32 hop_family; /* of the next hop, as in struct bpf_redir_neigh */
	__u8 hop[ADDR_LEN];
	__u64 tx_packets, tx_bytes, rx_packets, rx_bytes; /* bytes of IP packets */
} __attribute__((aligned(CACHE_LINE)));

struct counts {
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
	__u8 mac[ETH_ALEN];
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
struct running {
	__u64 turns;
} __attribute__((aligned(CACHE_LINE)));

/* Of each flow, by bucket_of: how many frames or packets the programs have left to the daemon, and how many of them
 * the daemon has passed on, or believes to be lost. The daemon writes passed. */
struct flows {
	__u32 left[FLOWS], passed[FLOWS];
};

/* The flows of a queue pair. */
struct order {
	struct flows tx, rx;
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

ARRAY(qps, struct qp, QUEUE_PAIRS);
ARRAY(peers, struct peer, PEERS);
ARRAY(counts, struct counts, QUEUE_PAIRS); /* for each CPU */
ARRAY(running, struct running, 1);         /* for each CPU */
ARRAY(orders, struct order, QUEUE_PAIRS);
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

/* The context of a run. */
struct work {
	struct __sk_buff *skb;
	struct qp *qp;
	struct scratch *s;
	struct order *order;
	__u32 slot;
};

/* bounded returns a value that is less than n, a power of two. Older verifiers forget such bounds on the
 * way from a comparison to the use of the value. */
static __always_inline __u32 bounded(__u32 value, __u32 n)
{
	barrier_var(value);
	return value & (n - 1);
}

#endif
