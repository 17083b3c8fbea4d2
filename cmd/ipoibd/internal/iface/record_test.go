package iface

import (
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
)

// counter is a recorder that counts.
type counter struct{ fromHost, toHost, sent, received atomic.Int64 }

func (c *counter) FromHost(time.Time, []byte)          { c.fromHost.Add(1) }
func (c *counter) ToHost(time.Time, [][]byte)          { c.toHost.Add(1) }
func (c *counter) Sent(time.Time, *hca.SendWR, []byte) { c.sent.Add(1) }
func (c *counter) Received(time.Time, *hca.WC, []byte) { c.received.Add(1) }
func (*counter) Done()                                 {}

// Every packet reaches the recorder of its producer, also those that the peer table writes, and
// again after the queue pair was rebuilt, with its new address. Captures begin and end independently.
func TestRecord(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		f := a.iface
		record := func() (list []*counter, end func()) {
			var set []ud.Recorder
			for range f.Producers() {
				c := &counter{}
				list, set = append(list, c), append(set, c)
			}
			return list, f.Record(set)
		}
		first, endFirst := record()
		second, endSecond := record()
		a.resolve(b.ip)
		reach(t, a, b)
		tx, rx, slow := first[0], first[1], first[2]
		if f.Producers() != 3 || tx.fromHost.Load() == 0 || tx.sent.Load() == 0 || rx.received.Load() == 0 || rx.toHost.Load() == 0 || slow.toHost.Load() == 0 {
			t.Errorf("recorded: %d from the host, %d sent, %d received, %d and %d to the host",
				tx.fromHost.Load(), tx.sent.Load(), rx.received.Load(), rx.toHost.Load(), slow.toHost.Load())
		}
		if other := tx.received.Load() + tx.toHost.Load() + rx.sent.Load() + rx.fromHost.Load() + slow.sent.Load(); other != 0 {
			t.Errorf("%d calls of a recorder of another producer", other)
		}
		old := f.Origin()
		if want := a.status().QP; old.QPN != want.QPN || old.GID != want.GID || old.PKey != f.cfg.PKey || old.QKey == 0 {
			t.Errorf("origin %+v, want that of %+v", old, want)
		}
		endFirst()
		n := tx.sent.Load()
		a.order(qprecovery.RungRebuildCQ)
		time.Sleep(time.Second)
		a.waitUp()
		reach(t, a, b)
		if tx.sent.Load() != n || second[0].sent.Load() <= n {
			t.Errorf("sends recorded after the end of the first capture: %d; by the second: %d after %d", tx.sent.Load()-n, second[0].sent.Load(), n)
		}
		if now := f.Origin(); now.QPN == old.QPN || now.QPN != a.status().QP.QPN {
			t.Errorf("origin %+v after the rebuild, was %+v", now, old)
		}
		endSecond()
		if len(f.lanes.records.sets) != 0 || len(*f.lanes.records.slow.Load()) != 0 {
			t.Error("recorders are left")
		}
	})
}
