package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// recipes returns the code blocks of a language in docs/security.md.
func recipes(t *testing.T, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for rest := string(text); ; {
		_, after, found := strings.Cut(rest, "\n```"+language+"\n")
		if !found {
			return blocks
		}
		var block string
		block, rest, _ = strings.Cut(after, "\n```\n")
		blocks = append(blocks, block)
	}
}

// An ordinary user on a known peer can inject packets into ib0 of another host. The rules
// in docs/security.md prevent that over IPv4 and IPv6, and drop packets from outside of the hosts'
// network. The traffic of the daemons passes.
func TestSecurityRulesLetOnlyTheDaemonSend(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if ids, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.HasSuffix(strings.TrimSpace(string(ids)), " 4294967295") {
		t.Skipf("not root, so there is no second user to test with: %v, %s", err, ids)
	}
	a, b := twoJoined(t)
	service := listen(t, a)
	const outside = "198.51.100.9"
	b.Run("ip", "addr", "add", outside+"/32", "dev", nstest.Dev)
	a.Run("ip", "route", "add", outside+"/32", "dev", nstest.Dev)

	ordinary := strconv.Itoa(stranger)
	user, foreign := attempt{b, a, ordinary, nstest.IPv4(1)}, attempt{b, a, "0", outside}
	for _, at := range []attempt{user, foreign} {
		if out, err := at.inject(service.port); err != nil || !service.heard(repairLimit) {
			t.Fatalf("without rules, user %s cannot send from %s: %v\n%s\n%s", at.uid, at.from, err, out, a.describe())
		}
	}
	if out, err := user.sendIPv6(); err != nil {
		t.Fatalf("without rules, user %s cannot send over IPv6: %v\n%s", ordinary, err, out)
	}

	rules := recipes(t, "nft")
	if len(rules) != 1 {
		t.Fatalf("docs/security.md has %d sets of rules", len(rules))
	}
	for _, h := range []*host{a, b} {
		nft := h.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules[0])
		if out, err := nft.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
	}
	for range 3 {
		if out, err := user.inject(service.port); err == nil || !bytes.Contains(out, []byte("PermissionError")) {
			t.Errorf("with the rules, user %s sends over IPv4: %v\n%s", ordinary, err, out)
		}
		if out, err := user.sendIPv6(); err == nil || !bytes.Contains(out, []byte("PermissionError")) {
			t.Errorf("with the rules, user %s sends over IPv6: %v\n%s", ordinary, err, out)
		}
		if out, err := foreign.inject(service.port); err != nil {
			t.Errorf("root cannot send: %v\n%s", err, out)
		}
	}
	if service.heard(time.Second) {
		t.Error("with the rules, a packet was injected")
	}
	pingAll(a, b)
	a.Run("ip", "link", "set", ifName, "down") // starts over, including multicast
	a.Run("ip", "link", "set", ifName, "up")
	a.AddIPv6(ifName, a.ip6()+"/64")
	b.waitReaches(a)
	pingAll(a, b)
}

// A process in a pod whose packets leave with its node's address, as masquerading pod networks do, can inject
// packets into ib0 of another node although that accepts only known peers. The rules that the Kubernetes
// overlays load on each node prevent that, also when they are loaded again. The daemons' traffic passes.
func TestSecurityRulesOfNodesStopPods(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if ids, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.HasSuffix(strings.TrimSpace(string(ids)), " 4294967295") {
		t.Skipf("not root, so there is no second user to test with: %v, %s", err, ids)
	}
	hosts := newHosts(t, 2)
	a, node := hosts[0], hosts[1]
	for i, h := range hosts {
		h.join("--peer", hosts[1-i].underlay().String(), "--known-peers-only", slowPath)
	}
	pingAll(a, node)
	service := listen(t, a)

	const inPod, gateway = "10.244.0.2", "10.244.0.1"
	pod := nstest.New(t)
	node.Run("ip", "link", "add", "pod", "type", "veth", "peer", "name", "eth0", "netns", pod.Path())
	node.Run("ip", "addr", "add", gateway+"/24", "dev", "pod")
	node.Run("ip", "link", "set", "pod", "up")
	node.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	node.nft("table ip pods { chain post { type nat hook postrouting priority srcnat; ip saddr 10.244.0.0/24 oifname " + nstest.Dev + " masquerade; }; }")
	pod.Run("ip", "addr", "add", inPod+"/24", "dev", "eth0")
	pod.Run("ip", "link", "set", "eth0", "up")
	pod.Run("ip", "route", "add", "default", "via", gateway)
	// Masquerading keeps the source port, so the packet arrives as its ICRC has it.
	injection := attempt{&host{Namespace: pod, tb: t, number: node.number}, a, strconv.Itoa(stranger), inPod}
	wire := roce.Path{Src: node.underlay(), Dst: a.underlay(), SrcPort: injected}
	if out, err := injection.injectAs(wire, service.port); err != nil || !service.heard(repairLimit) {
		t.Fatalf("without rules, a pod cannot inject: %v\n%s\n%s", err, out, a.describe())
	}

	rules, err := os.ReadFile("../../docs/kubernetes/daemonset/firewall.nft")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, h := range hosts {
			h.nft(string(rules))
		}
		if out, err := injection.injectAs(wire, service.port); err != nil {
			t.Errorf("the pod: %v\n%s", err, out)
		}
		if service.heard(time.Second) {
			t.Error("with the rules, a packet was injected")
		}
		pingAll(a, node)
	}
}

