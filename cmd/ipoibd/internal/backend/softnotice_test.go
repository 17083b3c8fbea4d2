package backend

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/docs"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// openEngine opens a software HCA in a namespace. The buffer is the size of its send buffer in
// bytes; 0 means the default.
func openEngine(t *testing.T, ns *nstest.Namespace, buffer int) *engine {
	t.Helper()
	var transport *udp.Transport
	var err error
	ns.Do(func() { transport, err = udp.Open(udp.Config{Netdev: nstest.Dev, SendBuf: buffer}) })
	must(t, err)
	dev, err := soft.Open(soft.Config{Name: "soft", Transport: transport})
	must(t, err)
	return &engine{dev, []*udp.Transport{transport}}
}

// A send buffer that is too small is logged once, with the sysctl that limits it, no
// matter how often the device is opened. The kernel grants 1 GiB at most. The device has
// the counters that symptoms are derived from.
func TestSmallSendBufferIsLoggedOnce(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, _ := nstest.Pair(t, 1500)
	var log strings.Builder
	w := watch{log: slog.New(slog.NewTextHandler(&log, nil)), duplicates: duplicates{fd: -1}}
	defer w.duplicates.close()
	for _, buffer := range []int{1 << 20, 3 << 29, 3 << 29} {
		e := openEngine(t, a, buffer)
		notice := w.look(time.Now(), e, nstest.Dev).Text()
		for _, name := range []string{
			docs.DeviceTxPackets, docs.DeviceRxPackets, docs.DeviceWireTxDropForbidden, docs.DeviceNATSuspected,
		} {
			if !slices.ContainsFunc(e.dev.Counters(), func(c hca.Counter) bool { return c.Name == name }) {
				t.Errorf("the device has no counter %s", name)
			}
		}
		must(t, e.dev.Close())
		if text := w.look(time.Now(), e, nstest.Dev).Text(); text != "" {
			t.Errorf("a device that is closed: %s", text)
		}
		small := buffer > 1<<30
		if n := strings.Count(log.String(), "net.core.wmem_max"); (n == 1) != small || strings.Contains(notice, "net.core.wmem_max") != small {
			t.Errorf("with %d bytes requested: logged %d times, notice %q:\n%s", buffer, n, notice, log.String())
		}
	}
}

// Another host with an IPv4 address of the underlay is named once it sends ARP with it, and for
// a while. The host's own ARP, and that of a host with another address, is no conflict.
func TestDuplicateAddress(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	d := duplicates{fd: -1}
	defer d.close()
	a.Do(func() { d.open(nstest.Dev) })
	ours := []netip.Addr{netip.MustParseAddr(nstest.IPv4(0))}
	look := func(now time.Time) (text string) {
		a.Do(func() { text = d.look(now, ours) })
		return text
	}
	absent := 70 // of another host each time, for which the kernel asks at once
	arp := func(ns *nstest.Namespace, from string) {
		absent++
		_ = ns.Command("ping", "-c", "1", "-W", "0.3", "-I", from, nstest.IPv4(absent)).Run()
	}
	now := time.Now()
	arp(a, nstest.IPv4(0))
	arp(b, nstest.IPv4(1))
	if text := look(now); text != "" {
		t.Errorf("without a conflict: %s", text)
	}
	b.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
	arp(b, nstest.IPv4(0))
	mac := strings.Fields(b.Run("ip", "-br", "link", "show", nstest.Dev))[2]
	want := mac + " has the underlay address " + nstest.IPv4(0) + " as well"
	for _, c := range []struct {
		after time.Duration
		want  string
	}{{0, want}, {duplicateFor - 1, want}, {duplicateFor, ""}} {
		if text := look(now.Add(c.after)); text != c.want {
			t.Errorf("%s after: %q, want %q", c.after, text, c.want)
		}
	}
}
