package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// containerLimit bounds how long the kernel takes to delete an interface with its
// container: ten times the time seen on an idle kernel that frees the last socket
// of a namespace late (CONFIG_RCU_LAZY).
const containerLimit = 3 * time.Minute

// ib0 of one host is moved to a container, which uses it as eth0 and can be
// reached by it. The daemon stays outside and follows the container's settings:
// up, down and MTU. When the container ends, the kernel deletes the interface;
// the daemon reports this and exits, and the next start creates it again.
func TestContainer(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join("--follow")
	b.join()
	pingAll(a, b)
	before := a.iface()

	in := &host{Namespace: nstest.New(t), tb: t, number: a.number, daemon: a.daemon}
	a.moveTo(in, nstest.Dev)
	t.Logf("the container reaches the other host %v after its carrier", in.waitReaches(b))
	pingAll(in, b)
	if now := a.iface(); now.MAC != before.MAC || now.MTU != before.MTU || now.HostMAC != now.MAC {
		t.Errorf("in the container: %+v, was %+v", now, before)
	}
	in.Run("ip", "link", "set", nstest.Dev, "mtu", "1300")
	eventually(t, repairLimit, "MTU of the container", func() bool { return a.iface().MTU == 1300 })
	in.Run("ip", "link", "set", nstest.Dev, "down")
	eventually(t, repairLimit, "down in the container", func() bool { return a.iface().State == "down" })
	in.Run("ip", "link", "set", nstest.Dev, "up")
	in.AddIPv6(nstest.Dev, in.ip6()+"/64") // down removes it
	in.waitReaches(b)
	pingAll(in, b)

	start := time.Now()
	in.Close()
	a.daemon.requireEnd("or its container exited; restart the daemon, or reload its configuration file, to recreate it")
	t.Logf("the daemon exited %v after the container ended", time.Since(start).Round(time.Millisecond))
	a.join("--follow")
	if a.iface().Adopted {
		t.Error("the daemon adopted an interface that had been deleted")
	}
	b.waitReaches(a)
	pingAll(a, b)
}

// A daemon that stops leaves the interface in its container, without carrier. A
// daemon started in the container, on an underlay there, adopts it with its
// addresses.
func TestContainerAdopts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, in := hosts[0], hosts[1], hosts[2]
	a.join("--follow")
	b.join()
	in.daemon = a.daemon
	a.moveTo(in, ifName)
	in.waitReaches(b)

	out, err := in.ipoibd("delete", ifName).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the interface is in use by another process") {
		t.Errorf("delete in the container while the daemon runs outside: %v\n%s", err, out)
	}
	addrs := in.addrs()
	a.daemon.stop()
	if in.carrier() || a.exists() {
		t.Errorf("after the stop: carrier %t, %s outside %t", in.carrier(), ifName, a.exists())
	}
	in.start()
	in.waitCarrier()
	if now := in.addrs(); !in.iface().Adopted || strings.Join(now, " ") != strings.Join(addrs, " ") {
		t.Errorf("in the container: adopted %t with %q, had %q", in.iface().Adopted, now, addrs)
	}
	b.waitReaches(in)
	pingAll(in, b)
}

// A driver of network devices, such as DRANET, gives ib0 to pods: it moves, renames and resizes it in
// one request, adds addresses, and returns it. The daemon serves each pod in turn, and the host.
func TestLentToPods(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join("--follow")
	b.join()
	a.Run("ip", "addr", "flush", "dev", ifName) // the host itself has none
	before := a.iface()
	for _, mtu := range []int{1300, 1400} {
		pod := &host{Namespace: nstest.New(t), tb: t, number: a.number, daemon: a.daemon}
		a.Run("ip", "link", "set", ifName, "down")
		a.Run("ip", "link", "set", "dev", ifName, "name", "net1", "mtu", strconv.Itoa(mtu), "gso_max_size", "32000", "gro_max_size", "32000", "netns", pod.Path())
		pod.addAddrs("net1")
		pod.Run("ip", "link", "set", "net1", "up")
		pod.AddIPv6("net1", pod.ip6()+"/64")
		t.Logf("a pod reaches the other host after %v", pod.waitReaches(b))
		pingAll(pod, b)
		a.waitMTU(countLimit, mtu)
		if now := a.iface(); now.MAC != before.MAC {
			t.Errorf("in the pod: %+v, was %+v", now, before)
		}

		pod.Run("ip", "link", "set", "net1", "down")
		pod.Run("ip", "link", "set", "dev", "net1", "name", ifName, "netns", a.Path())
		a.Run("ip", "link", "set", ifName, "up")
		a.waitCarrier()
		if left := a.addrs(); slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, pod.ip4()) }) {
			t.Errorf("returned with addresses: %v", left)
		}
		pod.Close()
	}
	a.addAddrs(ifName)
	a.waitReaches(b)
	pingAll(a, b)
	if now := a.iface(); now.Adopted != before.Adopted || now.MAC != before.MAC {
		t.Errorf("returned: %+v, was %+v", now, before)
	}
}

// moveTo moves ib0 to a container, renames it, sets it up with the container's
// addresses and waits for its carrier.
func (h *host) moveTo(in *host, name string) {
	h.tb.Helper()
	h.Run("ip", "link", "set", ifName, "netns", in.Path(), "name", name)
	in.Run("ip", "link", "set", name, "up")
	in.addAddrs(name)
	eventually(h.tb, carrierLimit, "carrier in the container", func() bool {
		return strings.Contains(in.Run("ip", "-o", "link", "show", name), "LOWER_UP")
	})
}

// requireEnd waits until the daemon exits by itself, with an error and the
// given reason in its log.
func (d *daemon) requireEnd(says string) {
	d.tb.Helper()
	eventually(d.tb, containerLimit, "end of the daemon", d.gone)
	d.ended = true
	if d.err == nil || !strings.Contains(d.log.String(), says) {
		d.tb.Errorf("the daemon ended: %v, want its log to say %q\n%s", d.err, says, d.log)
	}
}
