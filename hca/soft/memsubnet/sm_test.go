package memsubnet_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
)

// admin is an SA that notes its requests. It answers a MAD of n in its last byte with n MADs, which count in their
// first byte.
type admin struct {
	mu       sync.Mutex
	requests []request
}

type request struct {
	lid uint16
	gid hca.GID
	mad []byte
	at  time.Time
}

func (s *admin) Answer(from uint16, gid hca.GID, mad []byte) (out [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request{from, gid, mad, time.Now()})
	for i := range mad[len(mad)-1] {
		out = append(out, append([]byte{i}, mad[1:]...))
	}
	return out
}

// seen returns the requests so far.
func (s *admin) seen() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// mad returns a MAD with this text that asks for n answers.
func mad(text string, n byte) []byte {
	b := make([]byte, 256)
	copy(b[1:], text)
	b[255] = n
	return b
}

const qkeyGSI = hca.QKey(0x80010000)

// managed returns a subnet with an SA at LID 1 and SL 2, and a host whose queue pair has the Q_Key of QP1.
func managed(
	t *testing.T, fate func([]byte, bool) (time.Duration, bool),
) (*memsubnet.Subnet, *memfabric.Fabric, *admin, *host) {
	t.Helper()
	f, sa := memfabric.New(1), &admin{}
	s := memsubnet.New(f, memsubnet.SM{LID: 1, SL: 2, SA: sa, Fate: fate})
	t.Cleanup(s.Close)
	a := attach(t, s, "a", 4)
	a.up(0, qkeyGSI)
	return s, f, sa, a
}

// toSA returns the destination of requests, with a Q_Key that selects the queue pair's own.
func (h *host) toSA() hca.UDDest {
	h.Helper()
	return hca.UDDest{AH: h.ah(hca.AHSpec{DLID: 1, SL: 2}), QPN: hca.QPNGSI, QKey: qkeyGSI}
}

// ask sends a request.
func (h *host) ask(to hca.UDDest, request []byte) {
	h.Helper()
	h.send(to, string(request))
}

// The SA gets a MAD for QP1 with the LID and the GID of the port, and its answers arrive from its LID and QP1.
func TestSAAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, sa, a := managed(t, nil)
		a.port.Change(func(p *hca.PortAttr) { p.LMC, p.GIDs[0].GID[1], p.PKeys = 1, 0xc0, []hca.PKey{0x7fff, 0x8001} })
		a.port.SetPathBits(1)
		request := mad("get", 2)
		a.ask(a.toSA(), request)
		got := a.received()
		if len(sa.seen()) != 1 || len(got) != 2 {
			t.Fatalf("%d requests, %d answers", len(sa.seen()), len(got))
		}
		if r := sa.seen()[0]; r.lid != 5 || r.gid != (hca.GID{0xfe, 0xc0, 8: 0x10, 15: 4}) || !bytes.Equal(r.mad, request) {
			t.Errorf("request %+v", r)
		}
		for i, m := range got {
			want := append([]byte{byte(i)}, request[1:]...)
			if m.SLID != 1 || m.SL != 2 || m.SrcQPN != hca.QPNGSI || m.Flags&hca.WCFlagGRH != 0 || m.text != string(want) {
				t.Errorf("answer %d: %+v", i, m)
			}
		}
		wantDrops(t, s, nil)
	})
}

// MADs that a real subnet manager would not get do not reach the SA.
func TestUnacceptableMADs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, sa, a := managed(t, nil)
		a.port.Change(func(p *hca.PortAttr) { p.PKeys = []hca.PKey{0xffff, 0x8001} })
		ok := mad("x", 0)
		to := func(change func(*hca.UDDest, *hca.AHSpec)) hca.UDDest {
			d, spec := a.toSA(), hca.AHSpec{DLID: 1, SL: 2}
			change(&d, &spec)
			d.AH = a.ah(spec)
			return d
		}
		a.ask(to(func(d *hca.UDDest, _ *hca.AHSpec) { d.QKey = 0x10000 }), ok)
		a.ask(to(func(_ *hca.UDDest, ah *hca.AHSpec) { ah.SL = 0 }), ok)
		a.ask(to(func(_ *hca.UDDest, ah *hca.AHSpec) { ah.Global, ah.DGID = true, hca.GID{0xfe, 0x80} }), ok)
		a.ask(a.toSA(), ok[:255])
		a.ask(a.toSA(), append(ok, 0))
		a.up(1, qkeyGSI)
		a.ask(a.toSA(), ok)
		a.up(0, qkey)
		a.ask(a.toSA(), ok)
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropBadMAD: 7})
		a.up(0, qkeyGSI)
		a.ask(to(func(d *hca.UDDest, _ *hca.AHSpec) { d.QPN = 2 }), ok)         // only QP1 is there
		a.ask(to(func(_ *hca.UDDest, ah *hca.AHSpec) { ah.DLID = 4 }), ok)      // not the subnet manager
		a.ask(to(func(_ *hca.UDDest, ah *hca.AHSpec) { ah.DLID = 0xbfff }), ok) // no port has it
		a.want()
		if len(sa.seen()) != 0 {
			t.Errorf("requests %+v", sa.seen())
		}
		a.ask(a.toSA(), ok)
		if len(sa.seen()) != 1 {
			t.Errorf("%d requests", len(sa.seen()))
		}
	})
}

