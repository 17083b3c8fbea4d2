package neigh

import (
	"testing"
	"time"

	"ipoibd/ud/ipoib"
)

var firstMAC, secondMAC = ipoib.MAC{2, 0xbb}, ipoib.MAC{2, 0xcc}

// TestLearntMACHoldsWhileActive: the learnt MAC stays while its frames pass through the
// table or the data path, and a second MAC is refused.
func TestLearntMACHoldsWhileActive(t *testing.T) {
	frame := func(b *bench, src ipoib.MAC) { b.step(hostIP(src, ipoib.Broadcast, ip(ipA), ip("224.0.0.1"))) }
	for name, speak := range map[string]func(*bench){
		"slow path": func(b *bench) { frame(b, firstMAC) },
		"data path": func(b *bench) { b.snap.FromHost(firstMAC) },
	} {
		b := attachedBench(t, Config{})
		frame(b, firstMAC)
		b.advance(foreignMACSilence - time.Second)
		speak(b)
		b.advance(2 * time.Second)
		frame(b, secondMAC)
		if b.snap.HostMAC() != firstMAC {
			t.Errorf("%s: a second MAC replaced an active one", name)
		}
		wantDrops(t, b, DropForeignMAC, 1)
		b.advance(foreignMACSilence)
		frame(b, secondMAC)
		if b.snap.HostMAC() != secondMAC {
			t.Errorf("%s: the first MAC is silent but was not replaced", name)
		}
	}
}

// TestMarkJustBeforeTheSecondMAC: the mark counts even if no sweep has read it.
func TestMarkJustBeforeTheSecondMAC(t *testing.T) {
	now := epochTime
	var h hostMAC
	h.admit(firstMAC, now)
	now = now.Add(foreignMACSilence)
	mark(h.learnt.sent)
	if ok, _ := h.admit(secondMAC, now); ok {
		t.Error("the second MAC replaced the first")
	}
}

// TestOwnMACOfTheDataPath: ib0's own MAC is active only in the data path, and the
// silent learnt MAC is forgotten.
func TestOwnMACOfTheDataPath(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(hostIP(firstMAC, ipoib.Broadcast, ip(ipA), ip("224.0.0.1")))
	for range 6 {
		b.advance(time.Minute)
		b.snap.FromHost(ownMAC)
	}
	if b.snap.HostMAC() != ownMAC {
		t.Errorf("frames still go to %v", b.snap.HostMAC())
	}
}

// TestNewOwnMAC: a learnt MAC that becomes ib0's own is no longer a foreign
// one, and zero and group addresses are ignored.
func TestNewOwnMAC(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(hostIP(firstMAC, ipoib.Broadcast, ip(ipA), ip("224.0.0.1")))
	b.step(HostMAC{firstMAC})
	b.step(HostMAC{ipoib.MAC{}})
	b.step(HostMAC{ipoib.Broadcast})
	b.step(hostIP(secondMAC, ipoib.Broadcast, ip(ipA), ip("224.0.0.1")))
	if s := b.snap; !s.FromHost(firstMAC) || !s.FromHost(secondMAC) || s.FromHost(ownMAC) {
		t.Errorf("own %v, learnt %v, want only the learnt ones as the host's", s.own, s.learnt)
	}
}
