/* RoCEv2 packets: which frames can be carried in them, and how their headers are written and read. */
#ifndef IPOIBD_BPF_PACKET_H
#define IPOIBD_BPF_PACKET_H

#include "checksum.h"

#define VERSION_IHL 0x45 /* the first byte of an IPv4 header without options */

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
	case IPPROTO_TCP:
		return n >= 20;
	case IPPROTO_UDP:
		return n >= UDP_LEN && !dhcp((__be16 *)l4);
	case IPPROTO_ICMP:
		return type == bpf_htons(ETH_P_IP) && n >= 8 && (l4[0] == 8 || l4[0] == 0); /* RFC 792 */
	case IPPROTO_ICMPV6:
		return type == bpf_htons(ETH_P_IPV6) && n >= 8 && (l4[0] == ICMPV6_ECHO_REQUEST || l4[0] == ICMPV6_ECHO_REPLY);
	}
	return 0;
}

/* carried reports whether the fast path carries the IP packet of n bytes: a complete unicast packet without options or
 * fragments. */
static __always_inline int carried(const __u8 *p, __be16 type, __u32 n)
{
	if (type == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = (void *)p;

		return n >= IPV4_LEN && p[0] == VERSION_IHL && bpf_ntohs(ip->tot_len) == n &&
		       !(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET)) && p[16] < 224 &&
		       transports(p + IPV4_LEN, ip->protocol, n - IPV4_LEN, type);
	}
	if (type == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = (void *)p;

		return n >= IPV6_LEN && ip->version == 6 && bpf_ntohs(ip->payload_len) + IPV6_LEN == n && p[24] != 0xff &&
		       transports(p + IPV6_LEN, ip->nexthdr, n - IPV6_LEN, type);
	}
	return 0;
}

/* family_of returns the Ethernet type of packets from an address. */
static __always_inline __be16 family_of(const __u8 *addr)
{
	return *(__u64 *)addr || *(__be32 *)(addr + 8) != bpf_htonl(0xffff) ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
}

/* put_outer writes the headers in front of the packet, with ones in the fields that routers may change, as the ICRC
 * needs them. */
