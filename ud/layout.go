package ud

import (
	"ipoibd/hca"
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

// A TX slot: the IPoIB header goes over the last bytes of the Ethernet header.
//
//	0           10                 20       24
//	[virtio 10] [Ethernet header 14       ] [payload]
//	                               [IPoIB 4][payload]
const (
	txEther   = vnet.HeaderLen
	txPayload = txEther + etherHeaderLen
	txMessage = txPayload - ipoib.HeaderLen
)

// A RX slot: virtio and Ethernet header go over the end of the GRH area and the
// IPoIB header.
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

// slotAlign keeps neighbouring slots on cache lines of their own.
const slotAlign = 64

// TxStride returns the bytes that a TX slot takes for an interface whose MTU
// never exceeds maxMTU bytes of IP packet. There is room for one byte more, so
// that a frame that is too long is seen to be so.
func TxStride(maxMTU int) int { return align(txPayload + maxMTU + 1) }

// RxStride returns the bytes that a RX slot takes on a port whose largest MTU
// is portMTU: GRH area, that MTU, and the IPoIB header besides, so that no peer
// can send what does not fit (a receive that is too short is a QP error).
func RxStride(portMTU hca.MTU) int {
	return align(max(rxPayload+int(portMTU), rxEther+etherMinLen))
}

func align(n int) int { return (n + slotAlign - 1) &^ (slotAlign - 1) }
