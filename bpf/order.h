/* The order of the packets of a flow: how many the daemon has to pass on before the next one can be carried. */
#ifndef IPOIBD_BPF_ORDER_H
#define IPOIBD_BPF_ORDER_H

#include "packet.h"

/* lane_of returns the lane that gets a frame from the host, as the steering program chooses it. */
static __always_inline __u32 lane_of(const struct qp *qp, __u32 hash)
{
	return (__u64)hash * qp->lanes >> 32;
}

/* bucket_of returns where a flow of a lane is counted. Each lane has buckets of its own. */
static __always_inline __u32 bucket_of(const struct qp *qp, __u32 lane, __u32 hash)
{
	return bounded(lane * qp->buckets + (hash & (qp->buckets - 1)), FLOWS);
}

/* in_order reports whether the daemon has passed on all packets of a flow that were left to it. */
static __always_inline int in_order(const struct flows *f, __u32 bucket)
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
	case IPPROTO_TCP:
	case IPPROTO_ICMP:
		return 1;
	case IPPROTO_UDP:
		return !bpf_skb_load_bytes(skb, f->l4, ports, sizeof(ports)) && !dhcp(ports);
	case IPPROTO_ICMPV6:
		return !bpf_skb_load_bytes(skb, f->l4, &type, sizeof(type)) && (type == ICMPV6_ECHO_REQUEST || type == ICMPV6_ECHO_REPLY);
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
	if (f->protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, f->l4 + 12, &offset, sizeof(offset)))
		headers = f->l4 + (offset >> 4) * 4;
	return len > headers ? (len - headers + skb->gso_size - 1) / skb->gso_size : 1;
}

/* leave counts packets of a flow that are left to the daemon. */
static __always_inline void leave(struct flows *f, const struct qp *qp, __u32 lane, __u32 hash, __u32 n)
{
	__sync_fetch_and_add(&f->left[bucket_of(qp, lane, hash)], n);
}

/* lane_from returns the lane that gets a packet from the underlay. */
static __always_inline __u32 lane_from(const struct qp *qp, const struct headers *h)
{
	return bpf_ntohs(h->udp.source) % (qp->lanes ?: 1);
}

/* A packet for the daemon, or a train of packets that the kernel has joined. */
struct train {
	struct __sk_buff *skb;
	struct qp *qp;
	struct flows *flows;
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

#endif
