//go:build ignore

/* Selects the queue of a TAP for a frame from the host (TUNSETSTEERINGEBPF). All frames of a
 * flow use the same queue, so they stay in order and form long trains. */
#include "common.h"
#include "flow.h"

/* The number of queues to use: the first ones, in the order in which they were attached. A
 * process that attaches a further queue later gets no frames. */
volatile const __u32 queues = 1;

/* The kernel takes the result modulo the number of attached queues. */
SEC("socket")
int steer(struct __sk_buff *skb)
{
	__be16 type;

	if (queues <= 1 || bpf_skb_load_bytes(skb, ETH_TYPE, &type, sizeof(type)))
		return 0;
	return (__u64)flow_of(skb, type, ETH_HLEN).hash * queues >> 32;
}

char _license[] SEC("license") = "GPL";
