package iface

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/link"
	"ipoibd/link/linktest"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

// lanedHost is a host whose interface has two lanes.
type lanedHost struct {
	*testHost
	second *linktest.Fake // the second queue of its TAP
}

// newLanedHost starts host n of a fabric, whose device has two lanes.
func newLanedHost(t *testing.T, fabric *memfabric.Fabric, n byte) lanedHost {
	t.Helper()
	second := linktest.NewFake("ib0")
	second.SetUp(true)
	if err := second.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	h := bareHost(t, fabric, n)
	h.lanes, h.tap.more = 2, []link.Queue{second}
	h.run()
	return lanedHost{h, second}
}

// twoLanes runs a test with two hosts of two lanes that know each other. What one sends on a lane
// arrives on the same lane of the other, because the source port of a lane selects it.
func twoLanes(t *testing.T, test func(t *testing.T, a, b lanedHost)) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, b := newLanedHost(t, fabric, 1), newLanedHost(t, fabric, 2)
		a.up()
		b.up()
		a.resolve(b.ip)
		test(t, a, b)
	})
}

// sendOn has the host send a marked packet through a queue of its TAP.
func (a lanedHost) sendOn(lane int, to lanedHost, mark byte) {
	a.t.Helper()
	mac, ok := a.neighbour(to.ip)
	if !ok {
		a.t.Fatalf("%s does not know %s", a.name, to.name)
	}
	tap := []*linktest.Fake{a.tap.Fake, a.second}[lane]
	tap.Send(a.frame(mac, ipoib.EtherTypeIPv4, a.packet(to.ip, 100, mark)))
}

// takeOn returns the mark of the next packet that arrived through a queue of the TAP.
func (a lanedHost) takeOn(lane int) (mark byte, ok bool) {
	if lane == 0 {
		f := a.takeIP()
		if f == nil {
			return 0, false
		}
		return f[14+20], true
	}
	synctest.Wait()
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Nanosecond)
	defer cancel()
	f, err := a.second.Recv(ctx)
	if err != nil {
		return 0, false
	}
	return f[14+20], true
}

// drain takes all packets that have arrived.
func (a lanedHost) drain() {
	for lane := range 2 {
		for _, ok := a.takeOn(lane); ok; _, ok = a.takeOn(lane) {
		}
	}
}

// checkLanes fails unless frames pass both ways through both lanes.
func (a lanedHost) checkLanes(t *testing.T, b lanedHost) {
	t.Helper()
	a.resolve(b.ip)
	a.drain()
	b.drain()
	for lane := range 2 {
		l := a.iface.lanes.all[lane] // its progress may be read at any time
		sent, received := l.tx.Progress().Completed, l.rx.Completed()
		for _, way := range [][2]lanedHost{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			from.sendOn(lane, to, byte(lane))
			if mark, ok := to.takeOn(lane); !ok || mark != byte(lane) {
				t.Errorf("lane %d: %s got nothing, or another packet (%d)", lane, to.name, mark)
			}
		}
		time.Sleep(20 * time.Millisecond) // the completion of a last send is polled late
		synctest.Wait()
		if l.tx.Progress().Completed == sent || l.rx.Completed() == received {
			t.Errorf("lane %d did not send and receive", lane)
		}
	}
}

// checkLaneAccounts fails unless every frame of each lane has one end, and every buffer is
// posted.
func (a lanedHost) checkLaneAccounts(t *testing.T) {
	t.Helper()
	for _, l := range a.iface.lanes.all { // their counters may be read at any time
		s := report.Interface{Counters: report.Counters{}}
		s.Counters.Add("", l.tx.Counters())
		s.Counters.Add("", l.rx.Counters())
		checkAccounts(t, s)
	}
}

// queues returns the queues of the lanes. The worker, which attaches them, must be idle.
func (a lanedHost) queues() (out []endpoint.Queue) {
	a.onRun(func(f *Iface) {
		for _, l := range f.lanes.all {
			out = append(out, l.queue)
		}
	})
	return out
}

// probes returns how many probes each lane has sent.
func (a lanedHost) probes() (out []uint64) {
	a.onRun(func(f *Iface) {
		for _, l := range f.lanes.all {
			out = append(out, l.probes.Load())
		}
	})
	return out
}

// An interface with two lanes is up on a device with two lanes, and sends and receives on both;
// its peer sees one queue pair.
func TestTwoLanes(t *testing.T) {
	twoLanes(t, func(t *testing.T, a, b lanedHost) {
		s := a.status()
		if s.State != report.InterfaceUp || !s.Carrier || s.QP == nil || s.QP.State != "RTS" {
			t.Errorf("status %+v", s)
		}
		a.checkLanes(t, b)
		if peers := b.status().Peers; len(peers) != 1 || peers[0].QPN != s.QP.QPN {
			t.Errorf("b knows %+v, want only %v", peers, s.QP.QPN)
		}
		if queues := a.queues(); queues[0].SendCQ == queues[1].SendCQ || queues[0].Num() != queues[1].Num() {
			t.Error("the lanes share a CQ, or have different QPNs")
		}
		time.Sleep(time.Minute)
		if r := a.status().Recovery; rungsAbove(r, qprecovery.RungNone) != 0 {
			t.Errorf("rungs %v by %v in a minute of silence", r.Rungs, r.Reasons)
		}
		a.checkLaneAccounts(t)
	})
}

