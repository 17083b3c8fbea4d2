package neigh

import (
	"container/list"
	"net/netip"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// endpoint identifies a queue pair on the fabric.
type endpoint struct {
	gid hca.GID
	qpn hca.QPN
}

func endpointOf(a ipoib.Addr) endpoint { return endpoint{a.GID(), a.QPN()} }

func (e endpoint) addr() ipoib.Addr { return ipoib.NewAddr(e.qpn, e.gid) }

// key returns the key of e as a sender on RoCE.
func (e endpoint) key() hca.UDSource { return hca.UDSource{GID: e.gid, QPN: e.qpn} }

// valid reports whether a UD sender can have this endpoint (IBA 1.4, 3.5.10 and
// 4.1.1).
func (e endpoint) valid() bool {
	return !e.gid.IsZero() && !e.gid.IsMulticast() && e.qpn > hca.QPNGSI && e.qpn < hca.QPNMulticast
}

// peer is an interface on the fabric, which the host sees as a MAC.
type peer struct {
	endpoint
	mac       ipoib.MAC
	plain     bool         // mac is plainMAC of the GID
	lid       hca.LID      // its key in byLID, without path bits; 0: byLID does not have it, or RoCE
	ips       []netip.Addr // bound to it, the latest claim last
	claimed   bool         // it has ever claimed an address
	used      bool         // the host has sent data to it
	proven    bool         // it has ever sent data
	seen      time.Time    // when data was last sent to it, or it was last heard
	sent      traffic      // data sent to it
	heard     traffic      // data received from it
	sentAt    time.Time    // when data was last sent to it; zero: never
	heardAt   time.Time    // when data, ARP or ND was last received from it; zero: never
	place     *list.Element
	handle    handle
	kept      queue     // messages
	corrected time.Time // time of the last correction sent to the host
	silence   silence
	doubt     doubt
	shown     shown
}

// byLID returns the key by which byLID has p.
func (p *peer) byLID() hca.UDSource { return hca.UDSource{LID: p.lid, QPN: p.qpn} }

// traffic is data in one direction, as the data path has seen it.
type traffic struct {
	mark  atomic.Bool   // set by snapshots: there was some since marks were last read
	bytes atomic.Uint64 // of IP packets
}

// busy reports whether the host sends data to p.
func (p *peer) busy() bool { return p.used || p.sent.mark.Load() }

// alive reports whether p, which has sent data before, was heard within silenceLimit.
func (p *peer) alive(now time.Time) bool {
	return p.proven && (p.heard.mark.Load() || now.Sub(p.heardAt) < silenceLimit)
}

// seen reports whether there was traffic since the last call.
func (t *traffic) seen() bool { return t.mark.Load() && t.mark.Swap(false) }

// add marks and counts traffic of n bytes.
func (t *traffic) add(n uint64) {
	if n > 0 {
		t.bytes.Add(n)
		mark(&t.mark)
	}
}
