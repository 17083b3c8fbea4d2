package backend

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/rdma"
)

// A real HCA reports the pause frames that its netdevs have received as its wire's report, through every
// wrapper: not more than one reading old, and without waiting for it (R07).
func TestR07PausesAreTheWiresReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 3, rxeGUID))
		var counted, reads atomic.Uint64
		lock := make(chan struct{}, 1) // the kernel's, of all interfaces
		k.paused = func() (uint64, error) {
			lock <- struct{}{}
			<-lock
			reads.Add(1)
			return counted.Load(), nil
		}
		counted.Store(7)
		h, err := newRealHCA(t.Context(), realConfig(), k.openHCA, k.kernel(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		slot := NewSlot(h, true, slog.New(slog.DiscardHandler))
		slot.List(t.Context())
		dev, err := slot.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		check := func(want, most uint64) {
			t.Helper()
			before := reads.Load()
			for range 20 { // as often as a lane is sampled
				_ = hca.WireBlockedOf(dev)
				time.Sleep(50 * time.Millisecond)
			}
			got := hca.WireBlockedOf(dev)
			synctest.Wait() // for a reading that this has begun
			if n := reads.Load() - before; got != want || n > most {
				t.Errorf("%d pauses by %d readings in a second, want %d by %d", got, n, want, most)
			}
		}
		check(7, 2)
		counted.Store(9)
		check(9, 2)
		before := reads.Load()
		time.Sleep(time.Hour)
		if n := reads.Load() - before; n > 1 {
			t.Errorf("%d readings without being asked", n)
		}
		lock <- struct{}{}
		counted.Store(11)
		check(9, 0)
		<-lock
		check(11, 3)
		synctest.Wait() // for the last reading, which would end the use of the netdevs itself
		if err := dev.Close(); err != nil || k.paused != nil {
			t.Errorf("closed: %v, still in use: %v", err, k.paused != nil)
		}
		check(11, 0)
	})
}

// A reading that waits for the kernel's lock of all interfaces does not delay the end of the HCA, which would
// seem to hang (R07). The reading then ends its use of the netdevs.
func TestR07CloseDoesNotWaitForAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 3, rxeGUID))
		var ended time.Duration
		began, lock := time.Now(), make(chan struct{}, 1)
		read := func() (uint64, error) {
			lock <- struct{}{}
			<-lock
			return 0, errors.New("the netdev is gone")
		}
		with := k.kernel()
		with.pauses = func(rdma.Device) (func() (uint64, error), func() error) {
			return read, func() error { ended = time.Since(began); return nil }
		}
		inner, err := k.openHCA("rxe0")
		if err != nil {
			t.Fatal(err)
		}
		dev := with.reportPauses(inner, rdma.Device{})
		time.Sleep(pauseEvery)
		lock <- struct{}{}
		_ = hca.WireBlockedOf(dev)
		time.AfterFunc(time.Minute, func() { <-lock })
		asked := time.Now()
		if err := dev.Close(); err != nil || time.Since(asked) != 0 {
			t.Errorf("closed after %v: %v", time.Since(asked), err)
		}
		time.Sleep(time.Hour)
		synctest.Wait() // for the race detector
		if want := pauseEvery + time.Minute; ended != want {
			t.Errorf("the use has ended after %v, want %v", ended, want)
		}
	})
}

// While the netdevs are examined at an opening, which waits for the kernel's lock of all interfaces, nothing
// else waits for the HCA: neither its status nor the list of devices (R19).
func TestR19OpeningBlocksNothingElse(t *testing.T) {
	k := newFakeKernel(t, rxe("rxe0", 3, rxeGUID))
	with := k.kernel()
	examined := false
	var h *realHCA
	with.pauses = func(rdma.Device) (func() (uint64, error), func() error) {
		examined = true
		if !h.mu.TryLock() {
			t.Error("the lock of the HCA is held")
		} else {
			h.mu.Unlock()
		}
		return nil, nil
	}
	h, err := newRealHCA(t.Context(), realConfig(), k.openHCA, with, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	id, err := h.Find()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := h.Open(id)
	if err != nil || !examined {
		t.Fatalf("examined: %v, %v", examined, err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// Without such counters there is no report, and a reading that fails changes nothing.
func TestNoPausesWithoutCounters(t *testing.T) {
	dev := &identified{}
	if got := (kernel{pauses: func(rdma.Device) (func() (uint64, error), func() error) { return nil, nil }}).reportPauses(dev, rdma.Device{}); got != dev {
		t.Errorf("wrapped as %T", got)
	}
	fails := func() (uint64, error) { return 3, errors.New("no such device") }
	p := &pauses{Device: dev, read: fails, count: 2}
	if p.readOnce(); p.count != 2 {
		t.Errorf("count %d", p.count)
	}
}

func TestPauseCounters(t *testing.T) {
	for name, want := range map[string]bool{
		"rx_prio3_pause": true, "rx_prio3_pause_duration": true, "rx_global_pause": true, "rx_global_pause_duration": true, "rx_pause_ctrl_phy": true, // mlx5
		"rx_pause": true, "rx_pause_prio_3": true, "rx_pause_duration_prio_3": true, // mlx4
		"rx_pause_frames": true, "rx_pfc_ena_frames_pri3": true, // bnxt_en
		"rx_priority_3_xoff.nic": true, "link_xoff_rx.nic": true, // ice
		"port.link_xoff_rx": true, "port.rx_priority_3_xoff": true, // i40e
		"tx_pause": false, "tx_prio3_pause": false, "tx_pause_storm_warning_events": false, "link_xoff_tx.nic": false, "rx_prio3_packets": false, "rx_packets": false,
	} {
		if received.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	d := rdma.Device{Ports: []rdma.Port{{GIDs: []rdma.GID{{Netdev: "eth0"}, {Netdev: "eth0"}, {}, {Netdev: "eth0.7"}}}}}
	if got := netdevsOf(d); len(got) != 2 || got[0] != "eth0" || got[1] != "eth0.7" {
		t.Errorf("netdevs %v", got)
	}
}
