package ud

import (
	"ipoibd/hca"
	"ipoibd/hca/join"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// Ethernet (IEEE 802.3, 3.1.1 and 4.4.2).
const (
	etherHeaderLen = 14
	etherSrc       = 6
	etherType      = 12
	etherMinLen    = 60 // without the frame check sequence
)

// A TX slot: the IPoIB header overwrites the last bytes of the Ethernet header.
//
//	0           10                 20       24
//	[virtio 10] [Ethernet header 14       ] [payload]
//	                               [IPoIB 4][payload]
const (
	txEther   = vnet.HeaderLen
	txPayload = txEther + etherHeaderLen
	txMessage = txPayload - ipoib.HeaderLen
)

// An RX slot: virtio and Ethernet headers overwrite the end of the GRH area and
// the IPoIB header.
//
//	0           20          30         40       44
//	[GRH area 40                     ] [IPoIB 4][payload]
//	            [virtio 10] [Ethernet header 14][payload]
const (
	rxMessage = hca.GRHLen
	rxPayload = rxMessage + ipoib.HeaderLen
	rxEther   = rxPayload - etherHeaderLen
	rxFrame   = rxEther - vnet.HeaderLen
)

// slotAlign keeps neighbouring slots on separate cache lines.
const slotAlign = 64

// maxLarge is the longest Ethernet frame that a host leaves to the device to segment. The kernel
// cuts longer ones itself (GSO_LEGACY_MAX_SIZE, linux/netdevice.h).
const maxLarge = 1<<16 - 1

// TxStride returns the size of a TX slot in bytes for an interface whose MTU
// never exceeds maxMTU bytes of IP packet, on a device that segments up to maxTSO bytes (0:
// none). It includes one extra byte, so that too long a frame is detected.
func TxStride(maxMTU, maxTSO int) int {
	size := txPayload + maxMTU
	if maxTSO > 0 {
		size = max(size, vnet.HeaderLen+maxLarge)
	}
	return align(size + 1)
}

// RxStride returns the size of an RX slot in bytes on a port whose largest MTU
// is portMTU: GRH area, that MTU and the IPoIB header, so that every message
// that a peer can send fits (a receive buffer that is too short causes a QP
// error). If the device joins messages (lro), a large frame fits as well.
func RxStride(portMTU hca.MTU, lro bool) int {
	size := max(rxPayload+int(portMTU), rxEther+etherMinLen)
	if lro {
		size = max(size, rxPayload+join.MaxBytes)
	}
	return align(size)
}

func align(n int) int { return (n + slotAlign - 1) &^ (slotAlign - 1) }
