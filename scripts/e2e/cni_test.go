package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// Pods of two nodes get interfaces from their nodes' daemons, by cnitool and an IPAM plugin of the
// reference plugins: pods of different nodes and of the same one reach each other. A daemon that is
// killed and started again serves its pods again, with their addresses, and a TCP connection goes on.
func TestCNI(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nodes := newNodes(t, 2)
	a, b := nodes[0], nodes[1]
	first, second, far := a.newPod(0), a.newPod(1), b.newPod(0)
	for _, p := range []*pod{first, second, far} {
		p.must("status")
		start := time.Now()
		p.add()
		t.Logf("a pod was added in %v", time.Since(start).Round(time.Millisecond))
		p.must("check")
	}
	if out := a.Run("ip", "-o", "link", "show", "type", "tun"); out != "" {
		t.Errorf("in the node's own namespace: %s", out)
	}
	if out := first.Run("ip", "route") + first.Run("ip", "-6", "route"); !strings.Contains(out, "198.51.100.0/24 via 10.44.0.1 dev ib0") || !strings.Contains(out, "2001:db8:1::/48 via fd44::1 dev ib0") {
		t.Errorf("routes:\n%s", out)
	}
	first.waitReaches(far.host)
	first.waitReaches(second.host)
	pingAll(first.host, second.host, far.host)

	stream, addrs := first.stream(far.host), first.addrs()
	a.daemon.kill()
	eventually(t, carrierLimit, "no carrier without a daemon", func() bool { return !first.carrier() })
	if out, err := first.cnitool("check"); err == nil || !strings.Contains(out, "no daemon answers") {
		t.Errorf("check without a daemon: %s", out)
	}
	if code, text := first.refused("STATUS", ifName, a.conf(netFields, "")); code != 51 {
		t.Errorf("status without a daemon: code %d, %s", code, text)
	}
	a.startWithFile(serving)
	first.daemon, second.daemon = a.daemon, a.daemon
	first.waitCarrier()
	took, err := stream.waitMoves(streamLimit)
	if err != nil {
		t.Error(err)
	}
	t.Logf("the connection carries data %v after the carrier of the restarted daemon", took)
	if now := first.addrs(); !slices.Equal(now, addrs) {
		t.Errorf("addresses after the restart: %v, were %v", now, addrs)
	}
	second.waitCarrier()
	for _, p := range []*pod{first, second} {
		eventually(t, repairLimit, "check after the restart", func() bool { _, err := p.cnitool("check"); return err == nil })
	}
	for _, p := range []*pod{first, second} {
		t.Logf("a pod reaches the other node's pod %v after the restart", p.waitReaches(far.host))
		far.waitReaches(p.host)
	}
	first.waitReaches(second.host)

	for _, p := range []*pod{first, second, far} {
		p.must("del")
		p.must("del")
	}
	a.requireClean(first, second)
	b.requireClean(far)
}

// A runtime may name a pod's namespace by a process, in /proc, where the daemon's sandbox lets it open nothing:
// the plugin passes the namespace. A daemon that is started again cannot open it, and says what to do; DEL
// and ADD bring the interface back. It goes with the process.
func TestCNINamespaceOfAProcess(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newNodes(t, 1)[0]
	p := a.newPod(0)
	process := p.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Process.Kill() }()
	p.path = fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid)
	p.add()
	p.must("check")

	a.daemon.kill()
	a.startWithFile(serving)
	if !strings.Contains(a.daemon.log.String(), "--sandbox=false") {
		t.Errorf("the log does not say what to do:\n%s", a.daemon.log)
	}
	p.daemon = a.daemon
	p.must("del")
	p.must("add")
	p.must("check")

	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	eventually(t, repairLimit, "the interface is deleted with the process", func() bool { return !p.exists() })
	p.must("del")
	a.requireClean(p)
}

