package iface

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// rungsAbove returns how often a recovery entered a rung above least.
func rungsAbove(r *report.Recovery, least qprecovery.Rung) (n uint64) {
	for rung := least + 1; rung < qprecovery.NumRung; rung++ {
		n += r.Rungs[rung.String()]
	}
	return n
}

// until polls a condition until it holds or the limit has passed, and returns how long that took.
func until(holds func() bool, every, limit time.Duration) time.Duration {
	start := time.Now()
	for !holds() && time.Since(start) < limit {
		time.Sleep(every)
	}
	return time.Since(start)
}

// stream sends a frame from one host to the other every 10 ms and discards the frames
// that arrive.
func stream(t *testing.T, from, to *testHost, length time.Duration) {
	t.Helper()
	mac, ok := from.neighbour(to.ip)
	if !ok {
		t.Fatalf("%s does not know %s", from.name, to.name)
	}
	for range length / (10 * time.Millisecond) {
		from.sendIP(mac, to.ip, 100, 1)
		time.Sleep(10 * time.Millisecond)
		drainInbox(to)
	}
}

// An underlay that accepts nothing for 1.2 s twice, for 3 s ten times, or for a minute
// leads to no rung above resume_qp, with or without frames to send.
func TestR07UnwritableUnderlayResetsNothing(t *testing.T) {
	for _, c := range []struct {
		name        string
		times       int
		block, rest time.Duration
		sending     bool
	}{
		{"twice 1.2 s", 2, 1200 * time.Millisecond, 20 * time.Second, true},
		{"ten times 3 s", 10, 3 * time.Second, time.Second, true},
		{"ten times 3 s, idle", 10, 3 * time.Second, time.Second, false},
		{"a minute", 1, time.Minute, time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				reach(t, a, b)
				opens := a.dev.Opens()
				pass := func(d time.Duration) {
					if c.sending {
						stream(t, a, b, d)
					} else {
						time.Sleep(d)
					}
				}
				for range c.times {
					a.underlay().SetWritable(false)
					pass(c.block)
					a.underlay().SetWritable(true)
					pass(c.rest)
				}
				s := a.status()
				if n := rungsAbove(s.Recovery, qprecovery.RungResumeQP); n != 0 || a.dev.Opens() != opens {
					t.Errorf("rungs %v by %v, opened %d times, was %d", s.Recovery.Rungs, s.Recovery.Reasons, a.dev.Opens(), opens)
				}
				if a.underlay().Blocked() == 0 {
					t.Error("no send found the underlay full, so the test shows nothing")
				}
				drainInbox(a, b)
				reach(t, a, b)
				checkAccounts(t, a.status())
			})
		})
	}
}

// When the data path is dead on every queue pair and CQ although verbs still answer, a
// fresh queue pair proves the freeze and the device is reset.
func TestR08DeadDataPathResetsTheDevice(t *testing.T) {
	for _, kind := range []faults.Kind{faults.CompletionsStop, faults.DeafReceive, faults.SwallowedSend} {
		t.Run(kind.String(), func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				reach(t, a, b)
				opens := a.dev.Opens()
				a.inject(faults.Fault{Kind: kind, Count: math.MaxInt})
				took := until(func() bool { return a.dev.Opens() != opens }, 10*time.Millisecond, time.Minute)
				a.waitUp()
				r := a.status().Recovery
				t.Logf("after %v: %v", took, r.Reasons)
				if r.Reasons["freeze_persists"] != 1 || r.Rungs["rebuild_cq"] != 1 || took > 4*time.Second {
					t.Errorf("after %v: rungs %v by %v", took, r.Rungs, r.Reasons)
				}
				drainInbox(a, b)
				reach(t, a, b)
				checkAccounts(t, a.status())
			})
		})
	}
}

