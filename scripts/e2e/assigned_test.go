package e2e

import (
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Daemons alone give two hosts addressed interfaces that are up, by flags and by the environment. The
// addresses and routes survive "ip link set down" and a crash. A daemon that starts with others
// takes back what it has assigned, and nothing else.
func TestOneCommandGivesAnAddressedInterface(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	routes := "198.18.0.0/15 via " + b.ip4() + ",fd55::/64"
	flags := []string{"--address", a.ip4() + "/24", "--address", a.ip6() + "/64", "--route", routes, "--up"}
	a.start(flags...)
	t.Setenv("IPOIBD_ADDRESS", b.ip4()+"/24,"+b.ip6()+"/64")
	t.Setenv("IPOIBD_UP", "true")
	t.Setenv("IPOIBD_SERVICE_HOST", "203.0.113.1") // of a Service in Kubernetes
	t.Setenv("IPOIBD_PORT", "tcp://203.0.113.1:80")
	b.start()
	reached := func(when string) {
		t.Helper()
		a.waitReaches(b)
		// Duplicate address detection takes a second.
		eventually(t, repairLimit, when+": IPv6", func() bool {
			return a.Command("ping", "-n", "-c", "1", "-W", "0.1", b.ip6()).Run() == nil && b.Command("ping", "-n", "-c", "1", "-W", "0.1", a.ip6()).Run() == nil
		})
		pingAll(a, b)
		for _, want := range []string{"198.18.0.0/15 via " + b.ip4(), "fd55::/64 "} {
			eventually(t, repairLimit, when+": the route "+want, func() bool {
				return strings.Contains(a.Run("ip", "route", "show", "dev", ifName)+a.Run("ip", "-6", "route", "show", "dev", ifName), want)
			})
		}
	}
	reached("after the start")

	a.Run("ip", "address", "add", "203.0.113.7/24", "dev", ifName)
	a.Run("ip", "link", "set", ifName, "down")
	a.Run("ip", "link", "set", ifName, "up")
	reached("after down and up")

	a.daemon.kill()
	a.start(flags...)
	reached("after a crash")

	a.daemon.stop()
	a.start("--address", "10.45.0.1/24")
	eventually(t, repairLimit, "the earlier addresses and routes are gone", func() bool {
		all := a.Run("ip", "address", "show", "dev", ifName) + a.Run("ip", "route", "show", "dev", ifName)
		return !strings.Contains(all, a.ip4()+"/") && !strings.Contains(all, a.ip6()+"/") && !strings.Contains(all, "198.18.0.0") && strings.Contains(all, "10.45.0.1/24")
	})
	if all := a.Run("ip", "address", "show", "dev", ifName); !strings.Contains(all, "203.0.113.7/24") {
		t.Errorf("the operator's address is gone:\n%s", all)
	}
}

// An address that the kernel refuses makes "status --check" fail, and is assigned once the reason
// has gone. With --up the log does not advise to do what the daemon does itself.
func TestRefusedAddress(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.Run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
	h.start("--address", h.ip4()+"/24", "--address", h.ip6()+"/64", "--up")
	h.waitCarrier()
	check := func() (out string, ok bool) {
		b, err := h.daemon.command("status", "--check").CombinedOutput()
		return string(b), err == nil
	}
	eventually(t, repairLimit, "the check names the address", func() bool {
		out, ok := check()
		return !ok && strings.Contains(out, "interface ib0 is up, but lacks a configured address or route: address "+h.ip6()+"/64: ")
	})
	cmd := h.daemon.command("status", "--check")
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	h.requireLogged("ip link set", 0)
	h.Run("sysctl", "-qw", "net.ipv6.conf."+ifName+".disable_ipv6=0")
	eventually(t, 30*time.Second, "the address is assigned", func() bool {
		_, ok := check()
		return ok && strings.Contains(h.Run("ip", "address", "show", "dev", ifName), h.ip6()+"/64")
	})
}
