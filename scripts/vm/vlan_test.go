package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// twoPartitions is the configuration of a daemon with an interface in each of two partitions.
const twoPartitions = "devices:\n- underlay: " + nstest.Dev + "\n  pkeys: [0xffff, 0x8001]\ninterfaces:\n- name: ib0\n- name: ib0.8001\n  pkey: 0x8001\n"

// TestVLANs: the VLANs of a station behind a bridge become partitions, by the commands of docs/interface.md. It needs a
// kernel with VLAN-aware bridges.
func TestVLANs(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		underlay := nstest.NewSegment(t, 1500)
		g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: underlay}}})}
		g.Run("rmmod", "rdma_rxe") // it has the port of RoCEv2
		var ends []*endpoint
		for i, m := range []machine{g, newHost(t, underlay)} {
			e := &endpoint{machine: m, tb: t, number: i, control: filepath.Join(m.runDir(), "ipoibd.sock")}
			file := filepath.Join(m.runDir(), "two.yaml")
			m.Run("sh", "-c", "mkdir -p "+m.runDir()+" && cat >"+file+" <<'end'\n"+twoPartitions+"end")
			e.runDaemon("run", "--config", file, "--control", e.control, "--log-level", "debug")
			t.Cleanup(e.showLog)
			ends = append(ends, e)
		}
		b := ends[1]
		g.Run("ip", "netns", "add", "station")
		g.Run("ip", "link", "add", "guest0", "mtu", "1400", "type", "veth", "peer", "name", "up0", "netns", "station")
		g.Run("sh", "-euxc", indentedLines(t, "../../docs/interface.md", "\n### VLANs\n"))
		inside := func(args ...string) { g.Run("ip", append([]string{"netns", "exec", "station"}, args...)...) }
		inside("ip", "link", "set", "up0", "up")
		inside("sysctl", "-q", "-w", "net.ipv4.conf.all.arp_ignore=1") // each address answers only on its own interface
		for vlan, dev := range map[int]string{10: "ib0", 20: "ib0.8001"} {
			name := fmt.Sprintf("vlan%d", vlan)
			inside("ip", "link", "add", name, "link", "up0", "type", "vlan", "id", fmt.Sprint(vlan))
			inside("ip", "link", "set", name, "up")
			inside("ip", "address", "add", fmt.Sprintf("10.45.%d.1/24", vlan), "dev", name)
			b.Run("ip", "link", "set", dev, "up")
			b.Run("ip", "address", "add", fmt.Sprintf("10.45.%d.2/24", vlan), "dev", dev)
		}
		for _, vlan := range []int{10, 20} {
			address := fmt.Sprintf("10.45.%d.1", vlan)
			eventually(t, address+" is reached", func() bool { return b.Try("ping", "-n", "-c", "1", "-W", "1", address) })
			inside("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "5", fmt.Sprintf("10.45.%d.2", vlan))
		}
		// What belongs to one VLAN does not reach the other partition.
		b.Run("ip", "address", "add", "10.45.10.3/24", "dev", "ib0.8001")
		b.Run("ip", "route", "replace", "10.45.10.1/32", "dev", "ib0.8001")
		if b.Try("ping", "-n", "-c", "2", "-i", "0.2", "-W", "2", "-I", "ib0.8001", "10.45.10.1") {
			t.Error("the station's VLAN 10 is reached through the other partition")
		}
	})
}

// indentedLines returns the commands in a section of a page.
func indentedLines(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), heading)
	section, _, _ = strings.Cut(section, "\n## ")
	var commands strings.Builder
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands.WriteString(command)
		}
	}
	if !found || commands.Len() == 0 {
		t.Fatalf("%s has no commands under %q", page, heading)
	}
	return commands.String()
}
