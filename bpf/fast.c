//go:build ignore

/* The fast path: small unicast frames between a TAP and the underlay of a software HCA, without the
 * daemon. send, at the TAP's egress, makes a RoCEv2 packet of a frame; receive, at the underlay's
 * ingress, makes a frame of a packet. What they do not carry goes to the daemon, unless the kernel has no
 * memory. doc.go describes the conditions. */
#include "order.h"

#define SHIFT 64 /* more than the offset of the transport header in any frame that is carried */

/* replace replaces the frame with the n bytes at b. It returns KIND, and leaves the frame as it was, if the kernel refuses to
 * change it, or LOST. The checksum of the frame may be partial: removing bytes at its front moves the start of the
 * checksum before the data, so the kernel drops it (skb_postpull_rcsum). */
static __always_inline enum verdict replace(struct __sk_buff *skb, __be16 family, __be16 type, const __u8 *b, __u32 n)
{
	__u32 len = ETH_HLEN + n + SHIFT;

	if (type != family) /* bpf_skb_change_proto adds or removes the difference */
		len += family == bpf_htons(ETH_P_IP) ? IPV6_LEN - IPV4_LEN : IPV4_LEN - IPV6_LEN;
	if (bpf_skb_change_tail(skb, len, 0)) /* first: it refuses frames of tunnels */
		return KIND;
	if (type != family && bpf_skb_change_proto(skb, family, 0))
		return LOST;
	if (bpf_skb_adjust_room(skb, -SHIFT, BPF_ADJ_ROOM_MAC, 0))
		return LOST;
	n = bounded(n, ROOM);
	if (n < IPV4_LEN || n > MAX_END)
		return LOST;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, b, n, BPF_F_INVALIDATE_HASH))
		return LOST;
	/* The frame's own are for the host's routes and queues. */
	skb->mark = 0;
	skb->priority = 0;
	return CARRIED;
}

static __always_inline enum verdict send_frame(struct work *w, struct flow f, __be16 type, struct bpf_redir_neigh *hop)
{
	struct __sk_buff *skb = w->skb;
	struct qp *qp = w->qp;
	__u32 len = skb->len, n = len - ETH_HLEN, end, pad, lane = bounded(lane_of(qp, f.hash), LANES), *at;
	struct target_key key = {.qp = w->slot};
	__u8 *b = w->s->b, *ether = b + AT_PACKET - ETH_HLEN;
	struct peer *to;
	enum verdict v;
	__be16 family;

	if (skb->vlan_present)
		return KIND;
	if (skb->gso_size || len < ETH_HLEN + IPV4_LEN || n > MAX_PACKET)
		return LENGTH;
	len = bounded(len, ROOM);
	if (len < ETH_HLEN || len > ETH_HLEN + MAX_PACKET || bpf_skb_load_bytes(skb, 0, ether, len))
		return LENGTH;
	if (!carried(b + AT_PACKET, type, n))
		return KIND;
	if (*(__u32 *)(ether + ETH_ALEN) != *(__u32 *)qp->mac || *(__u16 *)(ether + ETH_ALEN + 4) != *(__u16 *)(qp->mac + 4))
		return STRANGER;
	__builtin_memcpy(key.mac, ether, ETH_ALEN);
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
	*(__u32 *)(b + bounded(end, ROOM)) = icrc(w->s, family == bpf_htons(ETH_P_IPV6), end);
	end += ICRC_LEN;
	if (finish_outer(w, to, family, end))
		return KIND;
	v = family == bpf_htons(ETH_P_IP) ? replace(skb, family, type, b + AT_IPV4, end - AT_IPV4)
					   : replace(skb, family, type, b + AT_IPV6, end - AT_IPV6);
	if (v == CARRIED) {
		__sync_fetch_and_add(&to->tx_packets, 1);
		__sync_fetch_and_add(&to->tx_bytes, n);
		hop->nh_family = to->hop_family;
		__builtin_memcpy(hop->ipv6_nh, to->hop, ADDR_LEN);
	}
	return v;
}

/* work_for fills in the context for the queue pair in a slot. It returns a negative number without one. */
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
	struct running *r = bpf_map_lookup_elem(&running, &cpu);
	__u64 before;

	if (!r)
		return;
	before = __sync_fetch_and_add(&r->turns, 1);
	barrier_var(before);
}

static __always_inline struct counts *counts_of(__u32 slot)
{
	__u32 at = bpf_get_smp_processor_id() * QUEUE_PAIRS + slot;

	return bpf_map_lookup_elem(&counts, &at);
}

/* count_sent counts how a frame ended, and the packets that are left to the daemon. */
static __always_inline void count_sent(struct work *w, enum verdict v, struct flow f, __u32 len)
{
	struct counts *c = counts_of(w->slot);

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
		f = flow_of(skb, type, ETH_HLEN);
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
		return TC_ACT_SHOT;
	default:
		return TC_ACT_UNSPEC;
	}
}

