package daemon

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link/linktest/nstest"
)

// The daemon tells systemd when it serves the control socket, what its interfaces do, that it is
// alive, and that it stops.
func TestService(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0", "ib1")
	path := filepath.Join(filepath.Dir(cfg.Control), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", fmt.Sprint((4*limit).Microseconds()/100))
	await := func(want string) {
		t.Helper()
		must(t, l.SetReadDeadline(time.Now().Add(limit)))
		var last string
		for buf := make([]byte, 4096); !strings.HasPrefix(last, want); {
			n, err := l.Read(buf)
			if err != nil {
				t.Fatalf("%q was not sent; the last was %q: %v", want, last, err)
			}
			last = string(buf[:n])
		}
	}
	cfg.Interfaces[0].Up = true
	r := start(t, cfg, options())
	await("READY=1")
	r.waitState(0, report.InterfaceUp)
	await("STATUS=ib0 up; ib1 down (admin_down), no carrier")
	for range 3 {
		await("WATCHDOG=1")
	}
	r.stop()
	await("STOPPING=1")
}

// The summary of thousands of interfaces is still one short line.
func TestSummaryIsBounded(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	var names []string
	const most = 8
	for i := range most + 2 {
		names = append(names, fmt.Sprintf("ib%d", i))
	}
	d, cfg := newDaemon(t.Context(), options()), configure(t, names...)
	plan, err := config.MakePlan(&config.Config{Control: cfg.Control}, cfg)
	must(t, err)
	made, err := d.fleet.Prepare(t.Context(), plan, &config.Config{}, cfg, fleet.Namespace{})
	must(t, err)
	d.fleet.Commit(plan, made)
	defer func() { must(t, d.fleet.Stop(false)) }()
	if s := d.fleet.Summary(); strings.Count(s, ";") != most || !strings.HasSuffix(s, "; 2 more") {
		t.Error(s)
	}
}