// attempt is a user's process on one host that sends to another host from an address of
// its own host.
type attempt struct {
	at, to    *host
	uid, from string
}

// injected is the source port of the packets, which their ICRC covers.
const injected = 50123

// inject sends a packet to the QP of ib0, with a datagram for a port on ib0, in the name of
// a host that does not exist.
func (s attempt) inject(port int) ([]byte, error) {
	s.at.tb.Helper()
	return s.injectAs(roce.Path{Src: netip.MustParseAddr(s.from), Dst: s.to.underlay(), SrcPort: injected}, port)
}

// injectAs is inject for a packet that is on the path wire when it arrives.
func (s attempt) injectAs(wire roce.Path, port int) ([]byte, error) {
	s.at.tb.Helper()
	inner := ipv4UDP(roce.Path{Src: netip.MustParseAddr("10.44.0.77"), Dst: netip.MustParseAddr(s.to.ip4()), SrcPort: 7}, []byte("injected"))
	inner[22], inner[23] = byte(port>>8), byte(port)
	binary.BigEndian.PutUint16(inner[10:], hca.IPv4Checksum(inner[:20]))
	p := rightPacket(s.to.qp().QPN, message(ipoib.EtherTypeIPv4, inner))
	return s.send("AF_INET", s.from, wire.Dst.String(), p.encode(wire))
}

// sendIPv6 sends any datagram to the port.
func (s attempt) sendIPv6() ([]byte, error) {
	s.at.tb.Helper()
	return s.send("AF_INET6", nstest.IPv6(s.at.number), nstest.IPv6(s.to.number), []byte("datagram"))
}

func (s attempt) send(family, from, to string, datagram []byte) ([]byte, error) {
	// IP_MTU_DISCOVER (10) to IP_PMTUDISC_DO (2): the packet has DF and no identification.
	script := fmt.Sprintf(`import socket
s = socket.socket(socket.%s, socket.SOCK_DGRAM)
if s.family == socket.AF_INET: s.setsockopt(socket.SOL_IP, 10, 2)
s.bind((%q, %d))
s.sendto(bytes.fromhex(%q), (%q, 4791))`, family, from, injected, hex.EncodeToString(datagram), to)
	return s.at.Command("setpriv", "--reuid", s.uid, "--regid", s.uid, "--clear-groups", "--no-new-privs", "/usr/bin/python3", "-c", script).CombinedOutput()
}

// victim is a service on ib0.
type victim struct {
	conn net.PacketConn
	port int
}

func listen(t *testing.T, h *host) (v victim) {
	t.Helper()
	h.Do(func() {
		conn, err := net.ListenPacket("udp4", h.ip4()+":0")
		if err != nil {
			t.Fatal(err)
		}
		v = victim{conn, conn.LocalAddr().(*net.UDPAddr).Port}
	})
	t.Cleanup(func() { v.conn.Close() })
	return v
}

// heard reports whether a datagram has arrived or arrives within a while.
func (v victim) heard(limit time.Duration) bool {
	if err := v.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return false
	}
	_, _, err := v.conn.ReadFrom(make([]byte, 64))
	return err == nil
}

