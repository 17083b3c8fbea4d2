package device

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
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

// The first opening is tried again after 1, 2 and 4 s and then every 8 s, and at once
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
		time.Sleep(7*time.Second + 2*qprecovery.StartPauseMost + time.Second/2)
		if b.slot.did().opens != 6 || !errors.Is(b.View().Err, errAbsent) {
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

// The end of the context ends Run while the opener waits.
func TestEndWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) {
			c.Open = func(ctx context.Context) (hca.Device, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
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
