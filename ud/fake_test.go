package ud

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// The addresses of the tests: a.. is the host here, b.. a peer on the fabric.
var (
	macA    = ipoib.MAC{0x02, 0, 0, 0, 0, 0xa}
	macB    = ipoib.MAC{0x02, 0, 0, 0, 0, 0xb}
	macX    = ipoib.MAC{0x02, 0, 0, 0, 0, 0x99} // nobody's
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

// fakePeers knows B, the broadcast group and groups by MGID.
type fakePeers struct {
	epoch  uint64
	groups map[hca.GID]hca.UDDest
}

func newPeers(epoch uint64) *fakePeers {
	return &fakePeers{epoch, map[hca.GID]hca.UDDest{
		ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, testPKey):                               destAll,
		ipoib.GroupMGID(ipoib.ScopeLinkLocal, testPKey, netip.MustParseAddr("239.1.2.3")): destGrp,
		ipoib.GroupMGID(ipoib.ScopeLinkLocal, testPKey, netip.MustParseAddr("ff02::fb")):  destGrp,
	}}
}

func (p *fakePeers) Unicast(dst ipoib.MAC) (hca.UDDest, bool) { return destB, dst == macB }
func (p *fakePeers) Group(mgid hca.GID) (hca.UDDest, bool)    { d, ok := p.groups[mgid]; return d, ok }
func (p *fakePeers) PeerMAC(hca.GID, hca.QPN) ipoib.MAC       { return macB }
func (p *fakePeers) HostMAC() ipoib.MAC                       { return macA }
func (p *fakePeers) FromHost(src ipoib.MAC) bool              { return src == macA }
func (p *fakePeers) Self(gid hca.GID, qpn hca.QPN) bool       { return gid == gidA && qpn == qpnA }
func (p *fakePeers) Epoch() uint64                            { return p.epoch }

// fakeSlow keeps what it is given, or refuses it.
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

func (s *fakeSlow) FromFabric(msg []byte, from Sender) bool {
	if !s.full {
		s.msgs, s.from = append(s.msgs, slices.Clone(msg)), append(s.from, from)
	}
	return !s.full
}

// fakeSource gives the queued frames, then 0 and nil, as if woken.
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

// fakeSink keeps the first accept frames of each batch; all when negative.
type fakeSink struct {
	frames  [][]byte
	accept  int
	err     error
	discard bool
}

func (s *fakeSink) WriteBatch(frames [][]byte) (int, error) {
	n := len(frames)
	if s.accept >= 0 {
		n = min(n, s.accept)
	}
	if !s.discard {
		for _, f := range frames[:n] {
			s.frames = append(s.frames, slices.Clone(f))
		}
	}
	return n, s.err
}

// fakeMR is memory whose addresses are offsets.
type fakeMR struct{ mem []byte }

func (m *fakeMR) Bytes() []byte { return m.mem }
func (m *fakeMR) Close() error  { return nil }
func (m *fakeMR) SGE(off, n int) hca.SGE {
	_ = m.mem[off : off+n]
	return hca.SGE{Addr: uint64(off), Length: uint32(n), LKey: 7}
}

func (m *fakeMR) at(e hca.SGE) []byte { return m.mem[e.Addr:][:e.Length] }

// fakeCQ is a queue of completions. Wait never blocks: it calls onWait, where
// the test lets the device go on.
type fakeCQ struct {
	hca.CQ
	wcs    []hca.WC
	err    error
	armed  int
	waits  int
	onArm  func()
	onWait func(until time.Time)
}

func (c *fakeCQ) add(wcs ...hca.WC) { c.wcs = append(c.wcs, wcs...) }

func (c *fakeCQ) Poll(wc []hca.WC) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[:copy(c.wcs, c.wcs[n:])]
	return n, nil
}

func (c *fakeCQ) Arm() error {
	c.armed++
	if c.onArm != nil {
		c.onArm()
	}
	return nil
}

func (c *fakeCQ) Wait(until time.Time) error {
	c.waits++
	if c.onWait != nil {
		c.onWait(until)
	}
	return nil
}

// posted is a work request as a device has it.
type posted struct {
	id       uint64
	sge      hca.SGE
	to       hca.UDDest
	signaled bool
}

