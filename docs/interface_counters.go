package docs

// Counters of an interface that are read by name.
const (
	InterfaceTxOutstanding     = "tx_outstanding"
	InterfaceTxQueued          = "tx_queued"
	InterfaceTxDropReset       = "tx_drop_reset"
	InterfaceTxTakenBack       = "tx_taken_back"
	InterfaceRxOutstanding     = "rx_outstanding"
	InterfaceRxTakenBack       = "rx_taken_back"
	InterfaceNeighKept         = "neigh_kept"
	InterfaceNeighDropDetached = "neigh_drop_detached"
	InterfaceKernelTxPackets   = "kernel_tx_packets"
	InterfaceKernelTxBytes     = "kernel_tx_bytes"
	InterfaceKernelTxDropped   = "kernel_tx_dropped"
	InterfaceKernelTxErrors    = "kernel_tx_errors"
	InterfaceKernelRxPackets   = "kernel_rx_packets"
	InterfaceKernelRxBytes     = "kernel_rx_bytes"
	InterfaceKernelRxDropped   = "kernel_rx_dropped"
	InterfaceKernelRxErrors    = "kernel_rx_errors"
)

// hostCounters count frames from the host.
var hostCounters = []counter{
	{"tx_read", "frames read from `ib0`"},
	{"tx_injected", "the daemon's own messages: resolution, announcements, probes"},
	{"tx_sent", "the send completed"},
	{"tx_slow_path", "passed to the peer table (`neigh_*`); of a large frame, only the first segment"},
	{"tx_drop_truncated", "longer than its buffer"},
	{"tx_drop_runt", "shorter than its headers"},
	{"tx_drop_offload", "requests an offload that `ib0` does not offer, an inconsistent one, or more than 2048 " +
		"segments"},
	{"tx_drop_ethertype", "unsupported EtherType"},
	{"tx_drop_too_long", "longer than the MTU"},
	{"tx_drop_long_headers", "a large frame with more than 252 bytes of headers, because of IPv6 extensions; after " +
		"`ip link set ib0 gso_max_segs 1`, the kernel cuts such frames itself"},
	{"tx_drop_hidden_nd", "neighbour discovery behind IPv6 extension headers"},
	{"tx_drop_foreign_source", "comes from, claims or probes for an IP address that is not the interface's " +
		"(`source_check`)"},
	{"tx_drop_router_message", "a router advertisement or a redirect (`source_check`)"},
	{"tx_drop_no_peers", "the peer table is not ready yet"},
	{"tx_drop_slow_path_full", "the peer table is busy"},
	{"tx_drop_inject_full", "the queue of the daemon's own messages is full"},
	{"tx_drop_no_qp", "the daemon's own message, without a queue pair"},
	{"tx_drop_post_refused", "the queue pair refused the send as invalid"},
	{InterfaceTxDropReset, "taken back when the queue pair was reset"},
	{"tx_drop_held", "waited longer than 500 ms without a carrier"},
	{"tx_wc_*", "the send failed, by completion status, such as `tx_wc_wr_flush_err`"},
	{"tx_posts", "sends posted"},
	{"tx_completions", "sends completed"},
	{InterfaceTxTakenBack, "sends taken back by a reset"},
	{InterfaceTxOutstanding, "sends outstanding now"},
	{"tx_stale_completions", "completions of sends on an earlier queue pair"},
	{"tx_foreign_completions", "completions of no posted send"},
	{InterfaceTxQueued, "the daemon's own messages waiting now"},
	{"tx_stalls", "how often the send queue was full"},
	{"tx_large", "large frames posted, to be cut into segments"},
	{"tx_segments", "segments of large frames"},
	{"tx_segment_drop_unresolved", "segments of large frames for the peer table, which gets only the first of each " +
		"frame (`tx_slow_path`)"},
}

