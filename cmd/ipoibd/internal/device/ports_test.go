package device

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// poor is an HCA whose query_port fails for lack of descriptors, some times.
type poor struct {
	hca.Device
	fails *atomic.Int32
}

func (p *poor) QueryPort(n uint8) (hca.PortAttr, error) {
	if p.fails.Load() > 0 && p.fails.Add(-1) >= 0 {
		return hca.PortAttr{}, &hca.VerbError{Verb: "query_pkey", Err: hca.ErrNoMemory}
	}
	return p.Device.QueryPort(n)
}

// The link returns at a moment at which this process has no descriptor left (EMFILE of readPKeys or of
// a netlink socket, both of which QueryPort of hca/verbs opens). The query is repeated soon (R25).
func TestR25PortChangeIsQueriedAgain(t *testing.T) {
	var fails atomic.Int32
	bubble(t, func(c *Config) {
		open := c.Open
		c.Open = func(ctx context.Context) (hca.Device, error) {
			dev, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return &poor{dev, &fails}, nil
		}
	}, func(b *bench) {
		b.slot.port.SetUp(false)
		synctest.Wait()
		if s := b.View().Ports[0].State; s == hca.PortActive {
			t.Fatalf("the port is %v", s)
		}
		fails.Store(1)
		b.slot.port.SetUp(true)
		synctest.Wait()
		if fails.Load() != 0 {
			t.Fatal("nothing was queried")
		}
		time.Sleep(checkInterval / 4)
		if s := b.View().Ports[0].State; s != hca.PortActive {
			t.Errorf("the port is still %v", s)
		}
	})
}

// An event of a port is lost. The next periodic query shows the change, whatever the events said (R24).
func TestR24LostPortEvent(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		for _, want := range []hca.PortState{hca.PortDown, hca.PortActive} {
			b.slot.inject(t, faults.Fault{Kind: faults.EventLost})
			b.slot.port.SetUp(want == hca.PortActive)
			time.Sleep(checkInterval + soon)
			if s := b.View().Ports[0].State; s != want {
				t.Errorf("the port is %v, want %v", s, want)
			}
		}
	})
}