// fakeQP keeps what is posted until the test completes it. Queues are depth
// deep; sends complete at once with auto.
type fakeQP struct {
	hca.QP
	mr             *fakeMR
	sendCQ, recvCQ *fakeCQ
	depth          int
	auto           bool
	refuse         error // of the next posts, after refuseAfter were taken
	refuseAfter    int
	sends, recvs   []posted
	sendCalls      int
}

func (q *fakeQP) Num() hca.QPN     { return qpnA }
func (q *fakeQP) Spec() hca.QPSpec { return hca.QPSpec{SendWRs: q.depth, RecvWRs: q.depth} }

// room returns how many of n posts are taken, and why not more.
func (q *fakeQP) room(n, used int) (int, error) {
	switch {
	case q.refuse != nil && q.refuseAfter < n:
		return q.refuseAfter, q.refuse
	case q.depth-used < n:
		return max(q.depth-used, 0), hca.ErrQueueFull
	}
	return n, nil
}

func (q *fakeQP) PostSend(wrs []hca.SendWR) (int, error) {
	q.sendCalls++
	n, err := q.room(len(wrs), len(q.sends))
	for i := range n {
		w := &wrs[i]
		q.sends = append(q.sends, posted{w.ID, w.SGList[0], w.UD, w.Flags&hca.SendSignaled != 0})
	}
	if q.auto {
		q.completeSends(len(q.sends), hca.WCSuccess)
	}
	return n, err
}

func (q *fakeQP) PostRecv(wrs []hca.RecvWR) (int, error) {
	n, err := q.room(len(wrs), len(q.recvs))
	for i := range n {
		q.recvs = append(q.recvs, posted{id: wrs[i].ID, sge: wrs[i].SGList[0]})
	}
	return n, err
}

// completeSends ends the n oldest sends; unsignaled successes are silent.
func (q *fakeQP) completeSends(n int, status hca.WCStatus) {
	for _, s := range q.sends[:n] {
		if s.signaled || status != hca.WCSuccess {
			q.sendCQ.add(hca.WC{ID: s.id, Status: status, Opcode: hca.WCSend})
		}
	}
	q.sends = q.sends[:copy(q.sends, q.sends[n:])]
}

// receive puts a message of B behind a GRH into the oldest receive.
func (q *fakeQP) receive(msg []byte, dgid hca.GID) {
	q.receiveWC(msg, dgid, hca.WC{Flags: hca.WCFlagGRH, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(msg))})
}

func (q *fakeQP) receiveWC(msg []byte, dgid hca.GID, wc hca.WC) {
	buf := q.mr.at(q.recvs[0].sge)
	putGRH(buf, gidB, dgid)
	copy(buf[hca.GRHLen:], msg)
	q.completeRecv(wc)
}

// completeRecv ends the oldest receive.
func (q *fakeQP) completeRecv(wc hca.WC) {
	wc.ID, wc.Opcode = q.recvs[0].id, hca.WCRecv
	q.recvs = q.recvs[:copy(q.recvs, q.recvs[1:])]
	q.recvCQ.add(wc)
}

// completeID ends the receive with this ID, or one that was never posted.
func (q *fakeQP) completeID(id uint64, wc hca.WC) {
	wc.ID, wc.Opcode = id, hca.WCRecv
	q.recvs = slices.DeleteFunc(q.recvs, func(p posted) bool { return p.id == id })
	q.recvCQ.add(wc)
}

// putGRH writes the IPv6 layout of a GRH area.
func putGRH(buf []byte, sgid, dgid hca.GID) {
	clear(buf[:hca.GRHLen])
	buf[0] = 0x60
	copy(buf[8:], sgid[:])
	copy(buf[24:], dgid[:])
}

// frame returns virtio header, Ethernet header and payload.
func frame(dst, src ipoib.MAC, typ ipoib.EtherType, payload []byte) []byte {
	f := make([]byte, vnet.HeaderLen, txPayload+len(payload))
	f = append(append(f, dst[:]...), src[:]...)
	f = binary.BigEndian.AppendUint16(f, uint16(typ))
	return append(f, payload...)
}

// ipv4 returns a packet of n bytes to dst, counting bytes behind its header.
func ipv4(dst string, n int) []byte {
	p := make([]byte, n)
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(n))
	src, to := netip.MustParseAddr("10.0.0.1").As4(), netip.MustParseAddr(dst).As4()
	copy(p[12:], src[:])
	copy(p[16:], to[:])
	for i := 20; i < n; i++ {
		p[i] = byte(i)
	}
	return p
}

