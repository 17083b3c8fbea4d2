package capture

import (
	"os/exec"
	"strings"
	"testing"
)

// tcpdump's output compiles, and decides as pcap-filter(7) says.
func TestCompileFilter(t *testing.T) {
	packet := append(make([]byte, 12), 8, 0) // Ethernet header without addresses
	packet = append(packet, icmp[4:]...)
	for expression, want := range map[string]bool{
		"":                                 true,
		"icmp":                             true,
		"tcp":                              false,
		"host 10.9.0.2":                    true,
		"src host 10.9.0.2":                false,
		"net 10.9.0.0/16 and not udp":      true,
		"ip6 or arp":                       false,
		"icmp[icmptype] == icmp-echoreply": true,
		"len < 20":                         false,
		"vlan":                             false,
	} {
		out, err := exec.CommandContext(t.Context(), "tcpdump", "-y", "EN10MB", "-ddd", "--", expression).Output()
		if err != nil {
			t.Fatalf("tcpdump %q: %v (apt-get install tcpdump)", expression, err)
		}
		for _, text := range []string{string(out), strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ",")} {
			vm, err := compile(text)
			if err != nil {
				t.Errorf("%q: %v", expression, err)
				continue
			}
			if n, err := vm.Run(packet); err != nil || n > 0 != want {
				t.Errorf("%q: %d, %v, want a match: %v", expression, n, err, want)
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no number":        "x",
		"wrong number":     "2\n6 0 0 1\n",
		"negative":         "-1",
		"three fields":     "1\n6 0 0\n",
		"large field":      "1\n6 0 256 1\n",
		"no return":        "1\n40 0 0 12\n",
		"jump too far":     "2\n5 0 0 9\n6 0 0 1\n",
		"division by zero": "2\n52 0 0 0\n6 0 0 1\n",
		"too long":         "4097\n" + strings.Repeat("40 0 0 12\n", 4096) + "6 0 0 1\n",
	} {
		if _, err := compile(text); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// FuzzFilter runs arbitrary programs on arbitrary frames: they end, without a panic.
func FuzzFilter(f *testing.F) {
	f.Add("1\n6 0 0 262144\n", []byte{1, 2, 3})
	f.Add("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n", make([]byte, 60))
	f.Add("5\n177 0 0 14\n72 0 0 4294967295\n60 0 0 0\n135 0 0 0\n22 0 0 0\n", make([]byte, 60))
	f.Fuzz(func(_ *testing.T, program string, frame []byte) {
		if vm, err := compile(program); err == nil && vm != nil {
			_, _ = vm.Run(frame)
		}
	})
}
