package e2e

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// dhcpServer is a DHCP server, with the command that serves ten addresses of 10.44.0.0/24 from a first one on.
type dhcpServer struct {
	name    string
	first   int
	command func(t *testing.T, dir, dev string, first int) []string
}

var dhcpServers = []dhcpServer{
	{"kea", 60, func(t *testing.T, dir, dev string, first int) []string {
		conf := writeIn(t, dir, "kea.json", fmt.Sprintf(`{"Dhcp4": {"interfaces-config": {"interfaces": [%q]}, "authoritative": true,
			"lease-database": {"type": "memfile", "persist": false}, "valid-lifetime": 3600,
			"subnet4": [{"subnet": "10.44.0.0/24", "pools": [{"pool": "10.44.0.%d - 10.44.0.%d"}]}],
			"loggers": [{"name": "kea-dhcp4", "severity": "INFO", "output_options": [{"output": "stderr"}]}]}}`, dev, first, first+9))
		return []string{"env", "KEA_LOCKFILE_DIR=none", "KEA_PIDFILE_DIR=" + dir, "kea-dhcp4", "-c", conf}
	}},
	{"dhcpd", 70, func(t *testing.T, dir, dev string, first int) []string {
		conf := writeIn(t, dir, "dhcpd.conf", fmt.Sprintf("authoritative; ping-check false; default-lease-time 3600;\n"+
			"subnet 10.44.0.0 netmask 255.255.255.0 { range 10.44.0.%d 10.44.0.%d; }\n", first, first+9))
		leases := writeIn(t, dir, "dhcpd.leases", "")
		return []string{"dhcpd", "-f", "-d", "-4", "--no-pid", "-user", "root", "-group", "root", "-cf", conf, "-lf", leases, dev}
	}},
	{"dnsmasq", 80, func(_ *testing.T, dir, dev string, first int) []string {
		return []string{
			"dnsmasq", "--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--port=0", "--user=root",
			"--interface=" + dev, "--bind-interfaces", "--no-ping", "--dhcp-authoritative", "--pid-file=",
			"--dhcp-leasefile=" + filepath.Join(dir, "dnsmasq.leases"),
			fmt.Sprintf("--dhcp-range=10.44.0.%d,10.44.0.%d,255.255.255.0,1h", first, first+9),
		}
	}},
}

// dhcpClients are DHCP clients: commands that configure an interface.
var dhcpClients = []struct {
	name    string
	command func(t *testing.T, dir string) []string
}{
	{"dhclient", func(t *testing.T, dir string) []string {
		script := writeIn(t, dir, "script", "#!/bin/sh\ncase $reason in BOUND|RENEW|REBIND|REBOOT) ip address replace $new_ip_address/24 dev $interface;; esac\n")
		conf := writeIn(t, dir, "dhclient.conf", "timeout 20; retry 1; initial-interval 1;\n")
		return []string{"dhclient", "-d", "-4", "-cf", conf, "-sf", script, "-lf", filepath.Join(dir, "leases"), "-pf", filepath.Join(dir, "pid"), nstest.Dev}
	}},
	{"udhcpc", func(t *testing.T, dir string) []string {
		script := writeIn(t, dir, "script", "#!/bin/sh\ncase $1 in bound|renew) ip address replace $ip/24 dev $interface;; esac\n")
		return []string{"udhcpc", "-f", "-t", "20", "-T", "1", "-i", nstest.Dev, "-s", script}
	}},
	{"networkd", func(t *testing.T, dir string) []string {
		return networkd(t, dir, "DHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n")
	}},
}

// networkd returns the command of systemd-networkd with the settings of its only network. It waits for udev unless
// /sys is read-only, and keeps its state in /run/systemd.
func networkd(t *testing.T, dir, settings string) []string {
	t.Helper()
	network := writeIn(t, dir, "50-all.network", "[Match]\nName="+nstest.Dev+"\n[Network]\n"+settings)
	return []string{
		"unshare", "--mount", "sh", "-ec", "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/network /run/systemd/netif; " +
			"cp " + network + " /run/systemd/network; chown -R systemd-network: /run/systemd/netif; " +
			"mount -t tmpfs tmpfs /etc/systemd/network 2>/dev/null || :; mount -o remount,ro,bind /sys; exec /lib/systemd/systemd-networkd",
	}
}

func writeIn(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	return path
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
				inBackground(t, side.Namespace, server.command(t, shortDir(t), side.dev, first))
				for k, client := range dhcpClients {
					inBackground(t, clients[k], client.command(t, shortDir(t)))
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

// leased returns the address of a client, if it is among the ten from a first one on.
func leased(ns *nstest.Namespace, first int) string {
	for f := range strings.FieldsSeq(ns.Run("ip", "-4", "-o", "address", "show", "dev", nstest.Dev)) {
		var n int
		if _, err := fmt.Sscanf(f, "10.44.0.%d/24", &n); err == nil && n >= first && n < first+10 {
			return fmt.Sprintf("10.44.0.%d", n)
		}
	}
	return ""
}

// dhcpMessage is a request as tshark shows it.
type dhcpMessage struct{ payload, ciaddr, broadcast, checksum string }

// requireSameRequests compares the requests of two captures by transaction and type.
func requireSameRequests(t *testing.T, sentPath, receivedPath string) {
	t.Helper()
	sent, received := dhcpRequests(t, sentPath), dhcpRequests(t, receivedPath)
	if len(received) < 2*len(dhcpClients) {
		t.Errorf("only %d requests", len(received))
	}
	for id, got := range received {
		want, ok := sent[id]
		if !ok {
			t.Errorf("request %s was never sent", id)
			continue
		}
		if got.checksum != "1" { // good
			t.Errorf("request %s: status of the checksum %s", id, got.checksum)
		}
		if got.ciaddr == "0.0.0.0" && got.broadcast != "1" && got.broadcast != "True" {
			t.Errorf("request %s wants no broadcast: %q", id, got.broadcast)
		}
		if a, b := withoutFlag(t, want.payload), withoutFlag(t, got.payload); a != b {
			t.Errorf("request %s:\n%s was sent,\n%s was received", id, a, b)
		}
	}
}

// withoutFlag clears the flags of a DHCP message.
func withoutFlag(t *testing.T, payload string) string {
	t.Helper()
	b, err := hex.DecodeString(payload)
	if err != nil || len(b) < 12 {
		t.Fatalf("payload %q: %v", payload, err)
	}
	clear(b[10:12])
	return hex.EncodeToString(b)
}

// dhcpRequests returns the requests of a capture by transaction, type and seconds.
func dhcpRequests(t *testing.T, path string) map[string]dhcpMessage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", path, "-Y", "dhcp.type == 1", "-o", "udp.check_checksum:TRUE", "-T", "fields",
		"-e", "dhcp.id", "-e", "dhcp.option.dhcp", "-e", "dhcp.secs", "-e", "udp.payload", "-e", "dhcp.ip.client", "-e", "dhcp.flags.bc", "-e", "udp.checksum.status")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]dhcpMessage{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 7 {
			t.Fatalf("tshark printed %q", line)
		}
		found[strings.Join(f[:3], " ")] = dhcpMessage{f[3], f[4], f[5], f[6]}
	}
	return found
}
