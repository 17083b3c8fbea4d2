package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// TestReceiveForManyStations compares what the daemon spends on a received frame with one station behind its ib0, and with a
// thousand. It alternates between two hosts, and sends frames of a thousand flows to each.
func TestReceiveForManyStations(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const flows, burst = 1000, 500 // a queue of ib0 holds 1024 frames
	frames, rounds := form(20_000, 300_000), form(5, 10)
	hosts := newHosts(t, 3)
	sender := hosts[2]
	sender.join(slowPath)
	own := sender.mac()
	port := newPacketSocketOn(sender, ifName)
	var sent [2][][]byte
	for i, h := range hosts[:2] {
		guest := h.bridged(1)[1]
		if err := (station{sender.Namespace, ifName, 3, sender}).ping(guest.ip4(), 1); err != nil {
			t.Fatal(err)
		}
		to := sender.neighbour(guest.ip4())
		known := []int{1, flows}[i]
		teach(t, h, guest, known)
		for n := range flows {
			packet := ipv4(sender.ip4(), taught(n%known).String())
			binary.BigEndian.PutUint16(packet[20:], uint16(2000+n)) // the source port
			packet[25] = byte(len(packet) - 20)                     // the length of UDP
			sent[i] = append(sent[i], ether(to, own, ipoib.EtherTypeIPv4, packet))
		}
	}
	var spent [2][]time.Duration
	for range rounds {
		for i, h := range hosts[:2] {
			delivered, used := h.book().of("rx_delivered"), h.cpuExact()
			read := sender.framesRead()
			for n := range frames {
				port.send(sent[i][n%flows])
				if n%burst == burst-1 {
					eventually(t, repairLimit, "the daemon reads them", func() bool { return sender.framesRead() > read+n })
				}
			}
			var arrived uint64
			eventually(t, repairLimit, "the frames arrive", func() bool {
				arrived = h.book().of("rx_delivered") - delivered
				return arrived >= uint64(frames)*99/100
			})
			spent[i] = append(spent[i], (h.cpuExact()-used)/time.Duration(arrived))
		}
	}
	one, many := slices.Min(spent[0]), slices.Min(spent[1]) // what other work on the machine has disturbed least
	t.Logf("%v for a frame with one station, %v with %d: %.3f", one, many, flows, float64(many)/float64(one))
	if many > one+one/2 { // ten times the 5 % that it may cost
		t.Errorf("%v for a frame with one station, %v with %d", one, many, flows)
	}
}

// taught returns the address of a station that teach has made known.
func taught(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 45, byte(n >> 8), byte(n)}) }

// teach makes stations known to the daemon of a host: MACs behind the port of a guest, which takes none of their frames.
func teach(t *testing.T, h *host, guest station, n int) {
	t.Helper()
	port := newPacketSocketOn(&host{Namespace: guest.Namespace, tb: t}, guest.dev)
	before := len(h.iface().Stations)
	eventually(t, repairLimit, "the stations are known", func() bool {
		for i := range n {
			m := ipoib.MAC{2, 9, 0, 0, byte(i >> 8), byte(i)}
			arp := ipoib.EtherARP{Op: ipoib.ARPRequest, SHA: m, SPA: taught(i), TPA: taught(i)}
			port.send(ether(ipoib.Broadcast, m, ipoib.EtherTypeARP, arp.Append(nil)))
			if i%100 == 99 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		return len(h.iface().Stations) >= before+n
	})
}

// neighbour returns the MAC of a neighbour.
func (h *host) neighbour(ip string) ipoib.MAC {
	h.tb.Helper()
	f := strings.Fields(h.Run("ip", "neigh", "show", ip, "dev", ifName))
	m, err := net.ParseMAC(f[slices.Index(f, "lladdr")+1])
	if err != nil {
		h.tb.Fatalf("neighbour %s: %q", ip, f)
	}
	return ipoib.MAC(m)
}

func (h *host) mac() ipoib.MAC {
	h.tb.Helper()
	m, err := net.ParseMAC(station{h.Namespace, ifName, 0, h}.mac())
	if err != nil {
		h.tb.Fatal(err)
	}
	return ipoib.MAC(m)
}

// cpuExact is cpu to the nanosecond, without threads that have ended.
func (h *host) cpuExact() (sum time.Duration) {
	h.tb.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.tb.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil { // the thread has ended
			continue
		}
		used, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(used, 10, 64)
		if err != nil {
			h.tb.Fatalf("%s: %q", f, text)
		}
		sum += time.Duration(n)
	}
	return sum
}
