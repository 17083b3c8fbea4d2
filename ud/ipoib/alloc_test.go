package ipoib

import "testing"

// TestNoAllocation covers the functions called for every frame and those that
// are frequent in neighbour storms.
func TestNoAllocation(t *testing.T) {
	msg := message(EtherTypeIPv6, golden(t, "ns", FormIPoIB))
	short := msg[:HeaderLen-1]
	dst := make([]byte, 0, roomy)
	group6, group4 := ip("ff02::1"), ip("224.0.0.1")
	hidden := behind(golden(t, "ns", FormIPoIB), extDestination, extFragment)
	ether := map[string][]byte{}
	for _, name := range ndNames {
		ether[name] = golden(t, name, FormEther)
	}
	for name, f := range map[string]func(){
		"PutHeader":   func() { PutHeader(msg, EtherTypeIPv6) },
		"ParseHeader": func() { mustParse(t, msg, true); mustParse(t, short, false) },
		"IsND":        func() { must(t, IsND(msg[HeaderLen:])) },
		"HidesND":     func() { must(t, HidesND(hidden)) },
		"DestIP":      func() { _, ok := DestIP(EtherTypeIPv6, msg[HeaderLen:]); must(t, ok) },
		"SourceIP":    func() { _, ok := SourceIP(EtherTypeIPv4, packet4); must(t, ok) },
		"GroupMGID":   func() { must(t, GroupMGID(2, 1, group4) != GroupMGID(2, 1, group6)) },
		"GroupMAC":    func() { must(t, GroupMAC(group4) != GroupMAC(group6)) },
		"Addr":        func() { must(t, NewAddr(addrA.QPN(), addrA.GID()) == addrA) },
		"ParseND":     func() { _, err := ParseND(msg[HeaderLen:], FormIPoIB); must(t, err == nil) },
		"ParseARP":    func() { a, err := ParseARP(arpBytes); must(t, err == nil); a.Append(dst) },
		"ParseEtherARP": func() {
			a, err := ParseEtherARP(etherARPBytes)
			must(t, err == nil)
			a.Append(dst)
		},
		"AppendNS": func() { AppendNS(dst, gidA.Addr(), group6, addrA) },
		"TranslateND": func() {
			for _, p := range ether {
				_, err := TranslateND(dst, p, FormEther, FormIPoIB, roomy, known)
				must(t, err == nil)
			}
		},
		"TranslateND back": func() {
			_, err := TranslateND(dst, msg[HeaderLen:], FormIPoIB, FormEther, roomy, known)
			must(t, err == nil)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func mustParse(t *testing.T, msg []byte, want bool) {
	_, _, err := ParseHeader(msg)
	must(t, (err == nil) == want)
}

func must(t *testing.T, ok bool) {
	t.Helper()
	if !ok {
		t.Fatal("the measured call failed")
	}
}
