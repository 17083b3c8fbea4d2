package softqp

import (
	"net/netip"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// The rig is one QP with memory at invented addresses.
const (
	rigQPN  = hca.QPN(0x1234)
	rigPD   = 7
	rigQKey = hca.QKey(0x0b1b)
	txBase  = 0x10000 // readable
	rxBase  = 0x20000 // also writable
	rigMem  = 0x8000
)

var (
	own4  = netip.MustParseAddr("10.0.0.1")
	peer4 = netip.MustParseAddr("10.0.0.2")
	own6  = netip.MustParseAddr("fd00::1")
	peer6 = netip.MustParseAddr("fd00::2")
	group = netip.MustParseAddr("239.1.2.3")
)

type rig struct {
	testing.TB
	*QP
	env            *Env
	tx, rx         []byte
	txLKey, rxLKey uint32
	batch          Batch
	limits         Limits
}

func newRig(t testing.TB, spec hca.QPSpec) *rig {
	r := &rig{TB: t, tx: make([]byte, rigMem), rx: make([]byte, rigMem)}
	m := &Memory{}
	m, r.txLKey = m.With(Region{PD: rigPD, Base: txBase, Mem: r.tx})
	m, r.rxLKey = m.With(Region{PD: rigPD, Base: rxBase, Mem: r.rx, Write: true})
	for i := range r.tx {
		r.tx[i] = byte(i*5 + i>>8)
	}
	r.env = &Env{
		Up: true, SrcPort: 0xc123, PKeys: []hca.PKey{0xffff, 0x8001}, Memory: m,
		GIDs: []GID{{Addr: own4, MaxPayload: 1448}, {}, {Addr: own6, MaxPayload: 1428}},
	}
	r.QP = New(Config{Num: rigQPN, PD: rigPD, Spec: spec, PSNs: NewPSNs()})
	return r
}

func defaultSpec() hca.QPSpec {
	return hca.QPSpec{SendWRs: 8, RecvWRs: 8, SendSGEs: MaxSGE, RecvSGEs: MaxSGE, SignalAll: true}
}

// rtsRig returns a rig in RTS with its PSN just before the wrap.
func rtsRig(t testing.TB) *rig {
	r := newRig(t, defaultSpec())
	r.up(hca.QPRTS)
	return r
}

// up moves the QP from RESET to a state on the path to RTS.
func (r *rig) up(to hca.QPState) {
	r.Helper()
	for s := hca.QPReset; s < to; s++ {
		if err := r.step(s, s+1); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) step(from, to hca.QPState) error {
	a := hca.QPAttr{State: to, Port: 1, QKey: rigQKey, SQPSN: 0xfffffe}
	return r.Modify(a, hca.AttrState|hca.UDTransition(from, to).Required, r.env)
}

func (r *rig) txSGE(off, n int) hca.SGE {
	return hca.SGE{Addr: txBase + uint64(off), Length: uint32(n), LKey: r.txLKey}
}

func (r *rig) rxSGE(off, n int) hca.SGE {
	return hca.SGE{Addr: rxBase + uint64(off), Length: uint32(n), LKey: r.rxLKey}
}

func ahTo(a netip.Addr) *hca.AHSpec {
	spec := &hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(a), HopLimit: 9, Traffic: 0x20}
	if a.Is6() {
		spec.SGIDIndex = 2
	}
	return spec
}

// send posts a send of n bytes from the start of the memory.
func (r *rig) send(id uint64, to netip.Addr, n int) {
	r.Helper()
	wr := hca.SendWR{ID: id, SGList: []hca.SGE{r.txSGE(0, n)}, UD: hca.UDDest{QPN: 0x777, QKey: 0x0b1c}}
	if err := r.PostSend(&wr, ahTo(to)); err != nil {
		r.Fatal(err)
	}
}

// recv posts a receive of n bytes.
func (r *rig) recv(id uint64, n int) {
	r.Helper()
	if err := r.PostRecv(&hca.RecvWR{ID: id, SGList: []hca.SGE{r.rxSGE(0, n)}}); err != nil {
		r.Fatal(err)
	}
}

// waiting returns the number of unfinished sends.
func (r *rig) waiting() int { return r.QP.send.queue.len() }

// fill returns the next batch.
func (r *rig) fill(peers ...netip.Addr) *Batch {
	r.Fill(r.env, peers, r.limits, &r.batch)
	return &r.batch
}

// inbound returns a message that the QP accepts.
func inbound(payload string) *Inbound {
	return &Inbound{
		Path: roce.Path{Src: peer4, Dst: own4, SrcPort: 0xc001}, TTL: 64, UDPLen: 24 + len(payload),
		DestQPN: rigQPN, SrcQPN: 0x99, PKey: 0xffff, QKey: rigQKey,
		Payload: [][]byte{[]byte(payload)}, Len: len(payload),
	}
}

type outcome struct {
	id     uint64
	status hca.WCStatus
}

func outcomes(wcs []hca.WC) (out []outcome) {
	for _, wc := range wcs {
		out = append(out, outcome{wc.ID, wc.Status})
	}
	return out
}

func (r *rig) wantSent(want ...outcome) {
	r.Helper()
	if got := outcomes(r.SendDone()); !slices.Equal(got, want) {
		r.Fatalf("send completions %v, want %v", got, want)
	}
}

func (r *rig) wantReceived(want ...outcome) {
	r.Helper()
	if got := outcomes(r.RecvDone()); !slices.Equal(got, want) {
		r.Fatalf("receive completions %v, want %v", got, want)
	}
}

func (r *rig) wantState(want hca.QPState) {
	r.Helper()
	if got := r.Query().State; got != want {
		r.Fatalf("state %v, want %v", got, want)
	}
}

// tcpHeader is the header of a large send: encapsulation, IPv4 and TCP.
var tcpHeader = append([]byte{
	0x08, 0, 0, 0,
	0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
}, append([]byte{0x12, 0x34, 0, 80, 0, 0, 0, 0, 1, 2, 3, 4, 0x50, 0x18}, make([]byte, 6)...)...)

// sendLarge posts a large send of n bytes to peer4.
func (r *rig) sendLarge(id uint64, n, mss int) {
	r.Helper()
	wr := hca.SendWR{ID: id, SGList: []hca.SGE{r.txSGE(0, n)}, UD: hca.UDDest{QPN: 0x777, QKey: 0x0b1c}, LSO: hca.LSO{Header: tcpHeader, MSS: mss}}
	if err := r.PostSend(&wr, ahTo(peer4)); err != nil {
		r.Fatal(err)
	}
}

// parse verifies the ICRC of the only datagram of a train and parses it.
func parse(t testing.TB, env *Env, d *Train) roce.UDSend {
	t.Helper()
	all := parseTrain(t, env, d)
	if len(all) != 1 {
		t.Fatalf("%d datagrams, want 1", len(all))
	}
	return all[0]
}

// parseTrain checks a train and parses its datagrams.
func parseTrain(t testing.TB, env *Env, d *Train) (out []roce.UDSend) {
	t.Helper()
	b := d.Data
	if len(b) > d.Segs*d.SegSize || len(b) <= (d.Segs-1)*d.SegSize {
		t.Fatalf("train %+v of %d bytes", d, len(b))
	}
	for k := range d.Segs {
		n := min(d.SegSize, len(b))
		p := roce.Path{Src: d.Src, Dst: d.Dst, SrcPort: env.SrcPort, ID: uint16(k)}
		if m := new(roce.Verifier).Verify(&p, true, b[:n]); m != roce.MatchKnownID {
			t.Fatalf("ICRC of datagram %d of %d, %x: %v, want a match", k, d.Segs, b[:n], m)
		}
		var u roce.UDSend
		err := u.Parse(b[:n])
		if err != nil {
			t.Fatalf("%x: %v", b[:n], err)
		}
		out, b = append(out, u), b[n:]
	}
	return out
}
