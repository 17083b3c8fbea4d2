package coordinator

import (
	"context"
	"errors"
	"fmt"

	"ipoibd/qprecovery/reset"
)

// errStillResetting says that an earlier reset of the device, given up long ago,
// has not returned.
var errStillResetting = errors.New("an earlier reset of the device has not returned")

// reset runs Config.Reset. While an earlier one has not returned the device is
// stuck, and this one fails.
func (h *host) reset(a reset.Reset) {
	if h.running != 0 {
		h.report(resetDone{a.Reset, errStillResetting})
		return
	}
	ctx, cancel := context.WithCancel(h.o.ctx)
	h.running, h.cancel = a.Reset, cancel
	h.o.log.Info("resetting the device", "reset", a.Reset, "without", names(a.Without))
	h.o.spawn(func() {
		defer cancel()
		h.o.report(resetDone{a.Reset, h.o.conf.Reset(ctx, a.Without)})
	})
}

// report hands the outcome to the server.
func (h *host) report(n resetDone) {
	if n.err != nil {
		h.o.log.Error("reset of the device failed", "reset", n.id, "err", n.err)
	}
	h.take(reset.ResetDone{Reset: n.id, Failed: n.err != nil})
}

// names are for the log.
func names(members []reset.Member) []string {
	var out []string
	for _, m := range members {
		out = append(out, fmt.Sprintf("%s[%d]", m.Name, m.PID))
	}
	return out
}
