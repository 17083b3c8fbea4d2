package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/dhcp"
)

// poolSize is how many addresses a server has for its clients.
const poolSize = 10

var dhcpServers = []struct {
	name    string
	first   int
	command dhcp.Server
}{{"kea", 60, dhcp.Kea}, {"dhcpd", 70, dhcp.Dhcpd}, {"dnsmasq", 80, dhcp.Dnsmasq}}

// dhcpClients are DHCP clients: commands that configure an interface.
var dhcpClients = []struct {
	name    string
	command func(p dhcp.Place, dev string) []string
}{{"dhclient", dhcp.Dhclient}, {"udhcpc", dhcp.Udhcpc}, {"networkd", func(p dhcp.Place, dev string) []string {
	return dhcp.Networkd(p, dev, dhcp.NetworkdIPv4)
}}}

// dhcpPlace returns a new folder for a DHCP program.
func dhcpPlace(t *testing.T) dhcp.Place {
	t.Helper()
	return dhcp.Place{Dir: shortDir(t), Write: func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil { //nolint:gosec // a script
			t.Fatal(err)
		}
	}}
}

// TestDHCP: each client, behind the bridge of one host, gets an address from each server, on the ib0 of another host or
// behind it. What the servers receive differs from what the clients sent only in the broadcast flag and the checksum.
func TestDHCP(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, clients, sides := guestsAndServers(t, len(dhcpClients))
	for _, server := range dhcpServers {
		for j, side := range sides {
			t.Run(server.name+"/"+[]string{"plain", "bridged"}[j], func(t *testing.T) {
				first := server.first + 160*j
				sent := a.Capture("br0", "udp port 67", filepath.Join(t.TempDir(), "sent.pcap"))
				received := side.Capture(side.dev, "udp port 67", filepath.Join(t.TempDir(), "received.pcap"))
				inBackground(t, side.Namespace, server.command(dhcpPlace(t), side.dev, first, first+poolSize-1))
				for k, client := range dhcpClients {
					inBackground(t, clients[k], client.command(dhcpPlace(t), nstest.Dev))
				}
				for k, client := range dhcpClients {
					start := time.Now()
					addr := ""
					eventually(t, 3*repairLimit, client.name+" gets an address", func() bool {
						addr = leased(clients[k], first)
						return addr != ""
					})
					t.Logf("%s has %s after %v", client.name, addr, time.Since(start).Round(time.Millisecond))
					side.Run("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "2", addr)
					clients[k].Run("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "2", side.ip4())
				}
				received.Stop() // first, so that the other capture has all that this one has
				sent.Stop()
				requireSameRequests(t, sent.Path, received.Path)
			})
			for _, ns := range clients {
				ns.Run("ip", "address", "flush", "dev", nstest.Dev)
			}
		}
	}
}

// guestsAndServers returns a host with a bridge, namespaces of clients behind it, and places for a server: the ib0 of
// another host, and behind that of a third one.
func guestsAndServers(t *testing.T, n int) (a *host, clients []*nstest.Namespace, sides []station) {
	t.Helper()
	hosts := newHosts(t, 3)
	a, b, c := hosts[0], hosts[1], hosts[2]
	a.bridged(0)
	b.join()
	behind := c.bridged(1)[1]
	for i := range n {
		client, port := nstest.New(t), fmt.Sprintf("client%d", i)
		nstest.Veth(t, client, nstest.Dev, a.Namespace, port, a.iface().MTU)
		a.Run("ip", "link", "set", port, "master", "br0")
		clients = append(clients, client)
	}
	return a, clients, []station{{b.Namespace, ifName, 2, b}, behind}
}

func inBackground(t *testing.T, ns *nstest.Namespace, command []string) {
	t.Helper()
	(&host{Namespace: ns, tb: t}).background(command[0], command[1:]...)
}

// leased returns the address of a client, if it is in the pool of a server.
func leased(ns *nstest.Namespace, first int) string {
	for f := range strings.FieldsSeq(ns.Run("ip", "-4", "-o", "address", "show", "dev", nstest.Dev)) {
		var n int
		if _, err := fmt.Sscanf(f, "10.44.0.%d/24", &n); err == nil && n >= first && n < first+poolSize {
			return fmt.Sprintf("10.44.0.%d", n)
		}
	}
	return ""
}

// requireSameRequests compares the requests of two captures by transaction and type.
func requireSameRequests(t *testing.T, sentPath, receivedPath string) {
	t.Helper()
	sent, received := dhcp.Messages(t, sentPath, dhcp.Request), dhcp.Messages(t, receivedPath, dhcp.Request)
	if len(received) < 2*len(dhcpClients) {
		t.Errorf("only %d requests", len(received))
	}
	for id, got := range received {
		want, ok := sent[id]
		if !ok {
			t.Errorf("request %s was never sent", id)
			continue
		}
		if !got.ChecksumRight {
			t.Errorf("request %s: wrong checksum", id)
		}
		if got.CIAddr == "0.0.0.0" && !got.BroadcastWanted {
			t.Errorf("request %s wants no broadcast", id)
		}
		clear(want.Payload[10:12]) // the flags
		clear(got.Payload[10:12])
		if !bytes.Equal(want.Payload, got.Payload) {
			t.Errorf("request %s:\n%x was sent,\n%x was received", id, want.Payload, got.Payload)
		}
	}
}
