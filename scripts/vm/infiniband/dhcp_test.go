package infiniband

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ipoibd/scripts/dhcp"
	"ipoibd/scripts/vm/guest"
)

var dhcpPrograms = []string{"tcpdump", "dnsmasq", "kea-dhcp4", "/lib/systemd/systemd-networkd"}

// dhcpPlace makes a folder of a guest for a DHCP program.
func dhcpPlace(g *guest.Guest, program string) dhcp.Place {
	dir := "/tmp/" + program
	g.Run("mkdir", dir)
	return dhcp.Place{Dir: dir, Write: func(path, text string) { g.Put(path, 0o755, []byte(text)) }}
}

// requireDHCP requires that DHCP works across the daemon and the kernel's IPoIB in both directions: a client behind the
// daemon's bridge gets an address of a server on the kernel's ib0, and a client on the kernel's ib0 one of a server behind
// the bridge. The requests of the former have the form of RFC 4390 on the wire. Apart from that, each message arrives as it
// was sent.
func (p *pair) requireDHCP(t *testing.T, _ network) {
	host, peer := p.guests[ours], p.guests[theirs]
	client, server := []string{"ip", "netns", "exec", "n0"}, []string{"ip", "netns", "exec", "n1"}

	t.Run("dnsmasq on the kernel's", func(t *testing.T) {
		const leased = "10.44.0.80"
		near, far := watch(t, host, client, "eth0"), watch(t, peer, nil, "ib0")
		host.Run("ip", "-n", "n0", "-4", "addr", "flush", "dev", "eth0")
		serve := start(t, peer, nil, dhcp.Dnsmasq(dhcpPlace(peer, "dnsmasq"), "ib0", 80, 80))
		lease := start(t, host, client, dhcp.Udhcpc(dhcpPlace(host, "udhcpc"), "eth0"))
		p.requireLease(t, host, []string{"-n", "n0"}, "eth0", leased)
		peer.Run("ping", "-n", "-q", "-c", "5", "-i", "0.1", "-W", "10", leased)
		sent, received := near.stop(t), far.stop(t)
		stop(lease, serve)
		mac, err := net.ParseMAC(strings.TrimSpace(host.Run("ip", "netns", "exec", "n0", "cat", "/sys/class/net/eth0/address")))
		if err != nil {
			t.Fatal(err)
		}
		requireArrived(t, sent, received, dhcp.Request, func(m []byte) { // RFC 4390 section 2.1
			m[1], m[2] = 32, 0
			m[10] |= 0x80
			clear(m[28:44])
		})
		requireArrived(t, received, sent, dhcp.Reply, func(m []byte) {
			m[1], m[2] = 1, 6
			copy(m[28:34], mac)
		})
	})
	t.Run("kea behind the bridge", func(t *testing.T) {
		const leased = "10.44.0.60"
		near, far := watch(t, host, server, "eth0"), watch(t, peer, nil, "ib0")
		peer.Run("ip", "-4", "addr", "flush", "dev", "ib0")
		serve := start(t, host, server, dhcp.Kea(dhcpPlace(host, "kea"), "eth0", 60, 60))
		peer.Run("sh", "-ec", "echo systemd-network:x:998:998::/:/bin/false >>/etc/passwd; echo systemd-network:x:998: >>/etc/group; "+
			"echo 0123456789abcdef0123456789abcdef >/etc/machine-id")
		lease := start(t, peer, nil, dhcp.Networkd(dhcpPlace(peer, "networkd"), "ib0", dhcp.NetworkdIPv4))
		p.requireLease(t, peer, nil, "ib0", leased)
		host.Run("ip", "netns", "exec", "n1", "ping", "-n", "-q", "-c", "5", "-i", "0.1", "-W", "10", leased)
		sent, received := far.stop(t), near.stop(t)
		stop(lease, serve)
		unchanged := func([]byte) {}
		requireArrived(t, sent, received, dhcp.Request, unchanged)
		requireArrived(t, received, sent, dhcp.Reply, unchanged)
	})
}

// start starts a command of a guest behind a prefix that enters a network namespace. If the test fails, it shows what that
// has written.
func start(t *testing.T, g *guest.Guest, prefix, command []string) *guest.Process {
	t.Helper()
	args := append(append([]string(nil), prefix...), command...)
	p := g.Start(args[0], args[1:]...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%q:\n%s%s", args, p.Stdout(), p.Stderr())
		}
	})
	return p
}

func stop(processes ...*guest.Process) {
	for _, p := range processes {
		p.Signal(syscall.SIGTERM)
		p.Wait(carrierLimit)
	}
}

// requireLease waits until a netdev has an address.
func (p *pair) requireLease(t *testing.T, g *guest.Guest, namespace []string, dev, addr string) {
	t.Helper()
	show := append(append([]string(nil), namespace...), "-4", "-o", "addr", "show", "dev", dev)
	took := eventually(t, carrierLimit, "it has "+addr, func() bool { return strings.Contains(g.Run("ip", show...), addr+"/") })
	t.Logf("%s after %v", addr, took)
}

// watcher captures the DHCP messages at a netdev of a guest.
type watcher struct{ *guest.Process }

func watch(t *testing.T, g *guest.Guest, prefix []string, dev string) watcher {
	t.Helper()
	w := watcher{start(t, g, prefix, []string{"tcpdump", "--immediate-mode", "-Z", "root", "-n", "-U", "-s", "0", "-w", "-", "-i", dev, "udp port 67 or udp port 68"})}
	eventually(t, carrierLimit, "tcpdump captures", func() bool { return strings.Contains(w.Stderr(), "listening on") })
	return w
}

// stop returns the file of the capture.
func (w watcher) stop(t *testing.T) string {
	t.Helper()
	w.Signal(syscall.SIGINT)
	w.Wait(carrierLimit)
	file := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(file, []byte(w.Stdout()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// requireArrived requires that the messages with an op arrived as they were sent, but for a change.
func requireArrived(t *testing.T, sentFile, receivedFile, op string, change func(message []byte)) {
	t.Helper()
	sent, received := dhcp.Messages(t, sentFile, op), dhcp.Messages(t, receivedFile, op)
	if len(received) < 2 {
		t.Errorf("%d messages with op %s arrived, want two or more", len(received), op)
	}
	for id, got := range received {
		want, ok := sent[id]
		if !ok {
			t.Errorf("message %s was never sent", id)
			continue
		}
		change(want.Payload)
		if !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("message %s arrived as\n%x, want\n%x", id, got.Payload, want.Payload)
		}
		if !got.ChecksumRight {
			t.Errorf("message %s: wrong checksum", id)
		}
	}
	t.Logf("%d messages with op %s", len(received), op)
}
