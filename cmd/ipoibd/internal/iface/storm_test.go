package iface

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// If several timers are due at the same instant, synctest fires them in random order. So the beats
// and the hosts are out of step with the timers of the daemons and with each other.
const (
	beatEvery = 100*time.Millisecond + 7 // of traffic
	apart     = 3 * time.Nanosecond      // of the hosts' starts
)

const (
	stormBlows = 500
	askEvery   = 50              // beats: how often a host asks for the other one's address
	steady     = 5 * time.Second // of health: even the last fault is detected within a second
	// calmLimit is how long recovery may take after the last blow: the longest pause of a device,
	// 5 minutes, that of an interface, a minute, and a margin.
	calmLimit = 7 * time.Minute
)

// storm is two hosts under traffic and blows.
type storm struct {
	*testing.T
	fabric *memfabric.Fabric
	hosts  [2]*stormHost
	orders sync.WaitGroup  // that wait for their answer
	ctx    context.Context // of stacks
	end    context.CancelFunc
	stacks sync.WaitGroup // of the hosts' further queues
	ledger ledger
	beats  int

	journal *journal.Journal
	last    uint64 // number of the last entry that was taken
	told    []journal.Entry
	seen    *tally
}

var (
	randomStorms = flag.Int("storm.random", unlessRaced(20), "how many storms of random seeds to run")
	stormSeed    = flag.Uint64("storm.seed", 0, "run only the storm of this `seed`, such as that of a failure")
)

// Whatever happens to two hosts, in any order or at once, in the end both are healthy, nothing is
// left behind, and every frame is accounted for. Given the same events again, the ladders make the
// same decisions.
func TestR10Storm(t *testing.T) {
	seeds, more := []uint64{1, 2, 3, 4}, *randomStorms
	if testing.Short() {
		more = 0
	}
	for range more {
		seeds = append(seeds, rand.Uint64())
	}
	if *stormSeed != 0 {
		seeds = []uint64{*stormSeed}
	}
	var seen tally
	t.Cleanup(func() { // all storms have ended
		if *stormSeed == 0 && more > 0 {
			seen.check(t)
		}
	})
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("go test -run=^TestR10Storm$ -storm.seed=%d runs this storm again", seed)
				}
			}()
			synctest.Test(t, func(t *testing.T) {
				rage(t, seed, &seen)
			})
		})
	}
}

// unlessRaced returns n, or 0 if the race detector watches: a storm takes five times as long then, so only those of fixed seeds
// run under it, unless the flag says otherwise.
func unlessRaced(n int) int {
	info, ok := debug.ReadBuildInfo()
	if ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 0
	}
	return n
}

// rage runs a storm from its beginning to its end.
func rage(t *testing.T, seed uint64, n *tally) *storm {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels(stormLabel, t.Name())))
	s := newStorm(t, seed, n)
	before := s.goroutines()
	s.strike(newPlan(seed, stormBlows))
	s.calm()
	s.awaitHealth()
	s.checkEnd(before)
	s.stop()
	return s
}

func newStorm(t *testing.T, seed uint64, n *tally) *storm {
	s := &storm{T: t, fabric: memfabric.New(seed), journal: journal.New(), seen: n}
	s.fabric.Capture(s.ledger.capture)
	s.ctx, s.end = context.WithCancel(t.Context())
	for i := range s.hosts {
		s.hosts[i] = s.newHost(byte(i+1), seed)
		s.hosts[i].up()
		time.Sleep(apart)
	}
	s.hosts[0].resolve(s.hosts[1].ip)
	return s
}

// stop ends everything. A leaked goroutine would end the bubble with a panic.
func (s *storm) stop() {
	for _, h := range s.hosts {
		h.stop()
	}
	s.orders.Wait()
	s.end()
	s.stacks.Wait()
	if err := s.fabric.Close(); err != nil {
		s.Error(err)
	}
}

// strike carries out the plan, under continuous traffic.
func (s *storm) strike(plan []blow) {
	start := time.Now()
	for _, b := range plan {
		for since := time.Since(start); since < b.at; since = time.Since(start) {
			time.Sleep(min(beatEvery, b.at-since))
			s.beat()
		}
		b.do(s.hosts[b.host])
		synctest.Wait()
		s.beat()
	}
	s.Logf("%d blows and undone ones in %v", len(plan), time.Since(start).Round(time.Second))
}

// beat sends a marked frame each way and takes what arrived.
func (s *storm) beat() {
	s.beats++
	for from, h := range s.hosts {
		to := s.hosts[1-from]
		if s.beats%askEvery == 0 {
			h.resolve(to.ip)
		}
		h.sendMarked(&s.ledger, h.queues[s.beats%len(h.queues)], from, to.ip)
		for at, x := range s.hosts {
			for f := x.takeIP(); f != nil; f = x.takeIP() {
				s.ledger.arrive(s.T, at, f)
			}
		}
	}
	s.follow()
}

// calm undoes all lasting blows. From then on everything recovers by itself, except a device that the
// daemon gives up, which waits for its operator (R23).
func (s *storm) calm() {
	s.fabric.SetConditions(memfabric.Conditions{})
	for _, h := range s.hosts {
		h.slot.Faults.Clear()
		h.opening.change(func() { h.opening.fails, h.opening.hangs, h.opening.short, h.opening.query = nil, 0, false, nil })
		h.release()
		h.straighten()
		h.replug()
		h.locks.HoldForeign(false)
		for _, n := range h.neighbours {
			n.Continue()
		}
		h.iface.Misbehave(Obliging)
		h.tap.SetUp(true)
		h.command(h.dev.Resume)
		synctest.Wait()
	}
}

// awaitHealth continues the traffic until both hosts are healthy and stay so.
func (s *storm) awaitHealth() {
	calm := time.Now()
	for since := calm; time.Since(since) < steady; {
		if time.Since(calm) > calmLimit {
			s.sick()
		}
		time.Sleep(beatEvery)
		s.beat()
		for _, h := range s.hosts { // its wait began before the calm
			if h.dev.Status().State == qprecovery.DeviceGivenUp && time.Since(calm) <= giveUpAfter {
				h.command(h.dev.Recover)
				synctest.Wait()
			}
		}
		if !s.healthy() {
			since = time.Now()
		}
	}
	s.Logf("healthy %v after the last blow", time.Since(calm)-steady)
}

func (s *storm) healthy() bool {
	for _, h := range s.hosts {
		st := h.status()
		if st.State != report.InterfaceUp || !st.Carrier || h.dev.Status().State != qprecovery.DeviceHealthy {
			return false
		}
		for _, n := range h.neighbours {
			if !n.Uses() {
				return false
			}
		}
	}
	return true
}

// sick reports the hosts that have not recovered with the states of their ladders, and ends the test.
func (s *storm) sick() {
	for _, h := range s.hosts {
		st, d := h.iface.Status(), h.dev.Status()
		s.Errorf("%s after %v: %s (%s), %s\nits ladder: %s for %s, last %+v\nthat of its device: %s for %s, last %+v",
			h.name, calmLimit, st.State, st.Reason, st.Detail, st.Recovery.State, st.Recovery.Reason, tail(st.Recovery.History), d.State, d.Reason, tail(d.History))
	}
	s.stop()
	s.FailNow()
}

// tail returns the last elements of a list.
func tail[T any](list []T) []T { return list[max(0, len(list)-3):] }