// The recipe for WireGuard in docs/security.md works unchanged: ib0 has the MTU given there, packets of
// that size pass, and no packet is on the wire in the clear.
func TestSecurityWireGuard(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	blocks := recipes(t, "sh")
	if len(blocks) != 2 {
		t.Fatalf("docs/security.md has %d blocks of commands for WireGuard, want those of the keys and those of the tunnel", len(blocks))
	}
	_, makeKeys, _ := strings.Cut(blocks[0], "\n") // the first line installs the packages, as scripts/deps does
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	keys := []string{strings.TrimSpace(a.shell(makeKeys)), strings.TrimSpace(b.shell(makeKeys))}
	capture := a.capture()
	all := a.Capture(nstest.Dev, "", filepath.Join(a.dir, "all.pcap"))
	for i, h := range hosts {
		commands := strings.ReplaceAll(blocks[1], "KEY_OF_HOST_2", keys[1-i])
		if i == 1 { // "the same with 1 and 2 exchanged"
			commands = strings.NewReplacer("192.0.2.2", "192.0.2.1", "10.99.0.1", "10.99.0.2", "10.99.0.2", "10.99.0.1").Replace(commands)
		}
		tunnel, run, found := strings.Cut(commands, "\nipoibd ")
		if !found {
			t.Fatalf("the last command does not run ipoibd:\n%s", commands)
		}
		t.Logf("host %d:\n%s", i+1, h.shell(tunnel))
		control := filepath.Join(h.dir, "control.sock")
		h.daemon = launch(t, h.Namespace, control, append(strings.Fields(run), "--control", control)...)
		h.Run("ip", "link", "set", ifName, "up")
		h.addAddrs(ifName)
		h.waitCarrier()
	}
	b.waitReaches(a)
	const mtu = 1364
	for _, h := range hosts {
		if got := h.iface().MTU; got != mtu || !strings.Contains(h.Run("ip", "link", "show", ifName), "mtu "+strconv.Itoa(mtu)+" ") {
			t.Errorf("MTU of %s: %d, docs/security.md says %d", ifName, got, mtu)
		}
	}
	pingAll(a, b)
	// -M do forbids fragments, and "feedface" is the pattern to look for on the wire.
	for dst, header := range map[string]int{b.ip4(): 20 + 8, b.ip6(): 40 + 8} {
		for range 5 {
			out, err := a.Command("ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", strconv.Itoa(mtu-header), "-p", "feedface", dst).CombinedOutput()
			if err != nil {
				t.Errorf("packets of %d bytes: %v\n%s\n%s", mtu, err, out, a.describe())
			}
		}
	}
	capture.Stop()
	all.Stop()
	if seen := capture.datagrams(t); len(seen) != 0 {
		t.Errorf("RoCEv2 in the clear from %v", seen)
	}
	wire, err := os.ReadFile(all.Path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(wire, []byte("\xfe\xed\xfa\xce\xfe\xed\xfa\xce")) {
		t.Error("the pings are in the clear on the wire")
	}
	tunnelled := lines(t, tshark, "-n", "-r", all.Path, "-Y", "udp.port == 51820")
	t.Logf("%d packets of WireGuard on the wire, %d bytes in all", len(tunnelled), len(wire))
	if len(tunnelled) < 2*2*5 {
		t.Errorf("only %d WireGuard packets: the pings did not use the tunnel", len(tunnelled))
	}
	if other := lines(t, tshark, "-n", "-r", all.Path, "-Y", "ip && udp.port != 51820 && !icmp && !igmp"); other[0] != "" {
		t.Errorf("packets on the wire other than WireGuard's:\n%s", strings.Join(other, "\n"))
	}
}

// shell runs commands on a host and returns their output. The host gets its own
// directories for WireGuard's keys and for WireGuard's control socket, whose name would be
// the same on each host. Deleting wg0 ends the WireGuard daemon.
func (h *host) shell(commands string) string {
	h.tb.Helper()
	cmd := h.Command("unshare", "--mount", "bash", "-euo", "pipefail", "-c",
		"mount --bind "+h.dir+" /etc/wireguard; mount -t tmpfs tmpfs /run\n"+commands)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	cmd.WaitDelay = time.Second // wireguard-go keeps the pipes open
	h.tb.Cleanup(func() {
		h.Do(func() { _ = exec.Command("ip", "link", "del", "wg0").Run() }) // the context of h.Command has ended with the test
	})
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		h.tb.Fatalf("%s\n%v\n%s%s", commands, err, &out, &failed)
	}
	return out.String()
}
