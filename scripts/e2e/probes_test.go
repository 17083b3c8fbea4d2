package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// In each state of the interface, /readyz on both servers and `ipoibd status --check` agree,
// also in the reason; /livez stays healthy, because no restart would help.
func TestProbes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.start(append(h.monitored("give_up_after: 1s"), "--metrics-listen", h.metricsAddr())...)
	agree := func(what, reason string) {
		t.Helper()
		var seen string
		defer func() { t.Logf("%s: %s", what, seen) }()
		eventually(t, repairLimit, what+": the probes agree", func() bool {
			check, local, remote := h.check(), h.ask("unix", h.daemon.control, "/readyz"), h.ask("tcp", h.metricsAddr(), "/readyz")
			seen = fmt.Sprintf("%q, %q, %q", check, local, remote)
			return local == remote && local == check && strings.Contains(local, reason)
		})
		for network, addr := range map[string]string{"unix": h.daemon.control, "tcp": h.metricsAddr()} {
			if live := h.ask(network, addr, "/livez"); live != "ok" {
				t.Errorf("%s: /livez over %s: %s", what, network, live)
			}
		}
	}
	agree("at the start", "interface ib0 is not up: interface is down")
	h.Run("ip", "link", "set", ifName, "up")
	agree("up", "ok")
	h.Run("ip", "link", "set", nstest.Dev, "down")
	agree("underlay down", "interface ib0 is not up: port 1 is DOWN")
	h.Run("ip", "link", "set", nstest.Dev, "up")
	agree("underlay up", "ok")
	h.daemon.requirePost("/v1/suspend", nil)
	agree("suspended", "interface ib0 is not up: device is suspended")
	h.daemon.requirePost("/v1/resume", nil)
	agree("resumed", "ok")
	h.daemon.inject(faultRequest{Kind: "unplug"})
	agree("given up", "interface ib0 is not up: ipoibd has stopped waiting for device soft")
}

// check returns the output of `ipoibd status --check`, "ok" if it exits with 0 and prints
// nothing.
func (h *host) check() string {
	h.tb.Helper()
	out, err := h.daemon.command("status", "--check").CombinedOutput()
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch text := strings.TrimPrefix(strings.TrimSpace(string(out)), "ipoibd: "); {
	case err == nil && text == "":
		return "ok"
	case failed && exit.ExitCode() == 3:
		return text
	}
	h.tb.Fatalf("status --check: %v\n%s", err, out)
	return ""
}

// ask returns the body of a probe's answer, whose code must fit to it.
func (h *host) ask(network, addr, path string) string {
	h.tb.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			h.Do(func() { conn, err = net.Dial(network, addr) })
			return conn, err
		},
	}}
	resp, err := client.Get("http://ipoibd" + path)
	if err != nil {
		h.tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if text := strings.TrimSpace(string(body)); err == nil && (text == "ok") == (resp.StatusCode == http.StatusOK) {
		return text
	}
	h.tb.Fatalf("%s: %s, %v\n%s", path, resp.Status, err, body)
	return ""
}
