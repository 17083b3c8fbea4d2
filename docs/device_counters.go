package docs

// Counters of a device that are read by name.
const (
	DeviceTxPackets           = "tx_packets"
	DeviceRxPackets           = "rx_packets"
	DeviceNATSuspected        = "nat_suspected"
	DeviceWireTxDropForbidden = "wire_tx_drop_forbidden"
	DeviceRxOwnSource         = "rx_own_source"
	DeviceRxDropQKey          = "rx_drop_qkey"
	DeviceRxDropUnknownPeer   = "rx_drop_unknown_peer"
	DeviceRxDropPKey          = "rx_drop_pkey"
	DeviceRxOtherPKey         = "rx_other_pkey"
	DeviceRxDropNoQP          = "rx_drop_no_qp"
	DeviceRxDropGroupQPN      = "rx_drop_group_qpn"
	DeviceWireTxPackets       = "wire_tx_packets"
	DeviceWireTxDropNoRoute   = "wire_tx_drop_no_route"
	DeviceWireICMPErrors      = "wire_icmp_errors"
)

// softCounters are those of a software HCA.
var softCounters = []counter{
	{DeviceTxPackets, "datagrams sent"},
	{"tx_bytes", "bytes sent"},
	{"tx_looped", "messages for this host itself"},
	{"tx_loop_blocked", "own multicast not returned to the interface; part of `tx_looped`"},
	{DeviceRxPackets, "datagrams received"},
	{"rx_bytes", "bytes received"},
	{"rx_delivered", "messages delivered to a queue pair"},
	{DeviceRxOtherPKey, "messages to a group with a P_Key that no interface has; not a loss"},
	{"icrc_id_low", "checksum correct with an IP identification of 0 to 63; not a loss"},
	{"icrc_id_solved", "checksum correct with another IP identification; not a loss"},
	{DeviceNATSuspected, "datagrams suggest that a NAT translates their source address; anyone can forge them"},
	{"path_reports_refuted", "how often an echo refuted routers' reports of a narrow path: forged, or out of date"},
	{"cq_overrun", "completion queues that overran"},
	{"events_lost", "asynchronous events that found their queue full"},
	{"rx_drop_short", "too short for a UD SEND"},
	{"rx_drop_version", "unknown version of the transport header"},
	{"rx_drop_opcode", "another opcode than UD SEND"},
	{"rx_drop_immediate", "a UD SEND with immediate data"},
	{"rx_drop_pad", "wrong padding"},
	{"rx_drop_too_long", "payload above the largest MTU"},
	{"rx_drop_icrc", "wrong checksum"},
	{DeviceRxOwnSource, "ignored: from an address of this host, so forged"},
	{DeviceRxDropUnknownPeer, "not from a peer, with `known_peers_only`"},
	{DeviceRxDropNoQP, "no queue pair has that number"},
	{"rx_drop_gsi", "for QP 1, which does not exist here"},
	{"rx_drop_not_attached", "for a group that no queue pair has joined"},
	{DeviceRxDropGroupQPN, "to a group, without the multicast QPN"},
	{"tx_drop_peer_family", "copies for peers of the other IP family"},
	{"tx_drop_no_room", "no room in the send buffer in time"},
	{"tx_drop_transport", "the socket failed"},
	{"rx_drop_qp_state", "the queue pair does not receive now"},
	{DeviceRxDropPKey, "with another P_Key than the queue pair's"},
	{DeviceRxDropQKey, "with another Q_Key than the queue pair's"},
	{"rx_drop_no_recv", "no receive is posted"},
	{"rx_drop_recv_length", "the receive is too short"},
	{"rx_drop_recv_access", "the memory of the receive cannot be written"},
	{"tx_drop_port_down", "sends while the port is down"},
	{"tx_drop_no_source", "sends from a GID that is gone or of the other IP family"},
	{"tx_drop_send_length", "sends longer than the GID allows"},
	{"tx_drop_send_access", "sends from memory that cannot be read"},
	{DeviceWireTxPackets, "datagrams that the socket sent"},
	{"wire_tx_bytes", "bytes that the socket sent"},
	{"wire_tx_trains", "messages sent as several datagrams (UDP_SEGMENT)"},
	{"wire_tx_trains_refused", "1 if the kernel or the NIC refuses such messages, else 0"},
	{"wire_rx_packets", "datagrams that the socket received"},
	{"wire_rx_bytes", "bytes that the socket received"},
	{"wire_rx_trains", "messages received as several datagrams (UDP_GRO)"},
	{DeviceWireTxDropNoRoute, "no route to the destination"},
	{"wire_tx_drop_too_long", "longer than the MTU of the underlay"},
	{"wire_tx_drop_bad_source", "the source address is no longer the underlay's"},
	{"wire_tx_drop_link_down", "the underlay is down"},
	{"wire_tx_drop_no_device", "the underlay is gone"},
	{DeviceWireTxDropForbidden, "refused by this host's firewall"},
	{"wire_tx_drop_no_buffers", "lost on output: a queue or the neighbour table is full, or memory is short"},
	{"wire_tx_drop_refused", "ICMP errors about other packets prevented the send"},
	{"wire_tx_drop_invalid", "the addresses are of two families, or there are too many pieces"},
	{"wire_tx_drop_rejected", "any other error of the kernel"},
	{DeviceWireICMPErrors, "ICMP errors received"},
	{"wire_rx_drop_long_train", "in a message of more than 128 datagrams"},
	{"wire_rx_drop_too_long", "received, but longer than the buffer"},
	{"wire_rx_drop_no_address", "received without addresses"},
	{"wire_rx_error", "other errors of the socket on receiving; not a loss"},
	{"wire_socket_drops", "the receive buffer was full, the UDP checksum was wrong, or a process of this host was " +
		"the sender"},
	{"sockets_destroyed", "resets of the HCA because another process destroyed a socket, as `ss -K` does"},
	{"peer_addrs_refused", "addresses of peers' names that no peer can have"},
	{"peer_addrs_excess", "addresses of peers' names beyond the limits"},
}

// deviceCounters are those of any device.
var deviceCounters = []counter{
	{"guard_stale_events", "events about objects that no longer exist"},
	{"guard_verbs_abandoned", "verbs that hung and were given up"},
	{"guard_verbs_stuck", "verbs that were given up and have not returned yet"},
	{"guard_late_answers", "verbs that returned after they were given up"},
	{"guard_releases_failed", "resources that a failed device did not release"},
	{"guard_zombies", "instances of the device that still hang in its driver"},
}
