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
	InterfaceFastTxPackets     = "fast_tx_packets"
	InterfaceFastTxBytes       = "fast_tx_bytes"
	InterfaceFastRxPackets     = "fast_rx_packets"
	InterfaceFastRxBytes       = "fast_rx_bytes"
)

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
