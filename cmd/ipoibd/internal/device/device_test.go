package device

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

func TestViewFollowsPort(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		if v := b.View(); v.Session == nil || v.Ports[0].State != hca.PortActive {
			t.Fatalf("after open: %+v", v)
		}
		changed, unsubscribe := b.Subscribe()
		defer unsubscribe()
		<-changed // the first value is there at once
		b.slot.port.SetUp(false)
		<-changed
		if st := b.View().Ports[0].State; st != hca.PortDown {
			t.Errorf("link down: port is %s", st)
		}
		b.slot.port.SetUp(true)
		<-changed
		if st := b.View().Ports[0].State; st != hca.PortActive {
			t.Errorf("link up: port is %s", st)
		}
	})
}

// The first opening is tried again after 0.1, 0.2, ... 6.4 s and then every 10 s, and at once
// when the list changes. A reason that does not change is published once.
func TestFirstOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.slot.set(func() { b.slot.guid = hca.GUID{} })
		b.run()
		defer b.stop()
		changed, unsubscribe := b.Subscribe()
		defer unsubscribe()
		<-changed
		time.Sleep(127*100*time.Millisecond + 2*qprecovery.RetryEvery + 50*time.Millisecond)
		if b.slot.did().opens != 10 || !errors.Is(b.View().Err, errAbsent) {
			t.Errorf("opened %d times: %v", b.slot.did().opens, b.View().Err)
		}
		select {
		case <-changed:
			t.Error("the same reason was published again")
		default:
		}
		b.slot.plug(guidSame)
		b.healthy(time.Millisecond)
	})
}

// Why a device or its port cannot be used names the netdev below it, and what to do.
func TestR29ReasonsNameTheNetdev(t *testing.T) {
	bubble(t, func(c *Config) { c.Underlay = "eth0" }, func(b *bench) {
		want := func(err error, text string) {
			t.Helper()
			if err == nil || err.Error() != text {
				t.Errorf("got  %v\nwant %s", err, text)
			}
		}
		plan := func() error {
			synctest.Wait()
			_, err := b.View().Plan(port.Want{Port: 1, PKey: hca.PKeyDefault})
			return err
		}
		if err := plan(); err != nil {
			t.Error(err)
		}
		b.slot.port.SetUp(false)
		want(plan(), "port 1 is DOWN: port is not active: eth0 is down, or has no carrier; bring it up: ip link set eth0 up")
		b.slot.port.SetUp(true)
		b.slot.port.DelAddr(addr1)
		want(plan(), "netdev eth0: port has no usable GID: the netdev below it needs an IP address")
		b.slot.unplug()
		synctest.Wait()
		want(b.View().Err, "device soft is lost; waiting for it to come back on eth0")
	})
}

// The operator learns that the GID of a port has another IP family, when the address of its
// netdev changes or when the device is opened again. A change within a family is not reported.
func TestR29NoteOfAnotherFamilyOfGIDs(t *testing.T) {
	bubble(t, func(c *Config) { c.Underlay = "eth0" }, func(b *bench) {
		six, four := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.7")
		for _, change := range []func(){
			func() { b.slot.port.AddAddr(four) },
			func() { b.slot.port.DelAddr(addr1) },
			func() { b.slot.port.DelAddr(four) },
			func() { b.slot.port.AddAddr(six) },
			func() { b.Ask(qprecovery.ReasonVerbFailed) }, // the next instance has only addr1
		} {
			change()
			time.Sleep(soon)
		}
		want := []string{
			"the GID of port 1 was IPv4 and is now IPv6 (fd00::1): only hosts with IPv6 GIDs can be reached; if that is not intended, change the IP addresses of eth0",
			"the GID of port 1 was IPv6 and is now IPv4 (10.0.0.1): only hosts with IPv4 GIDs can be reached; if that is not intended, change the IP addresses of eth0",
		}
		if got := b.notes(); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// The end of the context ends Run while the opener waits.
func TestEndWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Open = neverOpens })
		b.run()
		if err := b.View().Err; !errors.Is(err, ErrNotOpen) {
			t.Errorf("reason is %v", err)
		}
		b.stop()
		if err := b.View().Err; !errors.Is(err, ErrEnded) {
			t.Errorf("in the end: %v", err)
		}
		if err := b.Reset(t.Context()); !errors.Is(err, ErrEnded) {
			t.Errorf("an order after the end: %v", err)
		}
	})
}

// A stop does not wait for an opening that hangs: the daemon has a few seconds for all of its devices.
func TestEndWhileOpeningHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := newBench(t, func(c *Config) {
			c.Open = func(context.Context) (hca.Device, error) { <-hang; return nil, hca.ErrNoDevice }
		})
		b.run()
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		b.stop()
		if took := time.Since(start); took > verbTimeout {
			t.Errorf("Run ended after %v", took)
		}
		close(hang)
	})
}
