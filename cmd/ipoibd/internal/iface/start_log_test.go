package iface

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"ipoibd/cmd/ipoibd/internal/journal"
)

// The log says how to set ib0 up, and does not call the first start a recovery.
func TestFirstStartIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		h := newHost(t, fabric, 1)
		h.stopInterface()
		var log bytes.Buffer
		var err error
		h.iface, err = onTAP(testConfig(), h.tap, Env{Device: h.dev, Journal: journal.New(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		h.startInterface()
		h.up()
		h.stop()
		for _, c := range []struct {
			text string
			want int
		}{
			{"bring it up: ip link set ib0 up", 1},
			{"msg=up ", 1},
			{"msg=recovery", 0},
		} {
			if got := strings.Count(log.String(), c.text); got != c.want {
				t.Errorf("%q is logged %d times, want %d:\n%s", c.text, got, c.want, &log)
			}
		}
	})
}
