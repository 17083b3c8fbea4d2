package daemon

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/link/linktest/nstest"
	"ipoibd/qprecovery"
)

// runSoft runs a software HCA on under0 until the test's end, which shows that nothing is
// left of it.
func runSoft(t *testing.T, change func(*config.Device)) *fleet.Device {
	t.Helper()
	cfg := config.NewDevice()
	cfg.Underlay = "under0"
	if change != nil {
		change(&cfg)
	}
	before := use()
	f := fleet.New(t.Context(), fleet.Options{AllowFaults: true, Journal: journal.New(), Log: options().Log})
	none, one := &config.Config{}, &config.Config{Devices: []config.Device{cfg}}
	plan, err := config.MakePlan(none, one)
	must(t, err)
	made, err := f.Prepare(t.Context(), plan, none, one, fleet.Namespace{})
	must(t, err)
	f.Commit(plan, made)
	t.Cleanup(func() {
		must(t, f.Stop(false))
		before.check(t)
	})
	d := f.Device(cfg.Name)
	await(t, d, func(v device.View) bool { return v.Session != nil })
	return d
}

// await waits for a view and returns it.
func await(t *testing.T, d *fleet.Device, ok func(device.View) bool) device.View {
	t.Helper()
	views, unsubscribe := d.Subscribe()
	defer unsubscribe()
	late := time.After(limit)
	for {
		select {
		case <-views:
			if v := d.View(); ok(v) {
				return v
			}
		case <-late:
			t.Fatalf("not within %s: %+v, %v", limit, d.View(), d.Status().State)
		}
	}
}

// isAfter reports whether the device is open again, with another session than the last.
func isAfter(last *device.Session) func(device.View) bool {
	return func(v device.View) bool { return v.Session != nil && v.Session != last }
}

func isGone(v device.View) bool { return v.Session == nil }

// A netdev that is deleted and made again is noticed by an event: at once, where
// the next try by time is 10 s off.
func TestR24NetdevIsNoticed(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	d := runSoft(t, nil)
	for _, p := range []backend.Plugged{backend.PluggedIn, backend.PluggedOther} {
		if err := d.Slot.Faults.Plug(p); !errors.Is(err, backend.ErrNotPulledOut) {
			t.Errorf("replug of what was not pulled out: %v", err)
		}
	}
	for range 3 {
		last := d.View().Session
		must(t, netlink.LinkDel(find(t, "under0")))
		await(t, d, isGone)
		time.Sleep(100 * time.Millisecond) // it is waited for
		underlay(t, "under0", 1)
		begin := time.Now()
		await(t, d, isAfter(last))
		took := time.Since(begin)
		t.Logf("open again after %s", took)
		if took > 2*time.Second {
			t.Errorf("noticed after %s", took)
		}
	}
}

// A netdev of another MAC is another device; one whose MAC changes is not.
func TestR22NetdevIdentity(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	d := runSoft(t, nil)
	first := d.View().Session
	guid := first.Attr().NodeGUID
	must(t, netlink.LinkSetHardwareAddr(find(t, "under0"), net.HardwareAddr{2, 0, 0, 0, 0, 7}))
	must(t, d.Reset(t.Context()))
	second := await(t, d, isAfter(first)).Session
	if second.Attr().NodeGUID != guid {
		t.Errorf("GUID %s, was %s", second.Attr().NodeGUID, guid)
	}
	must(t, netlink.LinkDel(find(t, "under0")))
	await(t, d, isGone)
	underlay(t, "under0", 9)
	time.Sleep(300 * time.Millisecond)
	if !isGone(d.View()) {
		t.Error("another device was taken")
	}
	must(t, netlink.LinkDel(find(t, "under0")))
	underlay(t, "under0", 1)
	await(t, d, isAfter(second))
}

// An unplug by a fault is undone by replug; another device in its place is left
// alone.
func TestR21UnplugAndReplug(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	d := runSoft(t, nil)
	for range 3 {
		last := d.View().Session
		must(t, d.Inject(faults.Fault{Kind: faults.Unplug}))
		await(t, d, isGone)
		for d.Status().State != qprecovery.DeviceWaiting {
			time.Sleep(time.Millisecond)
		}
		if err := d.Inject(faults.Fault{Kind: faults.PortDown}); !errors.Is(err, backend.ErrNotOpen) {
			t.Errorf("a fault of a device that is gone: %v", err)
		}
		must(t, d.Slot.Faults.Plug(backend.PluggedOther))
		time.Sleep(100 * time.Millisecond)
		if !isGone(d.View()) {
			t.Error("another device was taken")
		}
		must(t, d.Slot.Faults.Plug(backend.PluggedIn))
		await(t, d, isAfter(last))
	}
}

// A user never releases the device, and a verb hangs as well. After the grace period the next
// instance is open on the same UDP port, and the zombie closes later.
func TestR14ZombieFreesThePort(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	d := runSoft(t, func(c *config.Device) { c.Grace = 200 * time.Millisecond })
	s := d.View().Session
	s.Acquire("user")
	pd, err := s.AllocPD()
	must(t, err)
	must(t, d.Inject(faults.Fault{Kind: faults.VerbHangs, Verb: "create_cq"}))
	hung := make(chan error, 1)
	go func() {
		cq, err := s.CreateCQ(hca.CQSpec{Entries: 4})
		if err == nil { // the reset was faster than the failure
			err = cq.Close()
		}
		hung <- err
	}()
	begin := time.Now()
	must(t, d.Reset(t.Context()))
	await(t, d, isAfter(s))
	t.Logf("reset without it after %s", time.Since(begin))
	if err := <-hung; err != nil && !errors.Is(err, hca.ErrIO) {
		t.Errorf("the hung verb: %v", err)
	}
	must(t, pd.Close())
	s.Release("user")
}

// The time of a reset on real sockets, printed.
func TestR21ResetTime(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const rounds, goal = 11, 100 * time.Millisecond
	underlay(t, "under0", 1)
	d := runSoft(t, nil)
	var took []time.Duration
	for range rounds {
		last, begin := d.View().Session, time.Now()
		must(t, d.Reset(t.Context()))
		await(t, d, isAfter(last))
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("median %s, longest %s (goal %s)", took[rounds/2], took[rounds-1], goal)
	if took[rounds/2] > 10*goal {
		t.Errorf("a reset takes %s", took[rounds/2])
	}
}