/* unwrap replaces the packet by the frame with its IP packet of n bytes. */
static __always_inline enum verdict unwrap(struct work *w, const struct headers *h, const struct peer *from, __u32 n)
{
	__s32 headers = h->at + BTH_LEN + DETH_LEN + IPOIB_LEN - ETH_HLEN;
	__u8 ether[ETH_HLEN];

	__builtin_memcpy(ether, w->qp->mac, ETH_ALEN);
	__builtin_memcpy(ether + ETH_ALEN, from->mac, ETH_ALEN);
	__builtin_memcpy(ether + 2 * ETH_ALEN, &h->ipoib.type, sizeof(h->ipoib.type));
	/* First, while the headers are as the kernel has parsed them. It refuses packets of tunnels. */
	if (bpf_skb_change_tail(w->skb, ETH_HLEN + headers + n, 0))
		return KIND;
	if (h->family == bpf_htons(ETH_P_IPV6) && h->ipoib.type == bpf_htons(ETH_P_IP)) {
		/* bpf_skb_adjust_room leaves no less than an IPv6 header in an IPv6 packet. */
		if (bpf_skb_change_proto(w->skb, h->ipoib.type, 0))
			return LOST;
		headers -= IPV6_LEN - IPV4_LEN;
	}
	/* The hash and the mark are those of the packet. */
	if (bpf_skb_adjust_room(w->skb, -headers, BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(w->skb, 0, ether, sizeof(ether), BPF_F_INVALIDATE_HASH))
		return LOST;
	w->skb->mark = 0;
	return CARRIED;
}

static __always_inline enum verdict receive_packet(struct work *w, const struct headers *h, struct flow f)
{
	struct __sk_buff *skb = w->skb;
	struct qp *qp = w->qp;
	__u32 len = skb->len - ETH_HLEN, begin = h->family == bpf_htons(ETH_P_IP) ? AT_IPV4 : AT_IPV6;
	__u32 pad = h->bth.flags >> 4 & 3, end, n, lane = bounded(lane_from(qp, h), LANES), *at;
	struct source_key key = {.qp = w->slot, .num = bpf_ntohl(h->deth.num) & NUM_MASK};
	struct peer *from;
	enum verdict v;
	__u8 *b = w->s->b;

	if (skb->gso_size || len < AT_PACKET - AT_IPV4 + IPV4_LEN + ICRC_LEN || begin + len > MAX_END)
		return LENGTH;
	end = begin + len - ICRC_LEN;
	n = end - AT_PACKET - pad;
	if (h->len != end + ICRC_LEN - AT_UDP || bpf_ntohs(h->udp.len) != h->len || h->len & 3 ||
	    h->fragment != bpf_htons(IP_DONT_FRAGMENT) || h->bth.opcode != UD_SEND_ONLY || h->bth.flags & 0xf ||
	    bpf_ntohs(h->bth.pkey) != qp->pkey || bpf_ntohl(h->deth.qkey) != qp->qkey || h->ipoib.zero)
		return HEADER;
	if (n > MAX_PACKET)
		return LENGTH;
	len = bounded(len, ROOM);
	if (len < IPV4_LEN || len > MAX_END - AT_IPV6)
		return LENGTH;
	if (begin == AT_IPV4 ? bpf_skb_load_bytes(skb, ETH_HLEN, b + AT_IPV4, len) : bpf_skb_load_bytes(skb, ETH_HLEN, b + AT_IPV6, len))
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
	if (!undamaged(w->s, h, end))
		return DAMAGED;
	v = unwrap(w, h, from, n);
	if (v == CARRIED) {
		__sync_fetch_and_add(&from->rx_packets, 1);
		__sync_fetch_and_add(&from->rx_bytes, n);
	}
	return v;
}

/* count_received counts how a packet, or a train, ended, and the packets that are left to the daemon. */
static __always_inline void count_received(struct work *w, const struct headers *h, enum verdict v)
{
	struct __sk_buff *skb = w->skb;
	struct counts *c = counts_of(w->slot);

	if (v != CARRIED && v != LOST) {
		struct train t = {.skb = skb, .qp = w->qp, .flows = &w->order->rx, .lane = lane_from(w->qp, h)};

		t.at = h->at + BTH_LEN + DETH_LEN;
		t.step = skb->gso_size;
		bpf_loop(t.step ? MAX_SEGMENTS : 1, leave_segment, &t, 0);
	}
	if (!c || v >= VERDICTS)
		return;
	c->rx[v] += skb->gso_segs ?: 1;
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
		return TC_ACT_UNSPEC;
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
		return TC_ACT_SHOT;
	default:
		return TC_ACT_UNSPEC;
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
	return TC_ACT_UNSPEC;
}

SEC("tc")
int at_underlay(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &calls, 1);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "GPL";