// A pod that may send raw frames, as by default in Docker and containerd, cannot take over the address of
// another pod: the daemon drops what claims it. With "sourceCheck" off, it can.
func TestCNIPodCannotClaimAnothersAddress(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nodes := newNodes(t, 2)
	victim, attacker, far := nodes[0].newPod(0), nodes[0].newPod(1), nodes[1].newPod(0)
	for _, p := range []*pod{victim, attacker, far} {
		p.add()
	}
	far.waitReaches(victim.host)
	claim := func() {
		own := attacker.linkAddr(ifName)
		raw := newPacketSocket(attacker.host)
		for _, op := range []uint16{ipoib.ARPRequest, ipoib.ARPReply} {
			arp := ipoib.EtherARP{Op: op, SHA: own, SPA: addr(victim.ip4()), TPA: addr(victim.ip4())}
			raw.send(ether(ipoib.Broadcast, own, ipoib.EtherTypeARP, arp.Append(nil)))
		}
	}
	newPacketSocket(attacker.host).send(advertisedRouter(attacker.linkAddr(ifName)))
	claim()
	var drops uint64
	eventually(t, repairLimit, "the claims are dropped", func() bool {
		drops = 0
		for _, f := range nodes[0].daemon.status().Interfaces {
			drops += f.Counters["tx_drop_foreign_source"]
		}
		return drops >= 2
	})
	for range 5 {
		far.ping(victim.host)
	}
	if drops != 2 {
		t.Errorf("%d frames were dropped, 2 of them claims", drops)
	}
	eventually(t, repairLimit, "the router advertisement is dropped", func() bool {
		drops = 0
		for _, f := range nodes[0].daemon.status().Interfaces {
			drops += f.Counters["tx_drop_router_message"]
		}
		return drops == 1
	})

	attacker.must("del")
	if code, text := attacker.refused("ADD", ifName, nodes[0].conf(netFields, `"sourceCheck": false,`)); code != 0 {
		t.Fatal(text)
	}
	eventually(t, repairLimit, "without the check, the claim works", func() bool {
		claim()
		return !far.reaches(victim.host)
	})
}

// advertisedRouter returns the router advertisement of a host at its link-local address.
func advertisedRouter(from ipoib.MAC) []byte {
	packet := poison(from.LinkLocal(), addr("ff02::1"))
	packet[40] = ipoib.NDRouterAdvert
	return ether(ipoib.GroupMAC(addr("ff02::1")), from, ipoib.EtherTypeIPv6, packet)
}

// What runtimes do in the wrong order, or not at all: a pod ends without DEL; DEL comes without a
// daemon, without a namespace, and for a pod that never was. Nothing is left.
func TestCNIWithoutDel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newNodes(t, 1)[0]
	lost, other, gone := a.newPod(0), a.newPod(1), a.newPod(2)
	for _, p := range []*pod{lost, other, gone} {
		p.add()
	}
	lost.end()
	eventually(t, repairLimit, "the daemon deletes the interface of a pod that has ended", func() bool {
		return lost.Run("ip", "-o", "link", "show", "type", "tun") == ""
	})
	if err := a.daemon.command("status").Run(); err != nil {
		t.Fatalf("the daemon has ended with a pod: %v\n%s", err, a.daemon.log)
	}
	other.must("check")
	eventually(t, repairLimit, "the interface has failed", func() bool {
		return slices.ContainsFunc(a.daemon.status().Interfaces, func(f iface) bool { return f.State == "failed" })
	})
	again := a.newPod(3) // others can be added before the DEL
	again.add()
	again.must("del")
	lost.must("del")

	// Without a daemon, other loses its interface; gone ends with its namespace. The next daemon
	// forgets both.
	a.daemon.kill()
	other.must("del")
	if other.exists() {
		t.Error("DEL without a daemon has left the interface")
	}
	gone.end()
	a.startWithFile(serving)
	gone.must("del")
	a.requireClean(lost, other, again)

	for _, netns := range []string{"", "/nonexistent"} {
		never := *gone
		never.path = netns
		if code, text := never.refused("DEL", ifName, a.conf(netFields, "")); code != 0 {
			t.Errorf("DEL of what never was, in %q: code %d, %s", netns, code, text)
		}
	}
}