// A queue pair keeps freezing while a fresh one on the same device works. Recovery stays
// at the CQ rung, with pauses, and does not reset the device.
func TestR07UnprovenFreezeStaysAtTheCQRung(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		opens := a.dev.Opens()
		for range 20 {
			a.inject(faults.Fault{Kind: faults.CompletionsStop})
			before := a.status().Recovery.Rungs["rebuild_cq"]
			until(func() bool {
				r := a.status().Recovery
				return r.Rungs["rebuild_cq"] > before && r.State == "healthy"
			}, 100*time.Millisecond, 2*time.Minute)
		}
		r := a.status().Recovery
		t.Logf("%v by %v", r.Rungs, r.Reasons)
		if r.Rungs["rebuild_cq"] < 20 || rungsAbove(r, qprecovery.RungRebuildCQ) != 0 || r.Reasons["repeated"] == 0 || a.dev.Opens() != opens {
			t.Errorf("rungs %v by %v, opened %d times, was %d", r.Rungs, r.Reasons, a.dev.Opens(), opens)
		}
		time.Sleep(time.Minute)
		drainInbox(a, b)
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}

// A port that goes down during the proof of a freeze leaves the freeze unproven.
func TestR08ProofNeedsThePort(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		opens := a.dev.Opens()
		a.inject(faults.Fault{Kind: faults.CompletionsStop, Count: math.MaxInt})
		until(func() bool { return a.status().Recovery.State == "proving" }, 10*time.Millisecond, time.Minute)
		if state := a.status().Recovery.State; state != "proving" {
			t.Fatalf("state %s, want proving", state)
		}
		a.inject(faults.Fault{Kind: faults.PortDown})
		time.Sleep(5 * time.Second)
		r := a.status().Recovery
		if rungsAbove(r, qprecovery.RungRebuildCQ) != 0 || a.dev.Opens() != opens {
			t.Errorf("rungs %v by %v, opened %d times, was %d", r.Rungs, r.Reasons, a.dev.Opens(), opens)
		}
	})
}

// A send queue that is full although nothing is outstanding, or that refuses every send,
// is detected within a second and repaired by the CQ rung, whether or not peers keep
// sending.
func TestR08DeadSendQueueIsNoticed(t *testing.T) {
	for name, refusal := range map[string]error{"full": sendsFull, "refuses": sendsRefused} {
		for _, talking := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, peers send %t", name, talking), func(t *testing.T) {
				slowHosts(t, func(t *testing.T, a, b *testHost) {
					reach(t, a, b)
					a.verbs.breakSends(refusal)
					start := time.Now()
					mac, _ := a.neighbour(b.ip)
					back, _ := b.neighbour(a.ip)
					for a.status().Recovery.Rungs["rebuild_cq"] == 0 && time.Since(start) < 10*time.Second {
						a.sendIP(mac, b.ip, 100, 1)
						if talking {
							b.sendIP(back, a.ip, 100, 1)
						}
						time.Sleep(50 * time.Millisecond)
						synctest.Wait()
						drainInbox(a, b)
					}
					took := time.Since(start)
					t.Logf("detected after %v", took)
					if took > time.Second {
						t.Errorf("detected after %v, want a second at most", took)
					}
					time.Sleep(time.Second)
					drainInbox(a, b)
					reach(t, a, b)
					checkAccounts(t, a.status())
				})
			})
		}
	}
}

// A TAP that cannot be read stops the transmit pump, and so the probes. That is not a
// freeze of the device.
func TestR08StoppedPumpIsNotJudged(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.tap.block(true)
		time.Sleep(time.Minute)
		if n := a.tap.failedReads(); n == 0 {
			t.Fatal("the interface did not read the TAP, so the test shows nothing")
		}
		if r := a.status().Recovery; rungsAbove(r, qprecovery.RungNone) != 0 {
			t.Errorf("rungs %v by %v", r.Rungs, r.Reasons)
		}
		a.tap.block(false)
		time.Sleep(lastRetry)
		drainInbox(a, b)
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}
