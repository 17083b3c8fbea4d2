package backend

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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
	w := watch{log: slog.New(slog.NewTextHandler(&log, nil)), duplicates: duplicates{fd: -1}, said: complaints{}}
	defer w.duplicates.close()
	for _, buffer := range []int{1 << 20, 3 << 29, 3 << 29} {
		e := openEngine(t, a, buffer)
		notice := w.look(time.Now(), e, nstest.Dev).Text()
		for _, name := range []string{counterSent, counterHeard, counterRefused, counterNAT} {
			if !slices.ContainsFunc(e.Counters(), func(c hca.Counter) bool { return c.Name == name }) {
				t.Errorf("the device has no counter %s", name)
			}
		}
		must(t, e.Close())
		if text := w.look(time.Now(), e, nstest.Dev).Text(); text != "" {
			t.Errorf("a device that is closed: %s", text)
		}
		small := buffer > 1<<30
		if n := strings.Count(log.String(), "net.core.wmem_max"); (n == 1) != small || strings.Contains(notice, "net.core.wmem_max") != small {
			t.Errorf("with %d bytes requested: logged %d times, notice %q:\n%s", buffer, n, notice, log.String())
		}
	}
}

// A device that sends and never hears a peer is silent. One whose firewall rejects what it
// sends is refused, until the firewall lets it pass.
func TestSymptoms(t *testing.T) {
	type look struct {
		after                time.Duration
		sent, heard, refused uint64
		want                 symptoms
	}
	for name, looks := range map[string][]look{
		"nothing sent":         {{0, 0, 0, 0, symptoms{}}, {time.Hour, 0, 0, 0, symptoms{}}},
		"no peer":              {{time.Hour, 4, 0, 0, symptoms{}}, {silentAfter - 1, 9, 0, 0, symptoms{}}, {1, 9, 0, 0, symptoms{silent: true}}, {1, 9, 1, 0, symptoms{}}},
		"a peer that has left": {{0, 4, 1, 0, symptoms{}}, {time.Hour, 9, 1, 0, symptoms{}}},
		"firewall":             {{0, 1, 1, 0, symptoms{}}, {1, 1, 1, 2, symptoms{refused: true}}, {refusedFor - 1, 1, 1, 2, symptoms{refused: true}}, {1, 1, 1, 2, symptoms{}}, {1, 1, 1, 3, symptoms{refused: true}}},
		"firewall, no peer":    {{0, 0, 0, 1, symptoms{refused: true}}, {silentAfter, 0, 0, 2, symptoms{silent: true, refused: true}}},
	} {
		var tr traffic
		now := time.Now()
		for i, l := range looks {
			now = now.Add(l.after)
			if got := tr.look(now, []hca.Counter{{Name: counterSent, Value: l.sent}, {Name: counterHeard, Value: l.heard}, {Name: counterRefused, Value: l.refused}}); got != l.want {
				t.Errorf("%s, look %d: %+v, want %+v", name, i, got, l.want)
			}
		}
	}
}

// A host that forges the signs of a NAT, with different addresses each second, causes one log
// message a minute. The notice ends soon after the last of them.
func TestForgedSignsOfNATAreBounded(t *testing.T) {
	var log strings.Builder
	w := watch{log: slog.New(slog.NewTextHandler(&log, nil)), said: complaints{}}
	now, sender := time.Now(), netip.MustParseAddr("10.1.1.1")
	for i := range uint64(180) {
		if !w.traffic.look(now, []hca.Counter{{Name: counterNAT, Value: i + 1}}).nat {
			t.Fatalf("no sign of a NAT after %d seconds", i)
		}
		if text := w.suspectNAT(now, true, netip.MustParseAddr("192.0.2.2"), sender); !strings.Contains(text, sender.String()) || !strings.Contains(text, "or they are forged") {
			t.Errorf("notice %q", text)
		}
		now, sender = now.Add(time.Second), sender.Next()
	}
	if n := strings.Count(log.String(), "or they are forged"); n != 3 {
		t.Errorf("logged %d times in 3 minutes, want 3:\n%s", n, log.String())
	}
	if w.traffic.look(now.Add(natFor), []hca.Counter{{Name: counterNAT, Value: 180}}).nat {
		t.Error("the notice does not end")
	}
}

// That trains are refused is logged once, and remains as a notice with the reason.
func TestRefusedTrainsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	w := watch{log: slog.New(slog.NewTextHandler(&log, nil)), said: complaints{}}
	now := time.Now()
	if text := w.refusedTrains(now, nil); text != "" {
		t.Errorf("notice %q without a refusal", text)
	}
	for range 10 {
		if text := w.refusedTrains(now, syscall.EIO); !strings.Contains(text, "UDP_SEGMENT: "+syscall.EIO.Error()) {
			t.Errorf("notice %q", text)
		}
		now = now.Add(time.Hour)
	}
	if n := strings.Count(log.String(), "UDP_SEGMENT"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
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
