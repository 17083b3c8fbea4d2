package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/dhcp"
)

// dhcp6Clients are DHCPv6 clients: commands that add the leased address to an interface, with a prefix length of 128.
var dhcp6Clients = []struct {
	name    string
	command func(p dhcp.Place, dev string) []string
}{{"dhclient", dhcp.DhclientIPv6}, {"networkd", func(p dhcp.Place, dev string) []string {
	return dhcp.Networkd(p, dev, "DHCP=ipv6\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=yes\n")
}}}

// TestIPv6Configuration: guests behind the bridge of one host configure themselves by router advertisements (RFC 4862)
// and by DHCPv6, from a server on the ib0 of another host or behind it. The DHCPv6 messages arrive as they were sent.
func TestIPv6Configuration(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, clients, sides := guestsAndServers(t, len(dhcp6Clients))
	for j, side := range sides {
		t.Run([]string{"plain", "bridged"}[j], func(t *testing.T) {
			const filter = "udp port 546 or udp port 547"
			here := a.Capture("br0", filter, filepath.Join(t.TempDir(), "here.pcap"))
			there := side.Capture(side.dev, filter, filepath.Join(t.TempDir(), "there.pcap"))
			leases := netip.MustParsePrefix(fmt.Sprintf("fd44::%d:0/112", 6+j))
			inBackground(t, side.Namespace, dhcp.DnsmasqIPv6(dhcpPlace(t), side.dev, fmt.Sprintf("fd44::%d", 6+j)))
			for k, client := range dhcp6Clients {
				eventually(t, repairLimit, "a link-local address", func() bool { // dhclient does not wait for one
					return validIP6(clients[k], "link", 64).IsValid()
				})
				inBackground(t, clients[k], client.command(dhcpPlace(t), nstest.Dev))
			}
			for k, client := range dhcp6Clients {
				for _, bits := range []int{64, 128} {
					start := time.Now()
					var addr netip.Addr
					eventually(t, 3*repairLimit, fmt.Sprintf("%s has an address of prefix length %d", client.name, bits), func() bool {
						addr = validIP6(clients[k], "global", bits)
						return addr.IsValid()
					})
					t.Logf("%s: %v after %v", client.name, addr, time.Since(start).Round(time.Millisecond))
					if leases.Contains(addr) != (bits == 128) {
						t.Errorf("%v is not of the leases, %v", addr, leases)
					}
					side.Run("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "2", addr.String())
					clients[k].Run("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "2", "-I", addr.String(), side.ip6())
				}
			}
			here.Stop()
			there.Stop()
			requireArrived(t, "547", there.Path, here.Path)
			requireArrived(t, "546", here.Path, there.Path)
		})
		for _, ns := range clients {
			ns.Run("ip", "-6", "address", "flush", "dev", nstest.Dev, "scope", "global")
		}
	}
}

// validIP6 returns an address of a scope with a prefix length, once it is no longer tentative.
func validIP6(ns *nstest.Namespace, scope string, bits int) netip.Addr {
	out := ns.Run("ip", "-6", "-o", "address", "show", "dev", nstest.Dev, "scope", scope, "-tentative")
	for f := range strings.FieldsSeq(out) {
		if p, err := netip.ParsePrefix(f); err == nil && p.Bits() == bits {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// requireArrived compares the datagrams of two captures to a UDP port: what has arrived was sent, and its checksum is right.
func requireArrived(t *testing.T, port, arrivedPath, sentPath string) {
	t.Helper()
	datagrams := func(path string) (payloads, wrong []string) {
		cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", path, "-Y", "udp.dstport == "+port, "-o", "udp.check_checksum:TRUE",
			"-T", "fields", "-e", "udp.checksum.status", "-e", "udp.payload")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			status, payload, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if payloads = append(payloads, payload); status != "1" {
				wrong = append(wrong, payload)
			}
		}
		return payloads, wrong
	}
	arrived, wrong := datagrams(arrivedPath)
	sent, _ := datagrams(sentPath) // the kernel fills in checksums late
	if len(arrived) < len(dhcp6Clients) || len(wrong) > 0 {
		t.Errorf("%d datagrams to port %s, wrong checksums in %v", len(arrived), port, wrong)
	}
	for _, payload := range arrived {
		if !slices.Contains(sent, payload) {
			t.Errorf("%s has arrived at port %s, and was not sent", payload, port)
		}
	}
}
