package soft

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// rig is a device with one QP in RTS, over a port of its own fabric.
type rig struct {
	testing.TB
	fabric *memfabric.Fabric
	port   *memfabric.Port
	dev    *Device
	pd     hca.PD
	send   hca.CQ
	recv   hca.CQ
	qp     hca.QP
	mr     hca.MR
}

const (
	rigQKey  = hca.QKey(0x0b1b)
	rigSlot  = 4096
	rigSlots = 64
	rigDepth = 512
)

var rigPeer = netip.MustParseAddr("10.0.0.99")

// newRig opens a device at testV4 and testV6. change, if not nil, changes its
// configuration.
func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	f := memfabric.New(1)
	return newRigOn(t, f, "a", change, testV4, testV6)
}

func newRigOn(t testing.TB, f *memfabric.Fabric, name string, change func(*Config), addrs ...netip.Addr) *rig {
	t.Helper()
	r := &rig{TB: t, fabric: f, port: f.Attach(name, 1500, addrs...)}
	cfg := Config{Name: name, Transport: r.port}
	if change != nil {
		change(&cfg)
	}
	r.dev = have(Open(cfg))(t)
	r.pd = have(r.dev.AllocPD())(t)
	r.send = have(r.dev.CreateCQ(hca.CQSpec{Entries: 2 * rigDepth}))(t)
	r.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: 2 * rigDepth}))(t)
	r.mr = have(r.pd.AllocMR(rigSlot*rigSlots, hca.AccessLocalWrite))(t)
	spec := hca.QPSpec{SendWRs: rigDepth, RecvWRs: rigDepth, SendSGEs: 2, RecvSGEs: 2, SignalAll: true}
	r.qp = have(r.pd.CreateQP(spec, r.send, r.recv))(t)
	r.up()
	return r
}

// have ends the test on an error.
func have[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *rig) up() {
	r.Helper()
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		a := hca.QPAttr{State: s + 1, Port: 1, QKey: rigQKey}
		if err := r.qp.Modify(a, hca.AttrState|hca.UDTransition(s, s+1).Required); err != nil {
			r.Fatal(err)
		}
	}
}

// close closes everything, in order.
func (r *rig) close() {
	r.Helper()
	for _, c := range []interface{ Close() error }{r.qp, r.send, r.recv, r.mr, r.pd, r.dev} {
		if err := c.Close(); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) postRecv(n int) {
	r.Helper()
	for i := range n {
		wr := hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{r.mr.SGE(i%rigSlots*rigSlot, rigSlot)}}
		if _, err := r.qp.PostRecv([]hca.RecvWR{wr}); err != nil {
			r.Fatal(err)
		}
	}
}

// ah creates a handle. The caller must close it, or close fails because the PD is
// busy.
func (r *rig) ah(to netip.Addr) hca.AH {
	r.Helper()
	spec := hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(to)}
	if to.Is6() {
		spec.SGIDIndex = 1
	}
	return have(r.pd.CreateAH(spec))(r)
}

// counted returns the value of a counter.
func (r *rig) counted(name string) uint64 {
	r.Helper()
	for _, c := range r.dev.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	r.Fatalf("no counter %q", name)
	return 0
}

// wantCounts waits until all goroutines are idle, then checks counters.
func (r *rig) wantCounts(want map[string]uint64) {
	r.Helper()
	for name, n := range want {
		if got := r.counted(name); got != n {
			r.Errorf("%s: %d, want %d", name, got, n)
		}
	}
}

// message returns a datagram for the rig's QP. change, if not nil, changes it before its
// ICRC is computed.
func (r *rig) message(change func(*roce.BTH, *roce.DETH, *roce.Path)) transport.Packet {
	bth := roce.BTH{Opcode: roce.OpcodeUDSendOnly, Pad: 3, PKey: hca.PKeyDefault, DestQPN: r.qp.Num()}
	deth := roce.DETH{QKey: rigQKey, SrcQPN: 0x99}
	path := roce.Path{Src: rigPeer, Dst: testV4, SrcPort: 0xc001}
	if change != nil {
		change(&bth, &deth, &path)
	}
	b := make([]byte, roce.HeaderLen+8+roce.ICRCLen)
	bth.Put(b)
	deth.Put(b[roce.BTHLen:])
	copy(b[roce.HeaderLen:], "hello")
	end := len(b) - roce.ICRCLen
	roce.PutICRC(b[end:], roce.ICRC(&path, b[:end]))
	return transport.Packet{
		Src: path.Src, Dst: path.Dst, SrcPort: path.SrcPort, ID: path.ID, IDKnown: true, TTL: 64, Data: b,
	}
}

// bubble runs a test in synctest, with a rig that is closed at its end.
func bubble(t *testing.T, change func(*Config), f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, change)
		f(r)
		r.close()
	})
}

// event waits for the next event.
func (r *rig) event() hca.AsyncEvent {
	r.Helper()
	return have(r.dev.NextEvent(context.Background()))(r)
}
