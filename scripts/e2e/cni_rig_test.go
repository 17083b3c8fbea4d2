package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// ipamPlugins is where Debian's package containernetworking-plugins has them.
const ipamPlugins = "/usr/lib/cni"

// node is a host whose daemon serves only pods.
type node struct {
	*host
	bin string // of the plugin
}

// pod is a namespace that belongs to no daemon, under a path as runtimes give it. As a host, it has the
// address that the IPAM plugin gives it.
type pod struct {
	*host
	node *node
	path string
}

const serving = "lend: true\ndevices:\n  - {name: soft, underlay: " + nstest.Dev + "}\n"

// newNodes creates nodes with a running daemon, a network configuration and the plugin. The pods of
// node i get the addresses 10.44.0.(10 i + 11) and so on.
func newNodes(t *testing.T, n int) (nodes []*node) {
	t.Helper()
	// Files of runtimes stay in the test's own namespace.
	if err := unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	for _, h := range newHosts(t, n) {
		bin := filepath.Join(h.dir, "bin")
		if err := os.Mkdir(filepath.Join(h.dir, "net.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := h.ipoibd("install-cni", bin).CombinedOutput(); err != nil {
			t.Fatalf("install-cni: %v\n%s", err, out)
		}
		x := &node{h, bin}
		x.configure("1.1.0", "")
		x.startWithFile(serving)
		nodes = append(nodes, x)
	}
	return nodes
}

// configure writes the node's network configuration, with more fields.
func (n *node) configure(version, more string) {
	n.tb.Helper()
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "fabric", "plugins": [%s]}`, version, n.conf("", more))
	if err := os.WriteFile(filepath.Join(n.dir, "net.d", "10-ipoibd.conflist"), []byte(text), 0o600); err != nil {
		n.tb.Fatal(err)
	}
}

// conf returns the configuration of the plugin; a network's own fields come first.
func (n *node) conf(network, more string) string {
	first := 10*n.number + 11
	return fmt.Sprintf(`{%s "type": "ipoibd", "control": "%s/control.sock", %s "ipam": {
		"type": "host-local", "dataDir": "%s/ipam",
		"ranges": [[{"subnet": "10.44.0.0/24", "rangeStart": "10.44.0.%d", "gateway": "10.44.0.1"}],
			[{"subnet": "fd44::/64", "rangeStart": "fd44::%d", "gateway": "fd44::1"}]],
		"routes": [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:1::/48"}]}}`, network, n.dir, more, n.dir, first, first)
}

// newPod creates a pod, which will be the next one of its node to get an address, with a number.
func (n *node) newPod(number int) *pod {
	n.tb.Helper()
	ns := nstest.New(n.tb)
	path := fmt.Sprintf("/run/netns/node%d-pod%d", n.number, number)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		n.tb.Fatal(err)
	}
	if err := unix.Mount(ns.Path(), path, "", unix.MS_BIND, ""); err != nil {
		n.tb.Fatal(err)
	}
	p := &pod{host: &host{Namespace: ns, tb: n.tb, number: 10*n.number + 10 + number, daemon: n.daemon}, node: n, path: path}
	n.tb.Cleanup(p.end)
	return p
}

// end removes the path of the pod's namespace, as a runtime does.
func (p *pod) end() {
	_ = unix.Unmount(p.path, unix.MNT_DETACH) // the test may have done so
	_ = os.Remove(p.path)
}

// cnitool runs a command of cnitool for the pod on its node.
func (p *pod) cnitool(command string) (out string, err error) {
	p.tb.Helper()
	cmd := p.node.Command(os.Getenv(cnitoolEnv), command, "fabric", p.path)
	cmd.Env = append(os.Environ(), "NETCONFPATH="+p.node.dir+"/net.d", "CNI_PATH="+p.node.bin+":"+ipamPlugins, "CNI_IFNAME="+ifName)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// must runs a command of cnitool that must succeed.
func (p *pod) must(command string) string {
	p.tb.Helper()
	out, err := p.cnitool(command)
	if err != nil {
		p.tb.Fatalf("cnitool %s: %v\n%s\n%s", command, err, out, p.node.daemon.log)
	}
	return out
}

// add adds the pod to the network, with the addresses that its number says.
func (p *pod) add() {
	p.tb.Helper()
	var result struct {
		Interfaces []struct {
			Name, Mac, Sandbox string
			Mtu                int
		}
		IPs []struct {
			Interface int
			Address   string
		}
	}
	out := p.must("add")
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		p.tb.Fatalf("%v\n%s", err, out)
	}
	if f := result.Interfaces; len(f) != 1 || f[0].Name != ifName || f[0].Sandbox != p.path || f[0].Mtu != 1444 || !strings.Contains(p.Run("ip", "link", "show", ifName), f[0].Mac) {
		p.tb.Errorf("interfaces of the result: %+v", f)
	}
	if ips := result.IPs; len(ips) != 2 || ips[0].Address != p.ip4()+"/24" || ips[1].Address != p.ip6()+"/64" || ips[0].Interface+ips[1].Interface != 0 {
		p.tb.Errorf("addresses of the result: %+v, want %s and %s", ips, p.ip4(), p.ip6())
	}
}

// command runs the plugin itself, for failures that cnitool prevents.
func (p *pod) command(command, ifName, stdin string) *exec.Cmd {
	cmd := p.node.Command(filepath.Join(p.node.bin, "ipoibd"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=pod-"+filepath.Base(p.path), "CNI_NETNS="+p.path, "CNI_IFNAME="+ifName, "CNI_PATH="+ipamPlugins)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// refused runs the plugin and returns the code and the text of its error; code 0: it succeeded.
func (p *pod) refused(command, ifName, stdin string) (code int, text string) {
	p.tb.Helper()
	out, err := p.command(command, ifName, stdin).Output()
	if err == nil {
		return 0, string(out)
	}
	var e struct {
		Code         int
		Msg, Details string
	}
	if e := json.Unmarshal(out, &e); e != nil {
		p.tb.Fatalf("%s: %v; no error of the specification: %q", command, err, out)
	}
	return e.Code, e.Msg + e.Details
}

// resident returns the daemon's resident memory, in KiB.
func (d *daemon) resident() (kib int) {
	d.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib
		}
	}
	d.tb.Fatalf("no resident memory:\n%s", text)
	return 0
}

const netFields = `"cniVersion": "1.1.0", "name": "fabric",`

// requireClean checks that a node has no interface of a pod and no reserved address, and that the pods
// have no interface.
func (n *node) requireClean(pods ...*pod) {
	n.tb.Helper()
	if s := n.daemon.status(); len(s.Interfaces) > 0 {
		n.tb.Errorf("the daemon has %+v", s.Interfaces)
	}
	if left := n.reserved(); len(left) > 0 {
		n.tb.Errorf("reserved addresses: %v", left)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "control.interfaces.json")); !errors.Is(err, os.ErrNotExist) {
		n.tb.Errorf("the daemon remembers interfaces: %v", err)
	}
	for _, p := range append(pods, &pod{host: n.host}) {
		if out := p.Run("ip", "-o", "link", "show", "type", "tun"); out != "" {
			n.tb.Errorf("left: %s", out)
		}
	}
}

// reserved lists the addresses that the IPAM plugin has reserved.
func (n *node) reserved() (list []string) {
	files, _ := os.ReadDir(filepath.Join(n.dir, "ipam", "fabric"))
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil { // beside them is its own state
			list = append(list, f.Name())
		}
	}
	return list
}