// The subnet manager moves to another LID. Ports hear of it, and the former LID leads nowhere. The new one may be
// that of a port, whose queue pairs still get their messages.
func TestMoveSM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, sa, a := managed(t, nil)
		b := attach(t, s, "b", 8)
		old := a.toSA()
		s.MoveSM(8, 0)
		a.wantEvents(hca.EventSMChange)
		if p := a.port.Attr(); p.SMLID != 8 || p.SMSL != 0 {
			t.Errorf("port %+v", p)
		}
		a.ask(old, mad("lost", 1))
		moved := old
		moved.AH = a.ah(hca.AHSpec{DLID: 8})
		a.ask(moved, mad("found", 1))
		if got := a.received(); len(got) != 1 || got[0].SLID != 8 || len(sa.seen()) != 1 {
			t.Errorf("%d requests, answers %+v", len(sa.seen()), got)
		}
		a.up(0, qkey)
		a.send(a.to(b), "not for QP1")
		b.want("not for QP1")
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNoLID: 1})
	})
}

// Fate loses and delays requests and answers. Close ends those that are delayed.
func TestFate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = time.Hour
		s, f, sa, a := managed(t, func(mad []byte, toSA bool) (time.Duration, bool) {
			switch string(mad[1:3]) {
			case "r-":
				return 0, toSA
			case "a-":
				return 0, !toSA && mad[0] == 1
			case "rd":
				return map[bool]time.Duration{true: 3 * settle}[toSA], false
			case "ad":
				return map[bool]time.Duration{false: 3 * settle}[toSA], false
			case "rl", "al":
				return long, false
			}
			return 0, false
		})
		f.SetConditions(memfabric.Conditions{Delay: settle / 4})
		start := time.Now()
		for _, what := range []string{"r-", "a-", "rd", "ad", "ok", "rl", "al"} {
			a.ask(a.toSA(), mad(what, 2))
		}
		time.Sleep(10 * settle)
		var requests, answers []string
		for _, r := range sa.seen() {
			requests = append(requests, fmt.Sprintf("%s %v", r.mad[1:3], r.at.Sub(start)))
		}
		// A request takes a second to post (see send) and a quarter to arrive.
		if want := []string{"a- 1.25s", "ad 3.25s", "ok 4.25s", "rd 5.25s"}; !slices.Equal(requests, want) {
			t.Errorf("requests %q, want %q", requests, want)
		}
		for _, m := range a.received() {
			answers = append(answers, fmt.Sprintf("%s%d", m.text[1:3], m.text[0]))
		}
		slices.Sort(answers)
		if want := []string{"a-0", "ad0", "ad1", "ok0", "ok1", "rd0", "rd1"}; !slices.Equal(answers, want) {
			t.Errorf("answers %q, want %q", answers, want)
		}
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropLostMAD: 2})
		closing := time.Now()
		s.Close()
		if took := time.Since(closing); took != 0 {
			t.Errorf("close took %v", took)
		}
	})
}

// Loss on the fabric also takes MADs, and an answer to a LID that is gone is lost.
func TestLostMADs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, sa, a := managed(t, func(mad []byte, toSA bool) (time.Duration, bool) { return 2 * settle, false })
		f.SetConditions(memfabric.Conditions{Loss: 1})
		a.ask(a.toSA(), mad("request", 1))
		f.SetConditions(memfabric.Conditions{})
		a.ask(a.toSA(), mad("answer", 1))
		time.Sleep(2 * settle)
		f.SetConditions(memfabric.Conditions{Loss: 1})
		time.Sleep(2 * settle)
		f.SetConditions(memfabric.Conditions{})
		a.ask(a.toSA(), mad("LID", 1))
		time.Sleep(2 * settle)
		a.port.Change(func(p *hca.PortAttr) { p.LID = 12 })
		time.Sleep(2 * settle)
		a.want()
		if len(sa.seen()) != 2 {
			t.Errorf("requests %+v", sa.seen())
		}
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNoLID: 1})
	})
}
