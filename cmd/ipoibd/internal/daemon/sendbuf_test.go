package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// A send buffer that is too small is logged once, with the sysctl that limits it, no
// matter how often the device is opened. The kernel grants 1 GiB at most.
func TestSmallSendBufferIsLoggedOnce(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	var log syncBuffer
	h := &softHCA{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, buffer := range []int{1 << 20, 3 << 29, 3 << 29} {
		transport, err := udp.Open(udp.Config{Netdev: "under0", SendBuf: buffer})
		must(t, err)
		h.warnSendBuf(transport)
		must(t, transport.Close())
		want := 0
		if buffer > 1<<30 {
			want = 1
		}
		if n := strings.Count(log.String(), "net.core.wmem_max"); n != want {
			t.Errorf("with %d bytes requested: logged %d times, want %d:\n%s", buffer, n, want, log.String())
		}
	}
}
