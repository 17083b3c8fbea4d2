package backend

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
	a, _ := nstest.Pair(t, 1500)
	var log strings.Builder
	h := &softHCA{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, buffer := range []int{1 << 20, 3 << 29, 3 << 29} {
		var transport *udp.Transport
		var err error
		a.Do(func() { transport, err = udp.Open(udp.Config{Netdev: nstest.Dev, SendBuf: buffer}) })
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