// ipv6 returns a packet of n bytes to dst with the given next header and type.
func ipv6(dst string, next, icmpType, hops byte, n int) []byte {
	p := make([]byte, n)
	p[0], p[6], p[7] = 0x60, next, hops
	binary.BigEndian.PutUint16(p[4:], uint16(n-40))
	src, to := netip.MustParseAddr("fe80::1").As16(), netip.MustParseAddr(dst).As16()
	copy(p[8:], src[:])
	copy(p[24:], to[:])
	if n > 40 {
		p[40] = icmpType
	}
	return p
}

func udp6(dst string) []byte { return ipv6(dst, 17, 0, 64, 60) }
func ns6(dst string) []byte  { return ipv6(dst, 58, 135, 255, 72) }

// msg returns an IPoIB message.
func msg(typ ipoib.EtherType, payload []byte) []byte {
	m := make([]byte, ipoib.HeaderLen, ipoib.HeaderLen+len(payload))
	ipoib.PutHeader(m, typ)
	return append(m, payload...)
}

// txBench is a Tx on fakes.
type txBench struct {
	*Tx
	src   *fakeSource
	slow  *fakeSlow
	snap  *Snapshot
	qp    *fakeQP
	fails []Failure
}

func newTxBench(t testing.TB, slots int) *txBench {
	t.Helper()
	b := &txBench{src: &fakeSource{}, slow: &fakeSlow{}, snap: &Snapshot{}}
	b.snap.Publish(newPeers(1))
	cfg := TxConfig{
		Slots: slots, MaxMTU: testMTU, MTU: testMTU, Scope: ipoib.ScopeLinkLocal, PKey: testPKey,
		Source: b.src, SlowPath: b.slow, Peers: b.snap,
		OnFailure: func(f Failure) { b.fails = append(b.fails, f) },
	}
	tx, err := NewTx(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Tx = tx
	b.qp = &fakeQP{mr: &fakeMR{make([]byte, cfg.MRLen())}, sendCQ: &fakeCQ{}, depth: slots}
	b.attach(t, 1)
	return b
}

func (b *txBench) attach(t testing.TB, gen uint32) {
	t.Helper()
	if err := b.Attach(b.qp, b.qp.sendCQ, b.qp.mr, gen); err != nil {
		t.Fatal(err)
	}
}

func (b *txBench) pump(t testing.TB) {
	t.Helper()
	if err := b.Pump(); err != nil {
		t.Fatal(err)
	}
}

// sent returns the messages that the QP has.
func (b *txBench) sent() (out [][]byte) {
	for _, s := range b.qp.sends {
		out = append(out, b.qp.mr.at(s.sge))
	}
	return out
}

// rxBench is a Rx on fakes.
type rxBench struct {
	*Rx
	sink  *fakeSink
	slow  *fakeSlow
	snap  *Snapshot
	qp    *fakeQP
	fails []Failure
}

func newRxBench(t testing.TB, slots int) *rxBench {
	t.Helper()
	b := &rxBench{sink: &fakeSink{accept: -1}, slow: &fakeSlow{}, snap: &Snapshot{}}
	b.snap.Publish(newPeers(1))
	cfg := RxConfig{
		Slots: slots, PortMTU: 4096, MTU: testMTU, Sink: b.sink, SlowPath: b.slow, Peers: b.snap,
		OnFailure: func(f Failure) { b.fails = append(b.fails, f) },
	}
	rx, err := NewRx(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Rx = rx
	b.qp = &fakeQP{mr: &fakeMR{make([]byte, cfg.MRLen())}, recvCQ: &fakeCQ{}, depth: slots}
	b.attach(t, 1)
	return b
}

func (b *rxBench) attach(t testing.TB, gen uint32) {
	t.Helper()
	if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, gen); err != nil {
		t.Fatal(err)
	}
}

func (b *rxBench) pump(t testing.TB) {
	t.Helper()
	if err := b.Pump(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// counts returns the counters that are not zero.
func counts(cs []hca.Counter) map[string]uint64 {
	m := map[string]uint64{}
	for _, c := range cs {
		if c.Value != 0 {
			m[c.Name] = c.Value
		}
	}
	return m
}
