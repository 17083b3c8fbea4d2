//go:build ignore

/* Selects the socket of an SO_REUSEPORT group for a RoCEv2 datagram: its destination QPN
 * begins with the index of the socket. The kernel does not run this program for datagrams to
 * IP multicast groups, which each socket of the group gets. */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#define UDP_HEADER 8
#define BTH_DEST_QP 5 /* 3 bytes, IBA 9.2.5 */

#define SOCKET_BITS 6

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 1 << SOCKET_BITS);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

/* Without a decision the kernel would select a socket by a hash, so a datagram for an index
 * without a socket is dropped. */
SEC("sk_reuseport")
int reuseport(struct sk_reuseport_md *md)
{
	__u8 first; /* byte of the QPN */
	__u32 index;

	if (bpf_skb_load_bytes(md, UDP_HEADER + BTH_DEST_QP, &first, sizeof(first)))
		return SK_DROP;
	index = first >> (8 - SOCKET_BITS);
	return bpf_sk_select_reuseport(md, &sockets, &index, 0) ? SK_DROP : SK_PASS;
}

char _license[] SEC("license") = "GPL";