// fabricCounters count datagrams from the fabric.
var fabricCounters = []counter{
	{"rx_received", "received"},
	{"rx_delivered", "delivered to the host"},
	{"rx_slow_path", "passed to the peer table"},
	{"rx_probe", "the daemon's own probe for freezes"},
	{"rx_drop_truncated", "longer than the receive buffer"},
	{"rx_drop_runt", "shorter than its headers"},
	{"rx_drop_no_grh", "without the sender's GID"},
	{"rx_drop_bad_grh", "the sender's GID cannot be read"},
	{"rx_drop_ethertype", "unsupported EtherType"},
	{"rx_drop_too_long", "longer than the group's MTU"},
	{"rx_drop_hidden_nd", "neighbour discovery behind IPv6 extension headers"},
	{"rx_drop_no_peers", "the peer table is not ready yet"},
	{"rx_own_multicast", "own message to a group, looped back; not a loss"},
	{"rx_drop_malformed", "no IP header behind an IP ethertype"},
	{"rx_drop_slow_path_full", "the peer table is busy"},
	{"rx_drop_slow_path_limit", "ARP, neighbour discovery and echo messages of one GID beyond 1000 a second, without " +
		"the first 16 a second of each peer that the host sends data to"},
	{"rx_drop_sink_refused", "refused by the host (`tap_drop_write_*` says why)"},
	{"rx_wc_*", "the receive failed, by completion status; after a reset, `rx_wc_wr_flush_err` counts receives that " +
		"held no frame"},
	{"rx_posts", "receives posted"},
	{"rx_completions", "receives completed; one may hold several messages of a flow"},
	{InterfaceRxTakenBack, "receives taken back by a reset"},
	{InterfaceRxOutstanding, "receives outstanding now"},
	{"rx_stale_completions", "completions of receives on an earlier queue pair"},
	{"rx_foreign_completions", "completions of no posted receive"},
	{"rx_merged", "messages joined with the one before into one frame to the host"},
}

// peerCounters count what the peer table does.
var peerCounters = []counter{
	{"neigh_from_host", "frames from the host"},
	{"neigh_from_fabric", "frames from the fabric"},
	{"neigh_pings", "echo requests of `ipoibd ping`"},
	{"neigh_echo_replies", "echo replies from the fabric"},
	{"neigh_to_fabric", "frames sent at once"},
	{"neigh_to_host", "frames delivered at once"},
	{InterfaceNeighKept, "frames kept now, until their destination is resolved"},
	{"neigh_kept_sent", "frames kept, and sent later"},
	{"neigh_requests", "own ARP requests and neighbour solicitations"},
	{"neigh_announcements", "gratuitous ARP and unsolicited advertisements"},
	{"neigh_corrections", "messages to the host that correct a peer's MAC"},
	{"neigh_silences", "how often it asked for the addresses of a silent peer"},
	{"neigh_stray_notices", "senders to an earlier queue pair that were informed of the present one"},
	{"neigh_stray_paused", "datagrams for an earlier queue pair, from a sender that was informed recently"},
	{"neigh_stray_limited", "datagrams for an earlier queue pair, from one of too many senders to inform"},
	{"neigh_stray_unanswerable", "datagrams for an earlier queue pair, from a sender that could not be informed"},
	{"neigh_peers_evicted", "peers removed to make room for others"},
	{"neigh_ah_errors", "address handles that could not be created"},
	{"neigh_drop_runt", "too short for its headers"},
	{"neigh_drop_oversize", "longer than the MTU"},
	{"neigh_drop_ethertype", "unsupported EtherType"},
	{"neigh_drop_bad_source", "the source MAC is zero or multicast, or the source GID or QPN is impossible"},
	{"neigh_drop_foreign_mac", "from a second MAC behind `ib0`"},
	{"neigh_drop_looped_mac", "from the host, with the MAC of a peer: a loop behind `ib0`"},
	{"neigh_drop_to_self", "from the host to its own MAC"},
	{InterfaceNeighDropDetached, "there is no queue pair"},
	{"neigh_drop_bad_arp", "malformed ARP"},
	{"neigh_drop_bad_nd", "malformed neighbour discovery"},
	{"neigh_drop_unmapped_link_address", "neighbour discovery with an unknown link-layer address"},
	{"neigh_drop_nd_too_long", "neighbour discovery longer than the MTU after its translation"},
	{"neigh_drop_forged_link_address", "the hardware address differs from the sender's GID and QPN"},
	{"neigh_own_multicast", "own message, looped back; not a loss"},
	{"neigh_drop_unresolvable", "unknown destination MAC without an address to resolve"},
	{"neigh_drop_unresolved", "the destination did not answer"},
	{"neigh_drop_resolutions_full", "too many addresses being resolved"},
	{"neigh_drop_kept_frames_full", "too many frames kept for one destination"},
	{"neigh_drop_kept_bytes_full", "too many bytes kept in total"},
	{"neigh_drop_ah_failed", "the address handle could not be created"},
	{"neigh_drop_ah_limit", "too many address handles are being created"},
	{"neigh_drop_evicted", "kept for a peer that was removed"},
	{"neigh_drop_bad_echo", "an echo that is malformed, or was sent to a group"},
	{"neigh_drop_echo_stranger", "an echo request from or to an interface that has not announced itself"},
	{"neigh_drop_echo_limit", "more than 1000 echo requests a second"},
}

