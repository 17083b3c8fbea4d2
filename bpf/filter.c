//go:build ignore

/* The filter of a TAP (TUNSETFILTEREBPF). It drops the frames from the host that IPoIB cannot
 * carry, before they wake the daemon, and counts them by kind. */
#include "common.h"

/* In the order of the constants in filter.go. */
enum verdict { PASSED, RUNT, VLAN, LLC, LLDP, PPPOE, OTHER, VERDICTS };

#define SEGMENT_BUCKETS 12
#define BYTE_BUCKETS 18

/* All TAPs share this program and its maps, in which each has a slot. The program of a TAP is a
 * small one (programs.go) that stores the slot in cb and continues here by a tail call. */
#define SLOT(skb) ((skb)->cb[0])

volatile const __u32 cpus = 1; /* that the machine can have */

#define CACHE_LINE 64

struct filter_counts {
	__u64 verdicts[VERDICTS];
	__u64 segments[SEGMENT_BUCKETS]; /* of passed frames, by number of segments */
	__u64 bytes[BYTE_BUCKETS];       /* of passed frames, by their length */
} __attribute__((aligned(CACHE_LINE)));

/* An element for each CPU of each slot. The program runs with bottom halves disabled, so nothing
 * else on the CPU changes the element at the same time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct filter_counts);
} counts SEC(".maps");

struct filter_wait {
	/* The time (CLOCK_MONOTONIC, in ns) at which the first frame for a waiting reader passed. The
	 * reader writes 0 before it waits. */
	__u64 since;
} __attribute__((aligned(CACHE_LINE)));

/* An element for each slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct filter_wait);
} waiting SEC(".maps");

static __always_inline enum verdict verdict(struct __sk_buff *skb)
{
	__be16 type;

	if (skb->vlan_present) /* the tag is not in the frame yet */
		return VLAN;
	if (bpf_skb_load_bytes(skb, ETH_TYPE, &type, sizeof(type)))
		return RUNT;
	switch (bpf_ntohs(type)) {
	case ETH_P_IP:
	case ETH_P_IPV6:
	case ETH_P_ARP:
	case ETH_P_RARP:
		return PASSED;
	case ETH_P_8021Q:
	case ETH_P_8021AD:
		return VLAN;
	case ETH_P_LLDP:
		return LLDP;
	case ETH_P_PPP_DISC:
	case ETH_P_PPP_SES:
		return PPPOE;
	}
	return bpf_ntohs(type) < ETH_P_802_3_MIN ? LLC : OTHER;
}

/* The kernel truncates the frame to the result, and drops it if that is 0. */
SEC("socket")
int filter(struct __sk_buff *skb)
{
	enum verdict v = verdict(skb);
	struct filter_counts *c;
	struct filter_wait *w;
	__u32 slot = SLOT(skb), key;

	key = slot * cpus + bpf_get_smp_processor_id();
	c = bpf_map_lookup_elem(&counts, &key);
	if (c) {
		c->verdicts[v]++;
		if (v == PASSED) {
			c->segments[bucket(skb->gso_segs ? skb->gso_segs : 1, SEGMENT_BUCKETS)]++;
			c->bytes[bucket(skb->len, BYTE_BUCKETS)]++;
		}
	}
	if (v != PASSED)
		return 0;
	key = slot;
	w = bpf_map_lookup_elem(&waiting, &key);
	if (w && !w->since)
		w->since = bpf_ktime_get_ns();
	return skb->len;
}

char _license[] SEC("license") = "GPL";
