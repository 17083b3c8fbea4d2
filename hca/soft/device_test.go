package soft

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
)

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(Config{}); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("open without a transport: %v, want %v", err, hca.ErrInvalid)
	}
	port := memfabric.New(1).Attach("a", 1500)
	if _, err := Open(Config{Transport: port, KnownPeersOnly: true}); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("known peers without a list: %v", err)
	}
}

// Faults of the underlay cause the right events, in order.
func TestUnderlayEvents(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		for _, c := range []struct {
			fault func()
			want  []hca.EventType
		}{
			{func() { r.port.SetUp(false) }, []hca.EventType{hca.EventPortErr}},
			{func() { r.port.SetUp(true) }, []hca.EventType{hca.EventPortActive}},
			{func() { r.port.SetMTU(9000) }, []hca.EventType{hca.EventPortActive}},
			{func() { r.port.AddAddr(testV4b) }, []hca.EventType{hca.EventGIDChange}},
			{func() { r.port.DelAddr(testV4b) }, []hca.EventType{hca.EventGIDChange}},
			{func() { r.port.Remove() }, []hca.EventType{hca.EventDeviceFatal}},
		} {
			c.fault()
			synctest.Wait()
			for _, want := range c.want {
				if got := r.event(); got.Type != want {
					t.Errorf("event %v, want %v", got.Type, want)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if ev, err := r.dev.NextEvent(ctx); err == nil {
				t.Errorf("unexpected further event: %v", ev.Type)
			}
		}
	})
}

// Sends on a port that is down complete, and are counted as dropped.
func TestSendOnPortDown(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetUp(false)
		synctest.Wait()
		for range 3 {
			r.sendOn(ah, 5)
		}
		wc := make([]hca.WC, 8)
		if n, err := r.send.Poll(wc); n != 3 || err != nil || wc[2].Status != hca.WCSuccess {
			t.Errorf("%d completions, %v: %+v, want 3 successful ones", n, err, wc[:n])
		}
		r.wantCounts(map[string]uint64{"tx_drop_port_down": 3, "tx_packets": 0})
		_ = ah.Close()
	})
}

// If the netdev is removed while sends wait for it, the sends complete and everything
// can be closed.
func TestRemovedWhileStalled(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		r.sendOn(ah, 5)
		r.port.Remove()
		synctest.Wait()
		if ev := r.event(); ev.Type != hca.EventDeviceFatal {
			t.Errorf("event %v, want DEVICE_FATAL", ev.Type)
		}
		_ = ah.Close()
	})
}

// The event queue is bounded: equal events merge, others are counted as lost.
func TestEventQueueBound(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		for i := range maxEvents + 5 {
			r.dev.emit(hca.EventCQErr, hca.ObjectID{Kind: hca.KindCQ, Num: uint32(i)})
		}
		r.dev.emit(hca.EventCQErr, hca.ObjectID{Kind: hca.KindCQ, Num: 3})
		r.wantCounts(map[string]uint64{"events_lost": 5})
		for i := range maxEvents {
			if ev := r.event(); ev.On.Num != uint32(i) {
				t.Fatalf("event %d is about QP %d", i, ev.On.Num)
			}
		}
	})
}

// QP numbers are unique and not reserved.
func TestQPNumbers(t *testing.T) {
	narrow := func(c *Config) { c.Rand = rand.New(narrowSource{rand.NewPCG(1, 2)}) }
	bubble(t, narrow, func(r *rig) {
		seen := map[hca.QPN]bool{0: true, hca.QPNGSI: true, hca.QPNMulticast: true, r.qp.Num(): true}
		var qps []hca.QP
		for range 12 {
			q := have(r.pd.CreateQP(r.qp.Spec(), r.send, r.recv))(t)
			if seen[q.Num()] {
				t.Errorf("QP number %v was used already", q.Num())
			}
			seen[q.Num()] = true
			qps = append(qps, q)
		}
		for _, q := range qps {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// narrowSource draws numbers from 0 to 15 and the largest one, no matter which bits of
// a word its user takes.
type narrowSource struct{ rand.Source }

func (s narrowSource) Uint64() uint64 {
	n := s.Source.Uint64() % 17
	if n == 16 {
		return 1<<64 - 1
	}
	return n<<32 | n
}

// An address handle of another domain is refused.
func TestForeignAH(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		pd := have(r.dev.AllocPD())(t)
		ah := have(pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(rigPeer)}))(t)
		for _, bad := range []hca.AH{ah, nil} {
			n, err := r.qp.PostSend([]hca.SendWR{{UD: hca.UDDest{AH: bad}}})
			if n != 0 || !errors.Is(err, hca.ErrInvalid) {
				t.Errorf("posted %d: %v, want 0 and %v", n, err, hca.ErrInvalid)
			}
		}
		_, _ = ah.Close(), pd.Close()
	})
}

// An address that RoCEv2 or the port does not support is refused.
func TestAHRefusals(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		good := hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(rigPeer)}
		for name, change := range map[string]func(*hca.AHSpec){
			"port":       func(s *hca.AHSpec) { s.Port = 2 },
			"no GRH":     func(s *hca.AHSpec) { s.Global = false },
			"no GID":     func(s *hca.AHSpec) { s.DGID = hca.GID{} },
			"index":      func(s *hca.AHSpec) { s.SGIDIndex = 2 },
			"negative":   func(s *hca.AHSpec) { s.SGIDIndex = -1 },
			"family":     func(s *hca.AHSpec) { s.SGIDIndex = 1 },
			"SL":         func(s *hca.AHSpec) { s.SL = 16 },
			"flow label": func(s *hca.AHSpec) { s.FlowLabel = 1 << 20 },
		} {
			s := good
			change(&s)
			if _, err := r.pd.CreateAH(s); !errors.Is(err, hca.ErrInvalid) {
				t.Errorf("%s: %v, want %v", name, err, hca.ErrInvalid)
			}
		}
	})
}

// Sends from a GID whose address was removed are dropped and counted. Once the address is
// back, the QP sends again.
func TestSourceGone(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.DelAddr(testV4)
		synctest.Wait()
		r.sendOn(ah, 5)
		r.port.AddAddr(testV4)
		synctest.Wait()
		r.sendOn(ah, 5)
		r.wantCounts(map[string]uint64{"tx_drop_no_source": 1, "tx_packets": 1})
		_ = ah.Close()
	})
}

// A capture of the network shows the datagrams that a device sends.
func TestCapture(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		var dst []netip.Addr
		r.fabric.Capture(func(c memfabric.Capture) { dst = append(dst, c.Packet.Dst) })
		for _, to := range []netip.Addr{rigPeer, testV4, netip.MustParseAddr("fd00::9")} {
			ah := r.ah(to)
			r.sendOn(ah, 5)
			_ = ah.Close()
		}
		if len(dst) != 2 || dst[0] != rigPeer || !dst[1].Is6() {
			t.Errorf("captured packets to %v", dst)
		}
		r.wantCounts(map[string]uint64{"tx_packets": 2, "tx_looped": 1, "tx_bytes": 2 * 32})
	})
}