// otherCounters count what the freeze detector, the kernel and the TAP do.
var otherCounters = []counter{
	{"freeze_probes", "probes sent to the interface's own queue pair"},
	{"freeze_found_by_poll", "how often only a poll found what had been received, which the device did not report"},
	{InterfaceKernelTxPackets, "frames from the host to the daemon"},
	{InterfaceKernelTxBytes, "bytes from the host to the daemon"},
	{InterfaceKernelTxDropped, "frames from the host: the queue of `ib0` was full, no daemon ran, or the eBPF filter " +
		"of an earlier daemon dropped them"},
	{InterfaceKernelTxErrors, "errors of frames from the host"},
	{InterfaceKernelRxPackets, "frames from the daemon to the host"},
	{InterfaceKernelRxBytes, "bytes from the daemon to the host"},
	{InterfaceKernelRxDropped, "frames from the daemon that the kernel dropped"},
	{InterfaceKernelRxErrors, "errors of frames from the daemon"},
	{"tap_read", "frames read from `ib0`"},
	{"tap_written", "frames written to `ib0`"},
	{"tap_filter_passed", "frames from the host that the eBPF filter passed"},
	{"tap_drop_filter_runt", "eBPF filter: shorter than an Ethernet header"},
	{"tap_drop_filter_vlan", "eBPF filter: a VLAN tag"},
	{"tap_drop_filter_llc", "eBPF filter: IEEE 802.3 with a length instead of a type, such as STP"},
	{"tap_drop_filter_lldp", "eBPF filter: LLDP"},
	{"tap_drop_filter_pppoe", "eBPF filter: PPPoE"},
	{"tap_drop_filter_other", "eBPF filter: any other unsupported EtherType"},
	{"tap_segments_*", "passed frames by number of segments: `tap_segments_16_31` counts those of 16 to 31"},
	{"tap_bytes_*", "passed frames by length in bytes"},
	{"tap_wait_ns_*", "frames for which the daemon waited, by wake-up latency in nanoseconds; with one lane only"},
	{"tap_waited_ns", "sum of the wake-up latencies, in nanoseconds"},
	{"tap_drop_read_too_long", "a frame from `ib0` longer than the buffer"},
	{"tap_drop_write_invalid", "refused by the kernel as invalid"},
	{"tap_drop_write_down", "`ib0` is down"},
	{"tap_drop_write_no_memory", "the kernel has no memory or its queue is full"},
	{"tap_drop_write_other", "refused by the kernel for another reason"},
}
