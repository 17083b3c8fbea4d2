//go:build ignore

/* Copies the IPv4 identification of a RoCEv2 datagram, which the ICRC covers, to its mark. A
 * socket with SO_RCVMARK receives the mark. The program runs at the ingress of the underlay
 * (tcx or clsact). */
#include "common.h"

#define TYPE_IPV4 0x0800

/* The marks set here contain the identification in the upper half, and this bit. */
#define MARK_KNOWN 0x2000

/* In the order of the constants in ipid.go. */
enum verdict { MARKED, TAKEN, VERDICTS };

#define SEGMENT_BUCKETS 12

struct ipid_counts {
	__u64 verdicts[VERDICTS];
	__u64 segments[SEGMENT_BUCKETS]; /* of packets, by number of datagrams */
};

COUNTS(struct ipid_counts);

struct ipv4 {
	__u8 version_ihl, tos;
	__be16 len, id, fragment;
	__u8 ttl, protocol;
	__be16 check;
	__be32 addrs[2];
};

/* The result leaves the decision about the packet to the next program. */
SEC("tc")
int ipid(struct __sk_buff *skb)
{
	struct ipid_counts *c;
	__u32 key = 0;
	struct ipv4 ip;
	__be16 port;
	__u32 mark;

	if (skb->protocol != bpf_htons(TYPE_IPV4) ||
	    bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) ||
	    ip.protocol != PROTO_UDP || ip.fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET) ||
	    bpf_skb_load_bytes_relative(skb, (ip.version_ihl & 0xf) * 4 + 2, &port, sizeof(port), BPF_HDR_START_NET) ||
	    port != bpf_htons(ROCE_PORT))
		return -1; /* TC_ACT_UNSPEC, TCX_NEXT */
	/* The program of another daemon on this netdev sets the same mark. */
	mark = (__u32)bpf_ntohs(ip.id) << 16 | MARK_KNOWN;
	c = bpf_map_lookup_elem(&counts, &key);
	if (c) {
		c->verdicts[skb->mark && skb->mark != mark ? TAKEN : MARKED]++;
		c->segments[bucket(skb->gso_segs ? skb->gso_segs : 1, SEGMENT_BUCKETS)]++;
	}
	if (!skb->mark)
		skb->mark = mark;
	return -1;
}

char _license[] SEC("license") = "GPL";