// An ADD that fails halfway is undone. One that is killed is cleaned up by a DEL.
func TestCNIFailedAdd(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newNodes(t, 1)[0]
	p := a.newPod(0)
	p.Run("ip", "link", "add", "taken", "type", "veth", "peer", "name", "far")
	for what, c := range map[string]struct {
		ifName, stdin, says string
		code                int
	}{
		"a name that is taken":                    {"taken", a.conf(netFields, ""), "does not belong to ipoibd", 999},
		"a P_Key that does not exist":             {ifName, a.conf(netFields, `"pkey": "0x1234",`), "is not among the pkeys", 7},
		"a device that does not exist":            {ifName, a.conf(netFields, `"device": "hard",`), `no device "hard"`, 7},
		"an MTU out of range":                     {ifName, a.conf(netFields, `"mtu": 7,`), "out of range", 7},
		"an IPAM plugin that does not exist":      {ifName, strings.Replace(a.conf(netFields, ""), "host-local", "nothing", 1), "nothing", 7},
		"no daemon":                               {ifName, strings.Replace(a.conf(netFields, ""), "control.sock", "other.sock", 1), "no daemon answers", 11},
		"a socket that is a file":                 {ifName, strings.Replace(a.conf(netFields, ""), "control.sock", "ipoibd.yaml", 1), "no daemon answers", 11},
		"an interface's name with a percent sign": {"ib%d", a.conf(netFields, ""), "CNI_IFNAME", 4},
		"an interface's name with a slash":        {"../x", a.conf(netFields, ""), "", 4},
		"an interface's name with a control sign": {"ib\x1b", a.conf(netFields, ""), "CNI_IFNAME", 4},
		"an interface's name that is not UTF-8":   {"ib\xff", a.conf(netFields, ""), "CNI_IFNAME", 4},
		"a configuration that is too large":       {ifName, a.conf(netFields, `"x": "`+strings.Repeat("x", 1<<20)+`",`), "bytes", 7},
	} {
		code, text := p.refused("ADD", c.ifName, c.stdin)
		if code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: code %d, %q; want %d, %q", what, code, text, c.code, c.says)
		}
	}
	p.Run("ip", "link", "del", "taken")
	a.requireClean(p)

	// Wherever an ADD is killed, the DEL after it leaves nothing. Its IPAM plugin ends by itself: host-local
	// forgets whose an address is if it is killed between the creation of the file and the writing.
	for delay := range 16 {
		cmd := p.command("ADD", ifName, a.conf(netFields, ""))
		cmd.SysProcAttr.Setpgid = true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(delay) * 3 * time.Millisecond)
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		eventually(t, stopLimit, "the IPAM plugin ends", func() bool { return errors.Is(syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH) })
		had := len(a.reserved()) + len(a.daemon.status().Interfaces)
		if code, text := p.refused("DEL", ifName, a.conf(netFields, "")); code != 0 {
			t.Errorf("DEL after an ADD that was killed after %d ms, with %d addresses and interfaces: code %d, %s", 3*delay, had, code, text)
		}
		t.Logf("killed after %d ms, with %d addresses and interfaces", 3*delay, had)
		a.requireClean(p)
	}

	// Without its underlay, the interface gets no carrier, and ADD waits. It is killed there.
	a.Run("ip", "link", "set", nstest.Dev, "down")
	cmd := p.command("ADD", ifName, a.conf(netFields, ""))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, repairLimit, "the interface is in the pod, with reserved addresses", func() bool {
		return p.exists() && len(a.reserved()) > 0 && len(a.daemon.status().Interfaces) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code, text := p.refused("STATUS", ifName, a.conf(netFields, "")); code != 51 {
		t.Errorf("status without the underlay: code %d, %s", code, text)
	}
	if code, text := p.refused("DEL", ifName, a.conf(netFields, "")); code != 0 {
		t.Errorf("DEL: code %d, %s", code, text)
	}
	a.requireClean(p)
	a.Run("ip", "link", "set", nstest.Dev, "up")
}