// An interface that needs more queues than the device has is not up, and says why.
func TestDeviceWithTooFewQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a := bareHost(t, fabric, 1)
		for range 8 {
			a.tap.more = append(a.tap.more, linktest.NewFake("ib0"))
		}
		a.run()
		a.up()
		if s := a.status(); s.State != report.InterfaceWaiting || !strings.Contains(s.Detail, "the device supports 8 queues per queue pair, the interface needs 9") {
			t.Errorf("state %s, detail %q", s.State, s.Detail)
		}
	})
}

// An error of one lane's CQ rebuilds the queue pair, to which the CQs of all lanes are
// attached.
func TestR01CQErrorOfOneLaneRebuildsAll(t *testing.T) {
	for _, kind := range []faults.Kind{faults.CQError, faults.CQOverrun} {
		for lane := range 2 {
			t.Run(kind.String()+", lane "+string('0'+rune(lane)), func(t *testing.T) {
				twoLanes(t, func(t *testing.T, a, b lanedHost) {
					a.checkLanes(t, b)
					time.Sleep(time.Second)
					qpn := a.status().QP.QPN
					var ids []hca.ObjectID
					for _, q := range a.queues() {
						ids = append(ids, q.SendCQ.ID(), q.RecvCQ.ID())
					}
					a.inject(faults.Fault{Kind: kind})
					b.sendOn(lane, a, byte(lane)) // the next completion is that lane's
					time.Sleep(20 * time.Millisecond)
					s := a.status()
					if s.State != report.InterfaceUp || s.QP.QPN == qpn || s.Recovery.Rungs["rebuild_cq"] != 1 || s.Recovery.Reasons["cq_error"] != 1 ||
						rungsAbove(s.Recovery, qprecovery.RungRebuildCQ) != 0 {
						t.Errorf("%s, QPN %v, was %v, rungs %v by %v", s.State, s.QP.QPN, qpn, s.Recovery.Rungs, s.Recovery.Reasons)
					}
					for i, q := range a.queues() {
						for _, cq := range []hca.CQ{q.SendCQ, q.RecvCQ} {
							if slices.Contains(ids, cq.ID()) {
								t.Errorf("lane %d still has CQ %+v", i, cq.ID())
							}
						}
					}
					a.checkLanes(t, b)
					a.checkLaneAccounts(t)
				})
			})
		}
	}
}

// A lane that freezes is detected within a second although the other one carries frames both
// ways, and the probes are its own, except one that the other lane may send when its rest ends.
func TestR08FreezeOfOneLane(t *testing.T) {
	for lane := range 2 {
		t.Run("lane "+string('0'+rune(lane)), func(t *testing.T) {
			twoLanes(t, func(t *testing.T, a, b lanedHost) {
				a.checkLanes(t, b)
				time.Sleep(time.Second)
				a.inject(faults.Fault{Kind: faults.CompletionsStop})
				b.sendOn(lane, a, byte(lane)) // the next completion is that lane's
				synctest.Wait()
				before := a.probes()
				start := time.Now()
				for a.status().Recovery.Rungs["rebuild_cq"] == 0 && time.Since(start) < 10*time.Second {
					a.sendOn(1-lane, b, byte(1-lane))
					b.sendOn(1-lane, a, byte(1-lane))
					time.Sleep(10 * time.Millisecond)
					a.drain()
					b.drain()
				}
				took, sent := time.Since(start), a.probes()
				own, others := sent[lane]-before[lane], sent[1-lane]-before[1-lane]
				t.Logf("detected after %v, by %d probes; the other lane sent %d", took, own, others)
				if took > time.Second || own == 0 || others > 1 {
					t.Errorf("detected after %v, by %d probes; the other lane sent %d", took, own, others)
				}
				time.Sleep(100 * time.Millisecond)
				a.checkLanes(t, b)
				a.checkLaneAccounts(t)
			})
		})
	}
}

// Whatever rung runs, both lanes work afterwards, and every frame of each is accounted for.
func TestR10EveryFrameOfEachLaneIsAccountedFor(t *testing.T) {
	for name, begin := range map[string]func(*testHost) error{
		"send error": func(h *testHost) error { h.inject(faults.Fault{Kind: faults.SendErrorErr}); return nil },
		"recreate": func(h *testHost) error {
			h.inject(faults.Fault{Kind: faults.ResetFails})
			return ordered(qprecovery.RungResetQP)(h)
		},
		"QP reset":     ordered(qprecovery.RungResetQP),
		"CQ rebuild":   ordered(qprecovery.RungRebuildCQ),
		"device reset": fatal,
		"replug":       func(h *testHost) error { h.unplug(); synctest.Wait(); h.plug(); return nil },
		"ib0 flaps":    func(h *testHost) error { h.tap.SetUp(false); synctest.Wait(); h.tap.SetUp(true); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			twoLanes(t, func(t *testing.T, a, b lanedHost) {
				a.checkLanes(t, b)
				a.underlay().SetWritable(false)
				for i := range byte(20) {
					a.sendOn(int(i%2), b, i)
				}
				synctest.Wait()
				if err := begin(a.testHost); err != nil {
					t.Fatal(err)
				}
				for i := range byte(20) {
					a.sendOn(int(i%2), b, i)
				}
				time.Sleep(100 * time.Millisecond)
				a.underlay().SetWritable(true)
				time.Sleep(time.Second)
				a.waitUp()
				a.checkLanes(t, b)
				a.checkLaneAccounts(t)
			})
		})
	}
}
