package neigh

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/ud/ipoib"
)

// Ethernet II (IEEE 802.3 clause 3): destination, source, EtherType.
const (
	etherHeaderLen = 14
	// minEtherFrame is the length of the shortest frame, without its check
	// sequence. Shorter ones are padded here, because a real port behind a bridge
	// may not do so.
	minEtherFrame = 60
)

// frame is an Ethernet frame from the host.
type frame struct {
	dst, src ipoib.MAC
	typ      ipoib.EtherType
	raw      []byte // including the header
}

func parseFrame(raw []byte) (frame, bool) {
	if len(raw) < etherHeaderLen {
		return frame{}, false
	}
	return frame{
		dst: ipoib.MAC(raw[0:]),
		src: ipoib.MAC(raw[6:]),
		typ: ipoib.EtherType(binary.BigEndian.Uint16(raw[12:])),
		raw: raw,
	}, true
}

func (f frame) body() []byte { return f.raw[etherHeaderLen:] }

// readdressed returns f with another destination, which it writes into f.raw.
func (f frame) readdressed(dst ipoib.MAC) frame {
	copy(f.raw, dst[:])
	f.dst = dst
	return f
}

// isARP reports whether f has an ARP body.
func (f frame) isARP() bool { return f.typ == ipoib.EtherTypeARP || f.typ == ipoib.EtherTypeRARP }

// isND reports whether f is Neighbour Discovery.
func (f frame) isND() bool { return f.typ == ipoib.EtherTypeIPv6 && ipoib.IsND(f.body()) }

// ips returns the sender's and target's addresses of an ARP body, or the source
// and destination of an IP packet. They are invalid if there are none.
func (f frame) ips() (src, dst netip.Addr) {
	if f.isARP() {
		arp, _ := ipoib.ParseEtherARP(f.body())
		return arp.SPA, arp.TPA
	}
	src, _ = ipoib.SourceIP(f.typ, f.body())
	dst, _ = ipoib.DestIP(f.typ, f.body())
	return src, dst
}

// newFrame returns the header of a frame, with capacity for a short body.
func newFrame(dst, src ipoib.MAC, typ ipoib.EtherType) []byte {
	b := append(make([]byte, 0, 128), dst[:]...)
	b = append(b, src[:]...)
	return binary.BigEndian.AppendUint16(b, uint16(typ))
}

// padded pads a frame with zeros to the minimum length.
func padded(frame []byte) []byte {
	if n := minEtherFrame - len(frame); n > 0 {
		frame = append(frame, make([]byte, n)...)
	}
	return frame
}

// newMessage returns the header of an IPoIB message, with capacity for a short
// body.
func newMessage(typ ipoib.EtherType) []byte {
	b := make([]byte, ipoib.HeaderLen, 128)
	ipoib.PutHeader(b, typ)
	return b
}
