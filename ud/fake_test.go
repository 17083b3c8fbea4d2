package ud

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Test addresses: A is our own host, B a peer on the fabric.
var (
	macA    = ipoib.MAC{0x02, 0, 0, 0, 0, 0xa}
	macB    = ipoib.MAC{0x02, 0, 0, 0, 0, 0xb}
	macX    = ipoib.MAC{0x02, 0, 0, 0, 0, 0x99} // in no snapshot
	gidA    = hca.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	gidB    = hca.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	destB   = hca.UDDest{AH: fakeAH(1), QPN: 0x1234, QKey: 0xb1b}
	destAll = hca.UDDest{AH: fakeAH(2), QPN: hca.QPNMulticast, QKey: 0xb1b}
	destGrp = hca.UDDest{AH: fakeAH(3), QPN: hca.QPNMulticast, QKey: 0xb1b}
)

const (
	qpnA     = hca.QPN(0x77)
	qpnB     = hca.QPN(0x1234)
	testMTU  = 2044
	testPKey = hca.PKey(0x8001)
)

type fakeAH int

func (fakeAH) Spec() hca.AHSpec { return hca.AHSpec{} }
func (fakeAH) Close() error     { return nil }

// unknownIP is an address that is not known on the host's side.
var unknownIP = netip.MustParseAddr("10.0.0.9")

// fakePeers knows B, the broadcast group and groups by MGID.
type fakePeers struct {
	epoch  uint64
	groups map[hca.GID]hca.UDDest

	sent, heard atomic.Uint64 // bytes, to and from B
}

func newPeers(epoch uint64) *fakePeers {
	return &fakePeers{epoch: epoch, groups: map[hca.GID]hca.UDDest{
		ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, testPKey):                               destAll,
		ipoib.GroupMGID(ipoib.ScopeLinkLocal, testPKey, netip.MustParseAddr("239.1.2.3")): destGrp,
		ipoib.GroupMGID(ipoib.ScopeLinkLocal, testPKey, netip.MustParseAddr("ff02::fb")):  destGrp,
	}}
}

func (p *fakePeers) Unicast(dst ipoib.MAC) (hca.UDDest, *atomic.Uint64, bool) {
	return destB, &p.sent, dst == macB
}

func (p *fakePeers) Group(mgid hca.GID) (hca.UDDest, bool)            { d, ok := p.groups[mgid]; return d, ok }
func (p *fakePeers) PeerMAC(hca.UDSource) (ipoib.MAC, *atomic.Uint64) { return macB, &p.heard }
func (p *fakePeers) InUse(hca.UDSource) bool                          { return false }
func (p *fakePeers) StationMAC(ip netip.Addr) (ipoib.MAC, bool)       { return macA, ip != unknownIP }
func (p *fakePeers) FromHost(src ipoib.MAC) bool                      { return src == macA }
func (p *fakePeers) IsHost(src ipoib.MAC) bool                        { return src == macA }
func (p *fakePeers) Self(from hca.UDSource) bool                      { return from == hca.UDSource{GID: gidA, QPN: qpnA} }
func (p *fakePeers) Epoch() uint64                                    { return p.epoch }

// fakeSlow keeps everything that it receives, or refuses it.
type fakeSlow struct {
	full   bool
	frames [][]byte
	msgs   [][]byte
	from   []Sender
}

func (s *fakeSlow) FromHost(frame []byte) bool {
	if !s.full {
		s.frames = append(s.frames, slices.Clone(frame))
	}
	return !s.full
}

func (s *fakeSlow) FromFabric(msg []byte, from Sender) Reason {
	if s.full {
		return SlowPathFull
	}
	s.msgs, s.from = append(s.msgs, slices.Clone(msg)), append(s.from, from)
	return SlowPathed
}

// fakeSource returns the queued frames, then 0 and nil, as if woken.
type fakeSource struct {
	frames [][]byte
	next   int
	wakes  atomic.Int64
	err    error
	onRead func() // called at the start of every read
}

func (s *fakeSource) Wake() { s.wakes.Add(1) }

func (s *fakeSource) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	if s.onRead != nil {
		s.onRead()
	}
	n := 0
	for n < len(bufs) && s.next < len(s.frames) {
		sizes[n] = len(s.frames[s.next])
		copy(bufs[n], s.frames[s.next])
		s.next++
		n++
	}
	return n, s.err
}

func (s *fakeSource) add(frames ...[]byte) { s.frames = append(s.frames, frames...) }

// fakeSink keeps the first accept frames of each batch, or all if accept is
// negative.
type fakeSink struct {
	frames  [][]byte
	accept  int
	err     error
	discard bool
}

func (s *fakeSink) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	n := len(frames)
	if s.accept >= 0 {
		n = min(n, s.accept)
	}
	for i, f := range frames {
		if accepted[i] = i < n; accepted[i] && !s.discard {
			s.frames = append(s.frames, slices.Concat(f...))
		}
	}
	return n, s.err
}
