package iface

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
	"ipoibd/link/linktest"
)

// A second daemon that starts while this one holds ib0 attaches a queue for a moment.
// That does not take the carrier down.
func TestMomentaryForeignQueueCostsNoCarrier(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		a.tap.forget()
		for range 10 {
			q := a.tap.Attach()
			time.Sleep(foreignGrace * 9 / 10)
			q.Detach()
			time.Sleep(time.Second)
		}
		if got := a.tap.forget(); len(got) != 0 {
			t.Errorf("carrier went %v", got)
		}
	})
}

// While another process has a queue, the carrier is down and the status says why. The
// carrier comes back when the queue is gone.
func TestForeignQueueTakesTheCarrierDown(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		a.tap.forget()
		q := a.tap.Attach()
		for _, after := range []time.Duration{foreignGrace, time.Second, time.Minute} {
			time.Sleep(after)
			synctest.Wait()
			s := a.status()
			if s.State != report.InterfaceWaiting || s.Carrier || !strings.Contains(s.Detail, "another process has attached") {
				t.Errorf("%v later: state %s, carrier %t, reason %q", after, s.State, s.Carrier, s.Detail)
			}
		}
		q.Detach()
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceUp || !s.Carrier || s.Detail != "" {
			t.Errorf("queue gone: state %s, carrier %t, reason %q", s.State, s.Carrier, s.Detail)
		}
		if got := a.tap.forget(); !slices.Equal(got, []bool{false, true}) {
			t.Errorf("carrier went %v, want off and on once", got)
		}
	})
}

// A carrier that is down for another reason stays down when a foreign queue goes.
func TestForeignQueueDuringAnOutage(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		q := a.tap.Attach()
		time.Sleep(time.Second)
		a.unplug()
		time.Sleep(time.Second)
		q.Detach()
		time.Sleep(time.Second)
		if st, err := a.tap.State(); err != nil || st.Carrier {
			t.Errorf("state = %+v, %v; want no carrier while the device is away", st, err)
		}
		a.plug()
		time.Sleep(time.Second)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceUp || !s.Carrier {
			t.Errorf("device back: state %s, carrier %t, reason %q", s.State, s.Carrier, s.Detail)
		}
	})
}

// Changes that another process makes to ib0 are undone within inspectEvery, whether or not
// the kernel reports them.
func TestChangesByOthersAreRestored(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		mac, published := a.mac(), a.status().HostMAC
		for what, change := range map[link.Property]func(linktest.Queue){
			link.PropertyMAC:         func(linktest.Queue) { a.tap.SetMAC([6]byte{2, 0xbb}) },
			link.PropertyCarrier:     func(q linktest.Queue) { q.SetCarrier(false) },
			link.PropertyHeader:      func(q linktest.Queue) { q.SetHeaderLen(12) },
			link.PropertyPersistence: func(q linktest.Queue) { q.SetPersistent(false) },
		} {
			q := a.tap.Attach()
			change(q)
			q.Detach()
			time.Sleep(inspectEvery)
			synctest.Wait()
			found, err := a.tap.Inspect()
			if err != nil || len(found.Restored) != 0 || a.mac() != mac {
				t.Errorf("%s: Inspect = %+v, %v", what, found, err)
			}
			if s := a.status(); s.State != report.InterfaceUp || !s.Carrier || s.HostMAC != published {
				t.Errorf("%s: state %s, carrier %t, MAC %s, want %s", what, s.State, s.Carrier, s.HostMAC, published)
			}
		}
	})
}

func TestMonitorTimes(t *testing.T) {
	start := time.Unix(1e9, 0)
	m := monitor{every: inspectEvery}
	for _, step := range []struct {
		at      time.Duration
		queues  int
		foreign bool
		next    time.Duration
	}{
		{0, 0, false, inspectEvery},
		{time.Second, 1, false, time.Second + foreignGrace},
		{time.Second + foreignGrace/2, 2, false, time.Second + foreignGrace}, // by an event
		{time.Second + foreignGrace, 1, true, 2*time.Second + foreignGrace},
		{3 * time.Second, 3, true, 4 * time.Second},
		{4 * time.Second, 0, false, inspectEvery},                 // the next multiple of it
		{5 * time.Second, 1, false, 5*time.Second + foreignGrace}, // a new grace period
		{5*time.Second + foreignGrace/2, 0, false, 2 * inspectEvery},
	} {
		was := m.foreign
		changed := m.saw(step.queues, start.Add(step.at))
		if m.foreign != step.foreign || changed != (was != step.foreign) || m.at != start.Add(step.next) {
			t.Errorf("%v, %d queues: foreign %t, changed %t, next %v; want %t and %v",
				step.at, step.queues, m.foreign, changed, m.at.Sub(start), step.foreign, step.next)
		}
	}
}
