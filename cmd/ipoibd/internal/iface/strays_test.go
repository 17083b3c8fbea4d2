package iface

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// muted is a port whose multicast is lost while mute is set.
type muted struct {
	*memfabric.Port
	mute *atomic.Bool
}

func (m muted) Send(pkts []transport.Packet) (int, error) {
	if !m.mute.Load() {
		return m.Port.Send(pkts)
	}
	unicast := slices.DeleteFunc(slices.Clone(pkts), func(p transport.Packet) bool { return p.Dst.IsMulticast() })
	if n, err := m.Port.Send(unicast); err != nil || n < len(unicast) {
		return 0, err
	}
	return len(pkts), nil
}

// plainDevice hides the optional methods of a device.
type plainDevice struct{ hca.Device }

func (h *testHost) openSoft(cfg soft.Config) (hca.Device, error) {
	dev, err := soft.Open(cfg)
	if err != nil || !h.plain {
		return dev, err
	}
	return plainDevice{dev}, nil
}

// renumber unplugs b's device and plugs it in again, so b gets another QPN. Meanwhile a
// keeps sending to the MAC that it knows. renumber returns how long after b was up the
// first of these frames arrived.
func renumber(t *testing.T, a, b *testHost) time.Duration {
	t.Helper()
	old := b.status().QP.QPN
	mac, ok := a.neighbour(b.ip)
	if !ok {
		t.Fatalf("%s does not know %s", a.name, b.ip)
	}
	b.unplug()
	time.Sleep(300 * time.Millisecond)
	b.plug()
	var up time.Time
	for range 2000 {
		time.Sleep(10 * time.Millisecond)
		a.sendIP(mac, b.ip, 100, 7)
		if b.takeIP() != nil {
			if qpn := b.status().QP.QPN; qpn == old {
				t.Fatalf("b has QPN %v again, so the test shows nothing", qpn)
			}
			return time.Since(up)
		}
		if s := b.status(); up.IsZero() && s.QP != nil && s.State == report.InterfaceUp {
			up = time.Now()
		}
	}
	t.Fatalf("%s does not reach %s: %+v", a.name, b.name, a.status().Peers)
	return 0
}

// Without any multicast, the receiver sees datagrams for its former queue pair and
// announces its new one to their sender at once.
func TestStrayDatagramsLeadTheSender(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.mute.Store(true)
		b.mute.Store(true)
		took := renumber(t, a, b)
		t.Logf("reached %v after it was up", took)
		if limit := 2 * strayInterval; took > limit {
			t.Errorf("reached after %v, want %v at most", took, limit)
		}
		if n := count(b.status(), "neigh_stray_notices"); n != 1 {
			t.Errorf("%d notices, want 1", n)
		}
	})
}

// When the announcements of a restarted host are lost and its device does not report
// stray datagrams, the sender asks for it within 2 s.
func TestSilentPeerIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, b := newHost(t, fabric, 1), newHost(t, fabric, 2)
		b.plain = true
		b.unplug()
		synctest.Wait()
		b.plug()
		a.up()
		b.up()
		b.waitUp()
		a.resolve(b.ip)
		reach(t, a, b)
		b.mute.Store(true)
		took := renumber(t, a, b)
		t.Logf("reached %v after it was up", took)
		if took > 2*time.Second || count(a.status(), "neigh_silences") == 0 || count(b.status(), "neigh_stray_notices") != 0 {
			t.Errorf("reached after %v, %d silences, %d notices", took,
				count(a.status(), "neigh_silences"), count(b.status(), "neigh_stray_notices"))
		}
	})
}

// fixedStrays is a device that always returns the same report.
type fixedStrays struct {
	strays hca.Strays
	asked  int
}

func (s *fixedStrays) Strays() (hca.Strays, bool) {
	s.asked++
	return s.strays, true
}

func (*fixedStrays) NotifyStrays(func()) func() { return func() {} }

// notices returns how many notices a sends for the report.
func (s *fixedStrays) notices(a *testHost) uint64 {
	before := count(a.status(), "neigh_stray_notices")
	time.Sleep(time.Minute) // past the pause of the senders
	a.onRun(func(f *Iface) { f.nbrs.strays = strays{device: s, at: time.Now()} })
	time.Sleep(10 * strayInterval)
	synctest.Wait()
	return count(a.status(), "neigh_stray_notices") - before
}

// Stray datagrams of another partition are left to that partition's interface. Those with
// a wrong Q_Key get no answer. Each report is processed once.
func TestStraysAreOfThePartition(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		self := b.status().QP
		for _, c := range []struct {
			what string
			pkey hca.PKey
			qkey hca.QKey
			want uint64
		}{
			{"three strays", hca.PKeyDefault, self.QKey, 1},
			{"strays of a limited member", hca.PKeyDefault &^ hca.PKeyMembership, self.QKey, 1},
			{"strays of another partition", pkeyOther, self.QKey, 0},
			{"strays of no member", hca.PKeyDefault, 0xdeadbeef, 0},
		} {
			dev := fixedStrays{strays: hca.Strays{{Number: 3, PKey: c.pkey, QKey: c.qkey, SGID: self.GID, SrcQPN: self.QPN}}}
			if n := dev.notices(a); n != c.want {
				t.Errorf("%s: %d notices, want %d", c.what, n, c.want)
			}
		}
	})
}

// Every sender since the last report gets an answer, no matter what other partitions and
// other senders send after it.
func TestEveryStraySenderIsAnswered(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		self := b.status().QP
		dev := fixedStrays{strays: hca.Strays{
			{Number: 9, PKey: hca.PKeyDefault, QKey: self.QKey, SGID: self.GID, SrcQPN: self.QPN ^ 1},
			{Number: 3, PKey: hca.PKeyDefault, QKey: self.QKey, SGID: self.GID, SrcQPN: self.QPN},
			{Number: 10, PKey: pkeyOther, QKey: self.QKey, SGID: self.GID, SrcQPN: self.QPN},
		}}
		if n := dev.notices(a); n != 2 {
			t.Errorf("%d notices, want 2", n)
		}
	})
}

// A device without stray datagrams is not polled.
func TestStraysAreNotPolled(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		dev := fixedStrays{}
		if n := dev.notices(a); n != 0 || dev.asked != 1 {
			t.Errorf("%d notices, asked %d times, want once", n, dev.asked)
		}
	})
}
