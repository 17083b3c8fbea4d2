//go:build ignore

/* Selects the socket of an SO_REUSEPORT group for a RoCEv2 datagram: its destination QPN begins
 * with the index of the socket. Each socket of the group receives the datagrams to IP multicast
 * groups. If there is only one, the kernel runs this program for them too (early demux). */
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

/* If the program selects no socket and passes the datagram, the kernel selects one by a hash.
 * That is right for multicast. A datagram for an index without a socket is dropped. */
SEC("sk_reuseport")
int reuseport(struct sk_reuseport_md *md)
{
	__u8 qpn[3];
	__u32 index;

	if (bpf_skb_load_bytes(md, UDP_HEADER + BTH_DEST_QP, qpn, sizeof(qpn)))
		return SK_DROP;
	if (qpn[0] == 0xff && qpn[1] == 0xff && qpn[2] == 0xff) /* multicast, IBA 3.5.3 */
		return SK_PASS;
	index = qpn[0] >> (8 - SOCKET_BITS);
	return bpf_sk_select_reuseport(md, &sockets, &index, 0) ? SK_DROP : SK_PASS;
}

char _license[] SEC("license") = "GPL";
