//go:build ignore

/* Selects the socket of a SO_REUSEPORT group for a RoCEv2 datagram, by its destination QPN.
 * The kernel does not run it for datagrams to IP multicast groups: it gives those to each
 * socket of the group. */
#include "common.h"

#define DEST_QPN (8 + 5)       /* behind the UDP header, in the BTH (IBA 9.2) */
#define MULTICAST_QPN 0xffffff /* IBA 10.5.1 */

/* In the order of the constants in reuseport.go. */
enum verdict { SELECTED, MULTICAST, SHORT, NO_QP, NO_SOCKET, VERDICTS };

struct reuseport_counts {
	__u64 verdicts[VERDICTS];
};

COUNTS(struct reuseport_counts);

/* The socket of each QPN, by its index in sockets. The sizes are those of the specification. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} qpns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

static __always_inline enum verdict verdict(struct sk_reuseport_md *md)
{
	__u32 qpn, *index, first = 0;
	__u8 bytes[3];

	if (bpf_skb_load_bytes(md, DEST_QPN, bytes, sizeof(bytes)))
		return SHORT;
	qpn = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
	if (qpn == MULTICAST_QPN)
		return bpf_sk_select_reuseport(md, &sockets, &first, 0) ? NO_SOCKET : MULTICAST;
	index = bpf_map_lookup_elem(&qpns, &qpn);
	if (!index)
		return NO_QP;
	return bpf_sk_select_reuseport(md, &sockets, index, 0) ? NO_SOCKET : SELECTED;
}

/* A datagram that is not for one of the sockets is dropped: without a decision, the kernel
 * would give it to a socket selected by a hash. */
SEC("sk_reuseport")
int reuseport(struct sk_reuseport_md *md)
{
	enum verdict v = verdict(md);
	struct reuseport_counts *c;
	__u32 key = 0;

	c = bpf_map_lookup_elem(&counts, &key);
	if (c)
		c->verdicts[v]++;
	return v == SELECTED || v == MULTICAST ? SK_PASS : SK_DROP;
}

char _license[] SEC("license") = "GPL";
