package iface

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// starting is a log that calls a function while the interface begins to start on a device that is back.
type starting struct {
	slog.Handler
	do func()
}

func (starting) Enabled(context.Context, slog.Level) bool { return true }

func (s starting) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s starting) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "state" && a.Value.String() == qprecovery.Starting.String() {
			s.do()
		}
		return true
	})
	return nil
}

// A device may go again while the interface starts on it, such as one that is pulled out just after an event
// has reset it. The interface goes on recovering: it waits for the device until the device is given up.
func TestR23DeviceGoesWhileTheInterfaceStarts(t *testing.T) {
	for name, back := range map[string]bool{"for good": false, "for a moment": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, newFabric(t, 1), 1)
				h.stopInterface()
				var err error
				went := 0
				log := starting{slog.DiscardHandler, func() {
					if went++; went == 1 {
						h.unplug()
						time.Sleep(time.Second)
					}
				}}
				if h.iface, err = onTAP(testConfig(), h.tap, Env{Device: h.dev, Journal: journal.New(), Log: slog.New(log)}); err != nil {
					t.Fatal(err)
				}
				h.startInterface()
				h.up()
				h.inject(faults.Fault{Kind: faults.DeviceFatal})
				time.Sleep(10 * time.Second)
				if s := h.status(); went != 1 || s.Recovery.State != "detached" || s.Carrier {
					t.Errorf("after %d starts, %s, carrier %v: %s", went, s.Recovery.State, s.Carrier, s.Detail)
				}
				if !back {
					time.Sleep(qprecovery.DefaultGiveUpAfter)
					if s := h.status(); s.Recovery.State != "given_up" {
						t.Errorf("%s: %s", s.Recovery.State, s.Detail)
					}
				}
				h.plug()
				if !back {
					if err := h.dev.Recover(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				h.waitUp()
				if s := h.status(); s.Recovery.Recovered != 1 {
					t.Errorf("%d recoveries, want 1", s.Recovery.Recovered)
				}
			})
		})
	}
}