// Many pods come at the same time; GC removes those that are no longer valid and no others; CHECK
// believes no previous result; and many go at the same time.
func TestCNIMany(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const count = 20
	a := newNodes(t, 1)[0]
	var pods []*pod
	for i := range count {
		pods = append(pods, a.newPod(i))
	}
	results := make([]string, count)
	each := func(list []*pod, command string, stdin func(i int) string) {
		t.Helper()
		start := time.Now()
		var all sync.WaitGroup
		for i, p := range list {
			all.Go(func() {
				code, text := p.refused(command, ifName, stdin(i))
				if code != 0 {
					t.Errorf("%s of pod %d: code %d, %s", command, i, code, text)
				}
				results[i] = text
			})
		}
		all.Wait()
		t.Logf("%d times %s at the same time: %v", len(list), command, time.Since(start).Round(time.Millisecond))
	}
	// Without IPAM the addresses do not matter, and version 1.0.0 has no GC.
	conf := fmt.Sprintf(`"type": "ipoibd", "control": "%s/control.sock", "mtu": 1300`, a.dir)
	before := a.daemon.resident()
	each(pods, "ADD", func(int) string { return `{"cniVersion": "1.0.0", "name": "fabric", ` + conf + "}" })
	t.Logf("the daemon takes %d KiB of memory for each pod, beside %d KiB", (a.daemon.resident()-before)/count, before)
	stranger := a.newPod(count)
	if code, text := stranger.refused("ADD", ifName, `{"cniVersion": "1.0.0", "name": "other", `+conf+"}"); code != 0 {
		t.Fatal(text)
	}
	with := func(prev string) string {
		return `{"cniVersion": "1.1.0", "name": "fabric", "prevResult": ` + prev + ", " + conf + "}"
	}
	added := slices.Clone(results)
	for i := range added {
		added[i] = strings.Replace(added[i], `"1.0.0"`, `"1.1.0"`, 1)
	}
	each(pods, "CHECK", func(i int) string { return with(added[i]) })
	for what, lie := range map[string]string{
		"another pod's":  added[1],
		"no interfaces":  `{"cniVersion": "1.1.0"}`,
		"null":           `{"cniVersion": "1.1.0", "interfaces": [null], "ips": [null], "routes": [null]}`,
		"another MAC":    strings.Replace(added[0], `"mac": "`, `"mac": "02:`, 1),
		"more addresses": strings.Replace(added[0], `"interfaces"`, `"ips": [{"interface": 0, "address": "10.9.9.9/24"}], "interfaces"`, 1),
		"more routes":    strings.Replace(added[0], `"interfaces"`, `"routes": [{"dst": "10.9.9.0/24"}], "interfaces"`, 1),
		"no mask":        strings.Replace(added[0], `"interfaces"`, `"ips": [{"interface": 0, "address": "10.9.9.9"}], "interfaces"`, 1),
		"not a result":   `7`,
	} {
		if code, text := pods[0].refused("CHECK", ifName, with(lie)); code == 0 || strings.Contains(text, "panic") {
			t.Errorf("CHECK with a result of %s: code %d, %s", what, code, text)
		}
	}

	var valid []string
	for _, p := range pods[:count/2] {
		valid = append(valid, fmt.Sprintf(`{"containerID": "pod-%s", "ifname": "%s"}`, filepath.Base(p.path), ifName))
	}
	gc := `{"cniVersion": "1.1.0", "name": "fabric", "cni.dev/valid-attachments": [` + strings.Join(valid, ",") + "], " + conf + "}"
	if code, text := pods[0].refused("GC", "", gc); code != 0 {
		t.Errorf("GC: code %d, %s", code, text)
	}
	for i, p := range append(slices.Clone(pods), stranger) {
		if keep := i < count/2 || p == stranger; p.exists() != keep {
			t.Errorf("pod %d after GC: exists %t", i, !keep)
		}
	}
	if n := len(a.daemon.status().Interfaces); n != count/2+1 {
		t.Errorf("%d interfaces after GC", n)
	}
	each(pods, "DEL", func(int) string { return `{"cniVersion": "1.0.0", "name": "fabric", ` + conf + "}" })
	if code, text := stranger.refused("DEL", ifName, `{"cniVersion": "1.0.0", "name": "other", `+conf+"}"); code != 0 {
		t.Error(text)
	}
	a.requireClean(append(pods, stranger)...)
}