static __always_inline void put_outer(struct work *w, const struct peer *to, __be16 family, __be16 type, __u32 end,
				      __u32 pad, __be16 port)
{
	__u8 *b = w->s->b;
	struct qp *qp = w->qp;
	struct udphdr *udp = (void *)(b + AT_UDP);
	struct bth *bth = (void *)(b + AT_BTH);
	struct deth *deth = (void *)(b + AT_DETH);
	struct ipoib *ipoib = (void *)(b + AT_IPOIB);

	if (family == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(b + AT_IPV4);

		*(__u64 *)(b + AT_IPV4 - LRH_LEN) = ~0ull;
		b[AT_IPV4] = VERSION_IHL;
		ip->tos = 0xff;
		ip->tot_len = bpf_htons(end - AT_IPV4);
		ip->id = 0;
		ip->frag_off = bpf_htons(IP_DONT_FRAGMENT);
		ip->ttl = 0xff;
		ip->protocol = IPPROTO_UDP;
		ip->check = 0xffff;
		ip->saddr = *(__be32 *)(qp->addr + 12);
		ip->daddr = *(__be32 *)(to->addr + 12);
	} else {
		struct ipv6hdr *ip = (void *)(b + AT_IPV6);

		*(__u32 *)(b + AT_IPV6 - LRH_LEN) = ~0u;
		*(__u32 *)(b + AT_IPV6 - 4) = ~0u;
		*(__be32 *)ip = bpf_htonl(0x6fffffff);
		ip->payload_len = bpf_htons(end - AT_UDP);
		ip->nexthdr = IPPROTO_UDP;
		ip->hop_limit = 0xff;
		__builtin_memcpy(&ip->saddr, qp->addr, ADDR_LEN);
		__builtin_memcpy(&ip->daddr, to->addr, ADDR_LEN);
	}
	udp->source = port;
	udp->dest = bpf_htons(ROCE_PORT);
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
static __always_inline int finish_outer(struct work *w, const struct peer *to, __be16 family, __u32 end)
{
	__u8 *b = w->s->b;
	struct udphdr *udp = (void *)(b + AT_UDP);
	__s64 sum;

	b[AT_BTH + 4] = 0;
	if (family == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(b + AT_IPV4);

		ip->tos = to->traffic_class;
		ip->ttl = to->hop_limit;
		ip->check = 0;
		sum = sum_of(ip, IPV4_LEN);
		if (sum < 0)
			return -1;
		ip->check = ~fold(sum);
	} else {
		struct ipv6hdr *ip = (void *)(b + AT_IPV6);

		*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)to->traffic_class << 20);
		ip->hop_limit = to->hop_limit;
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

/* The headers of a packet, as far as they decide whose it is. */
struct headers {
	__be16 family, fragment;
	__u32 at;   /* offset of the BTH in the frame */
	__u16 len;  /* of the datagram, as the IP header says */
	struct udphdr udp;
	struct bth bth;
	struct deth deth;
	struct ipoib ipoib;
};

/* read_headers returns a negative error if the packet is not a RoCEv2 packet to this host. */
static __always_inline int read_headers(struct __sk_buff *skb, struct headers *h)
{
	h->family = skb->protocol;
	h->fragment = bpf_htons(IP_DONT_FRAGMENT);
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return -1;
	if (h->family == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || *(__u8 *)&ip != VERSION_IHL || ip.protocol != IPPROTO_UDP)
			return -1;
		h->fragment = ip.frag_off;
		h->len = bpf_ntohs(ip.tot_len) - IPV4_LEN;
		h->at = ETH_HLEN + IPV4_LEN + UDP_LEN;
	} else if (h->family == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_UDP)
			return -1;
		h->len = bpf_ntohs(ip.payload_len);
		h->at = ETH_HLEN + IPV6_LEN + UDP_LEN;
	} else {
		return -1;
	}
	if (bpf_skb_load_bytes(skb, h->at - UDP_LEN, &h->udp, sizeof(h->udp)) || h->udp.dest != bpf_htons(ROCE_PORT))
		return -1;
	return bpf_skb_load_bytes(skb, h->at, &h->bth, BTH_LEN + DETH_LEN + IPOIB_LEN);
}

/* undamaged reports whether the checksums and the ICRC of the packet in the scratch are right. It ends in front of its
 * ICRC, at end. */
static __always_inline int undamaged(struct scratch *s, const struct headers *h, __u32 end)
{
	__u8 *b = s->b;
	__u32 want;

	if (h->udp.check && udp_sum(b, h->family, end + ICRC_LEN) != 0xffff && h->udp.check != pseudo_sum(b, h->family, end + ICRC_LEN))
		return 0; /* it is not partial either, as on a veth */
	if (h->family == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(b + AT_IPV4);
		__s64 sum = sum_of(ip, IPV4_LEN);

		if (sum < 0 || fold(sum) != 0xffff)
			return 0;
		*(__u64 *)(b + AT_IPV4 - LRH_LEN) = ~0ull;
		ip->tos = 0xff;
		ip->ttl = 0xff;
		ip->check = 0xffff;
	} else {
		struct ipv6hdr *ip = (void *)(b + AT_IPV6);

		*(__u32 *)(b + AT_IPV6 - LRH_LEN) = ~0u;
		*(__u32 *)(b + AT_IPV6 - 4) = ~0u;
		*(__be32 *)ip |= bpf_htonl(0x0fffffff);
		ip->hop_limit = 0xff;
	}
	((struct udphdr *)(b + AT_UDP))->check = 0xffff;
	b[AT_BTH + 4] = 0xff;
	want = *(__u32 *)(b + bounded(end, ROOM));
	return icrc(s, h->family == bpf_htons(ETH_P_IPV6), end) == want;
}

#endif
